//! S14 and the file itself: several processes, lost callers, migrations.

use futures::FutureExt as _;

use crate::journal::DocumentWrite;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_that_open_an_empty_file_at_once_all_start() {
    for _ in 0..10 {
        let place = Place::new();
        let opening = (0..4).map(|_| {
            let url = place.url();
            // A runtime each, as processes have.
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let store = Store::open(&url, StoreOptions::default()).await.expect("all start");
                    store.list_runs(&RunFilter::default()).await.expect("all read").runs.len()
                })
            })
        });
        for thread in opening.collect::<Vec<_>>() {
            assert_eq!(thread.join().expect("no panic"), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_writers_that_read_first_never_hear_of_a_lock() {
    let place = Place::new();
    let stores = [place.open().await, place.open().await];
    let writers = (0..8).map(|writer| {
        let store = stores[writer % 2].clone();
        tokio::spawn(async move {
            for number in 0..25 {
                let id = format!("w{writer}-{number}");
                publish(&store, new_run(&id)).await;
                let (fence, a) = claim_step(&store, &id, "w", "a", &format!("d-{id}"), 2_000).await;
                assert_done(store.commit(completing(&fence, &a, "1", 2_100)).await);
            }
        })
    });
    for joined in futures::future::join_all(writers).await {
        joined.expect("no error reaches anybody");
    }
    let filter = RunFilter { limit: 1_000, ..RunFilter::default() };
    assert_eq!(stores[0].list_runs(&filter).await.expect("listed").runs.len(), 200);
}

/// Commits that come together share one, and each stands or falls by itself: of one that fails half way, nothing remains.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_that_share_a_transaction_fail_alone() {
    let (_place, store) = store().await;
    let mut commits = Vec::new();
    for number in 0..64 {
        let id = format!("r{number}");
        publish(&store, new_run(&id)).await;
        let (fence, attempt) = claim_step(&store, &id, "w", "a", &format!("d-{id}"), 2_000).await;
        let mut commit = completing(&fence, &attempt, "1", 2_100);
        commit.writes = vec![DocumentWrite { app: "app".to_owned(), key: id.clone(), value: Some("1".to_owned()) }];
        // Every fourth one shows a token that is not its attempt's, which is found out after its document was written.
        if let (0, Some(end)) = (number % 4, &mut commit.attempt) {
            end.claim_token = "somebody else's".to_owned();
        }
        commits.push(commit);
    }
    let committing = commits.into_iter().map(|commit| store.commit(commit));
    for (number, committed) in futures::future::join_all(committing).await.into_iter().enumerate() {
        assert_eq!(committed.is_ok(), number % 4 != 0, "r{number}: {committed:?}");
        let document = store.document("app", &format!("r{number}")).await.expect("read");
        assert_eq!(document.is_some(), number % 4 != 0, "r{number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_another_process_holds_for_long_is_waited_for() {
    let (place, store) = store().await;
    let other = rusqlite::Connection::open(place.folder.path().join("deep/er/store.db")).expect("connected");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let (_, held) = tokio::join!(publish(&store, new_run("r1")), async {
        // Longer than SQLite itself waits.
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        assert!(store.run("r1").await.expect("reading does not wait").is_none());
        other.execute_batch("COMMIT")
    });
    held.expect("unlocked");
    assert!(store.run("r1").await.expect("read").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_stops_waiting_leaves_the_writer_healthy() {
    let (_place, store) = store().await;
    for number in 0..50 {
        let mut publishing = Box::pin(store.publish(new_run(&format!("r{number}"))));
        // Far enough to have handed the job over, and no further.
        assert!((&mut publishing).now_or_never().is_none());
        drop(publishing);
    }
    // The writer takes jobs in order: once this one is done, those before it are.
    publish(&store, new_run("last")).await;
    let filter = RunFilter { limit: 1_000, ..RunFilter::default() };
    let runs = store.list_runs(&filter).await.expect("listed").runs;
    assert_eq!(runs.len(), 51, "each was published whole, although nobody waited");
    for run in runs {
        assert_eq!(kinds_of(&store, &run.id).await, ["run.started"]);
    }
}

#[tokio::test]
async fn a_job_that_panics_or_fails_undoes_itself_alone() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    let panicked: Result<(), StoreError> = store
        .database
        .write("panicking", |tx| {
            Box::pin(async move {
                tx.execute("UPDATE @runs SET title = 'torn'", args![]).await?;
                panic!("on purpose");
            })
        })
        .await;
    assert!(matches!(panicked, Err(StoreError::Database { doing: "panicking", .. })));
    let wrong: Result<u64, StoreError> = store
        .database
        .write("failing", |tx| {
            Box::pin(async move {
                tx.execute("UPDATE @runs SET title = 'torn'", args![]).await?;
                tx.execute("UPDATE @no_such_table SET title = 'torn'", args![]).await
            })
        })
        .await;
    assert!(matches!(wrong, Err(StoreError::Database { doing: "failing", .. })));
    assert_eq!(run_of(&store, "r1").await.title, "A batch");
    publish(&store, new_run("r2")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s14_a_read_that_is_dropped_in_the_middle_holds_nothing() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    for _ in 0..40 {
        let _ = tokio::time::timeout(Duration::from_micros(50), store.snapshot("r1")).await;
    }
    // More than there are read connections, all usable, all seeing the newest state.
    publish(&store, new_run("r2")).await;
    for _ in 0..8 {
        assert!(store.run("r2").await.expect("read").is_some());
    }
}

#[tokio::test]
async fn a_store_that_a_newer_program_migrated_is_refused() {
    let (place, store) = store().await;
    let newer = "INSERT INTO @migrations (version, name, sha256) VALUES (999, 'later', $1)";
    break_with(&store, newer, args!["later"]).await;
    match Store::open(&place.url(), StoreOptions::default()).await {
        Err(error @ StoreError::TooNew { found: 999, known: 1, .. }) => {
            assert!(error.to_string().contains("run a newer tollgate"), "{error}");
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_store_is_opened_again_and_beside_another() {
    let (place, store) = store().await;
    publish(&store, new_run("r1")).await;
    drop(store);
    let store = place.open().await;
    assert_eq!(run_of(&store, "r1").await.title, "A batch");
    let other = StoreOptions { prefix: "other_".to_owned() };
    let beside = Store::open(&place.url(), other).await.expect("tables of its own");
    assert!(beside.run("r1").await.expect("read").is_none());
    publish(&beside, new_run("r1")).await;
}

#[tokio::test]
async fn an_address_that_is_none_says_what_to_write() {
    let check = async |url: &str, says: &str| {
        let error = Store::open(url, StoreOptions::default()).await.expect_err(url).to_string();
        assert!(error.contains(says), "{url}: {error}");
    };
    check("postgres://localhost/tollgate", "SQLite only").await;
    check("postgresql://localhost/tollgate", "SQLite only").await;
    check("mysql://localhost/tollgate", "write sqlite:PATH").await;
    check("sqlite::memory:", "a store is a file").await;
    check("", "a store is a file").await;
    check("/dev/null/store.db", "its folder cannot be created").await;
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain.db");
    for url in [plain.display().to_string(), format!("sqlite://{}", plain.display())] {
        Store::open(&url, StoreOptions::default()).await.expect("a path is an address");
    }
    let prefix = StoreOptions { prefix: "Bad-".to_owned() };
    assert!(matches!(Store::open("x.db", prefix).await, Err(StoreError::Prefix { .. })));
}

#[tokio::test]
async fn a_value_that_somebody_edited_is_an_error_that_names_it() {
    let (_place, store) = store().await;
    publish(&store, new_run("r1")).await;
    break_with(&store, "UPDATE @runs SET state = 'sleeping' WHERE id = $1", args!["r1"]).await;
    let error = store.run("r1").await.expect_err("no such state").to_string();
    assert!(error.contains("column state") && error.contains("sleeping"), "{error}");
}

#[tokio::test]
async fn no_statement_scans_a_table() {
    let (_place, store) = store().await;
    exercise(&store).await;
    let mut seen = 0;
    for sql in store.database.statements() {
        let mut tx = store.database.read("explaining").await.expect("a read");
        let parameters = (1..=sql.matches('$').count()).rev().find(|number| sql.contains(&format!("${number}")));
        let nulls = (0..parameters.unwrap_or(0)).map(|_| Arg::Text(None)).collect();
        let plan = tx.fetch_all(&format!("EXPLAIN QUERY PLAN {sql}"), nulls).await.expect("explained");
        for line in plan.iter().map(|row| row.text("detail").expect("a plan")) {
            let is_table = !line.contains("CONSTANT ROW") && !line.contains("VALUES CLAUSE");
            // A page of everything, and the components, which are few, walk along an index.
            let is_listing = sql.contains("LIMIT") || sql.contains("_components ");
            let scans = line.starts_with("SCAN") && is_table && !(is_listing && line.contains("INDEX"));
            assert!(!scans, "{line}\n{sql}");
            seen += 1;
        }
    }
    assert!(seen > 40, "only {seen} lines of plans");
}

/// Calls whatever sends a statement.
async fn exercise(store: &Store) {
    let (fence, a) = {
        publish(store, NewRun { start_key: Some("k".to_owned()), ..scoped("r1", "acme") }).await;
        claim_step(store, "r1", "w1", "a", "d1", 2_000).await
    };
    store.renew(&fence, "w1", LEASE, at(2_050)).await.expect("renewed");
    let item = crate::budget::ChargeItem {
        dimension: "emails".to_owned(),
        amount: crate::budget::Amount::parse_charge("1").expect("an amount"),
    };
    let key = ChargeKey { dispatch: "d1".to_owned(), generation: fence.generation, request: None };
    let charge = Charge { key: key.clone(), step: "a".to_owned(), items: vec![item] };
    assert_done(store.commit(Commit { charge: Some(charge), ..marking(&fence, &a, 2_100) }).await);
    assert_done(store.commit(Commit { refund: Some(key), ..completing(&fence, &a, "1", 2_200) }).await);
    let b = store.wake(&fence, reservation("b", "d2"), at(2_250)).await.expect("reserved");
    assert_done(store.commit(failing(&fence, &b, 2_300)).await);
    claim_step(store, "r1", "w1", "b", "d3", 2_400).await;
    for resolution in [Verdict::RetryWithNewKey, Verdict::Succeeded { output: "1".to_owned() }] {
        let _ = store
            .resolve_effect(Resolution {
                run: "r1".to_owned(),
                step: "a".to_owned(),
                verdict: resolution,
                save_as: None,
                actor: String::new(),
                because: String::new(),
                at: at(99_000),
            })
            .await;
    }
    store.abandon("r1", "ann", "test", Vec::new(), at(100_000)).await.expect("abandoned");
    store.push_component("mail", "c1", vec![1], "[]", at(1)).await.expect("pushed");
    store.component("mail", Some(1)).await.expect("read");
    store.component_by_digest("c1").await.expect("read");
    store.component_bytes("c1").await.expect("read");
    store.components().await.expect("read");
    everything(store, "r1").await;
    store.effects_in_doubt().await.expect("read");
    store.documents("mail", "a", 10).await.expect("read");
    store.documents("mail", "", 10).await.expect("read");
    store.document("mail", "a").await.expect("read");
    store.resolve_prefix("r").await.expect("found");
    store.occupant("mail/batch", "acme").await.expect("read");
    store.find_active(&["mail/batch".to_owned(), "x".to_owned()], Some("acme")).await.expect("found");
    store.find_active(&["mail/batch".to_owned()], None).await.expect("found");
    for scope in [ScopeFilter::Any, ScopeFilter::In(None), ScopeFilter::In(Some("acme".to_owned()))] {
        for state in [None, Some(RunState::Active)] {
            for refs in [vec![], vec!["mail/batch".to_owned()], vec!["x".to_owned(), "y".to_owned()]] {
                let filter = RunFilter { refs, scope: scope.clone(), state, ..RunFilter::default() };
                store.list_runs(&filter).await.expect("listed");
                store.list_runs(&RunFilter { cursor: Some("5:r".to_owned()), ..filter }).await.expect("listed");
            }
        }
    }
}
