//! R6, R7, B1 to B5: the budget of a run tree.

use std::collections::BTreeMap;

use super::*;
use crate::budget::{Amount, ChargeItem};

fn amount(text: &str) -> Amount {
    Amount::parse_charge(text).expect("an amount")
}

fn caps(caps: &[(&str, &str)]) -> BTreeMap<String, Amount> {
    caps.iter().map(|(dimension, cap)| ((*dimension).to_owned(), amount(cap))).collect()
}

fn items(items: &[(&str, &str)]) -> Vec<ChargeItem> {
    let item = |(dimension, charged): &(&str, &str)| ChargeItem {
        dimension: (*dimension).to_owned(),
        amount: amount(charged),
    };
    items.iter().map(item).collect()
}

fn charging(fence: &Fence, step: &str, dispatch: &str, what: &[(&str, &str)]) -> Commit {
    let key = ChargeKey { dispatch: dispatch.to_owned(), generation: fence.generation, request: None };
    let charge = Charge { key, step: step.to_owned(), items: items(what) };
    Commit { charge: Some(charge), ..Commit::new(fence.clone(), at(3_000)) }
}

async fn used(store: &Store, root: &str, dimension: &str) -> String {
    let budget = store.budget(root).await.expect("read");
    budget.used.get(dimension).copied().unwrap_or_default().to_string()
}

/// A claimed run with these caps.
async fn capped(store: &Store, id: &str, limits: &[(&str, &str)]) -> (Fence, ReservedAttempt) {
    publish(store, NewRun { caps: caps(limits), ..new_run(id) }).await;
    claim_step(store, id, "w1", "a", "d1", 2_000).await
}

#[tokio::test]
async fn r6_a_charge_fits_whole_or_not_at_all() {
    let (_place, store) = store().await;
    let (fence, _) = capped(&store, "r1", &[("emails", "10"), ("usd", "1")]).await;
    assert_done(store.commit(charging(&fence, "a", "d1", &[("emails", "4"), ("emails", "5")])).await);
    assert_eq!(used(&store, "r1", "emails").await, "9");

    let before = everything(&store, "r1").await;
    let Ok(Committed::Exceeded(exceeded)) =
        store.commit(charging(&fence, "a", "d2", &[("usd", "0.5"), ("emails", "2")])).await
    else {
        panic!("not exceeded");
    };
    assert_eq!((exceeded.dimension.as_str(), exceeded.limit, exceeded.used), ("emails", amount("10"), amount("9")));
    assert_eq!(exceeded.requested, amount("2"));
    assert_eq!(everything(&store, "r1").await, before, "usd was not charged either");
    // Equal to the cap fits.
    assert_done(store.commit(charging(&fence, "a", "d2", &[("usd", "1"), ("emails", "1")])).await);
    assert_eq!(used(&store, "r1", "emails").await, "10");
}

#[tokio::test]
async fn b1_amounts_add_exactly() {
    let (_place, store) = store().await;
    let (fence, _) = capped(&store, "r1", &[("usd", "0.3")]).await;
    assert_done(store.commit(charging(&fence, "a", "d1", &[("usd", "0.1"), ("usd", "0.2")])).await);
    assert_eq!(used(&store, "r1", "usd").await, "0.3");
    assert!(matches!(
        store.commit(charging(&fence, "a", "d2", &[("usd", "0.000001")])).await,
        Ok(Committed::Exceeded(_))
    ));
}

#[tokio::test]
async fn b2_a_dimension_without_a_cap_is_counted() {
    let (_place, store) = store().await;
    let (fence, _) = capped(&store, "r1", &[("emails", "1")]).await;
    assert_done(store.commit(charging(&fence, "a", "d1", &[("tokens", "123456789")])).await);
    assert_eq!(used(&store, "r1", "tokens").await, "123456789");
}

#[tokio::test]
async fn r7_charge_and_mark_are_one_commit() {
    let (_place, store) = store().await;
    let (fence, a) = capped(&store, "r1", &[("emails", "1")]).await;
    let both = |dispatch: &str, what| Commit {
        effect: Some(mark(&fence, &a, 3_000)),
        events: marking(&fence, &a, 3_000).events,
        ..charging(&fence, "a", dispatch, what)
    };
    assert!(matches!(store.commit(both("d1", &[("emails", "2")])).await, Ok(Committed::Exceeded(_))));
    assert_eq!(store.effects("r1").await.expect("read"), [], "no mark without its charge");

    let commit = both("d1", &[("emails", "1")]);
    assert_done(store.commit(commit.clone()).await);
    assert_eq!(store.effects("r1").await.expect("read"), [mark(&fence, &a, 3_000)]);
    assert_eq!(kinds_of(&store, "r1").await[3..], ["budget.charged", "effect.marked"]);

    // B5: a repeated commit charges once, and does not even say so twice.
    let before = everything(&store, "r1").await;
    assert_done(store.commit(commit.clone()).await);
    assert_eq!(everything(&store, "r1").await, before);

    // Whoever has lost the run meanwhile is told so, and does not act on it.
    store.abandon("r1", "ann", "test", Vec::new(), at(4_000)).await.expect("abandoned");
    assert_fenced(store.commit(commit).await);
    assert_fenced(store.commit(marking(&fence, &a, 3_000)).await);
}

#[tokio::test]
async fn r7_a_mark_that_is_refused_charges_nothing() {
    let (_place, store) = store().await;
    let (fence, a) = capped(&store, "r1", &[("emails", "1")]).await;
    let settled = EffectRecord { state: EffectState::Succeeded, ..mark(&fence, &a, 2_100) };
    assert_done(store.commit(Commit { effect: Some(settled), ..Commit::new(fence.clone(), at(2_100)) }).await);
    let commit = Commit { effect: Some(mark(&fence, &a, 3_000)), ..charging(&fence, "a", "d1", &[("emails", "1")]) };
    assert_inconsistent(store.commit(commit).await, "succeeded");
    assert_eq!(used(&store, "r1", "emails").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn b3_of_two_workers_at_99_of_100_one_goes_on() {
    for round in 0..5 {
        let place = Place::new();
        let stores = [place.open().await, place.open().await];
        publish(&stores[0], NewRun { caps: caps(&[("emails", "100")]), ..new_run("root") }).await;
        let mut fences = Vec::new();
        for (store, child) in stores.iter().zip(["c1", "c2"]) {
            publish(store, new_run(child)).await;
            let adopt = "UPDATE @runs SET parent_id = 'root', root_id = 'root', invocation_key = $1 WHERE id = $1";
            break_with(store, adopt, args![child]).await;
            fences.push(claim_step(store, child, "w1", "a", &format!("d-{child}"), 2_000).await.0);
        }
        assert_done(stores[0].commit(charging(&fences[0], "a", "earlier", &[("emails", "99")])).await);
        let (one, two) = tokio::join!(
            stores[0].commit(charging(&fences[0], "a", "d-c1", &[("emails", "1")])),
            stores[1].commit(charging(&fences[1], "a", "d-c2", &[("emails", "1")])),
        );
        let (one, two) = (one.expect("answered"), two.expect("answered"));
        assert_eq!(
            [&one, &two].iter().filter(|answer| ***answer == Committed::Done).count(),
            1,
            "{round}: {one:?} {two:?}"
        );
        assert_eq!(used(&stores[0], "root", "emails").await, "100");
        assert_eq!(used(&stores[0], "c1", "emails").await, "0", "the root owns the budget");
    }
}

#[tokio::test]
async fn b4_a_run_that_lost_its_root_has_no_budget() {
    let (_place, store) = store().await;
    let (fence, _) = capped(&store, "r1", &[]).await;
    let adopt = "UPDATE @runs SET parent_id = $2, invocation_key = 'k' WHERE id = $1";
    break_with(&store, adopt, args!["r1", "gone"]).await;
    assert_inconsistent(store.commit(charging(&fence, "a", "d1", &[("emails", "1")])).await, "gone is gone");

    publish(&store, new_run("r2")).await;
    break_with(&store, adopt, args!["r1", "r2"]).await;
    break_with(&store, adopt, args!["r2", "r1"]).await;
    assert_inconsistent(store.commit(charging(&fence, "a", "d1", &[("emails", "1")])).await, "circle");
    assert_eq!(store.budget("r1").await.expect("read").used, BTreeMap::new());
}

#[tokio::test]
async fn b5_a_reclaimed_attempt_is_charged_again_and_an_overdraw_has_a_key_of_its_own() {
    let (_place, store) = store().await;
    let (fence, a) = capped(&store, "r1", &[("emails", "3")]).await;
    assert_done(store.commit(charging(&fence, "a", &a.dispatch, &[("emails", "1")])).await);
    let mut overdraw = charging(&fence, "a", &a.dispatch, &[("emails", "1")]);
    if let Some(charge) = &mut overdraw.charge {
        charge.key.request = Some(4);
    }
    assert_done(store.commit(overdraw.clone()).await);
    assert_done(store.commit(overdraw).await);
    assert_eq!(used(&store, "r1", "emails").await, "2");

    let (later, again) = claim_step(&store, "r1", "w2", "a", "d2", 60_000).await;
    assert_eq!(again.dispatch, a.dispatch);
    assert_done(store.commit(charging(&later, "a", &again.dispatch, &[("emails", "1")])).await);
    assert_eq!(used(&store, "r1", "emails").await, "3");
    let keys: Vec<_> = store.budget("r1").await.expect("read").charges.into_iter().map(|charge| charge.key).collect();
    assert_eq!(
        keys.iter().map(|key| (key.generation, key.request)).collect::<Vec<_>>(),
        [(1, None), (1, Some(4)), (2, None)]
    );
}

#[tokio::test]
async fn b5_a_commit_that_goes_further_under_a_charged_key_charges_nothing() {
    let (_place, store) = store().await;
    let (fence, a) = capped(&store, "r1", &[("emails", "1")]).await;
    let charge = charging(&fence, "a", &a.dispatch, &[("emails", "1")]);
    assert_done(store.commit(charge.clone()).await);
    let settling = Commit { charge: charge.charge, ..completing(&fence, &a, "1", 3_100) };
    assert_done(store.commit(settling).await);
    assert_eq!(used(&store, "r1", "emails").await, "1");
    assert_eq!(step_of(&store, "r1", "a").await.state, StepState::Completed);
}

#[tokio::test]
async fn b5_a_refund_gives_back_a_dispatch_at_a_generation_once() {
    let (_place, store) = store().await;
    let (fence, a) = capped(&store, "r1", &[("emails", "3")]).await;
    assert_done(store.commit(charging(&fence, "a", "other", &[("emails", "1")])).await);
    let charge = charging(&fence, "a", &a.dispatch, &[("emails", "1"), ("usd", "0.5")]);
    assert_done(store.commit(charge.clone()).await);
    let mut overdraw = charging(&fence, "a", &a.dispatch, &[("emails", "1")]);
    if let Some(charge) = &mut overdraw.charge {
        charge.key.request = Some(1);
    }
    assert_done(store.commit(overdraw).await);
    assert_eq!(used(&store, "r1", "emails").await, "3");

    let key = ChargeKey { dispatch: a.dispatch.clone(), generation: fence.generation, request: None };
    let refund = Commit { refund: Some(key), ..Commit::new(fence.clone(), at(3_100)) };
    assert_done(store.commit(refund.clone()).await);
    let before = everything(&store, "r1").await;
    assert_done(store.commit(refund).await);
    assert_eq!(used(&store, "r1", "emails").await, "1", "the other dispatch keeps its charge");
    assert_eq!(used(&store, "r1", "usd").await, "0");
    let updated = |text: String| text.replace("3000", "").replace("3100", "");
    assert_eq!(updated(everything(&store, "r1").await), updated(before), "given back once");
    // What was given back and acts again is charged again.
    assert_done(store.commit(charge).await);
    assert_eq!(used(&store, "r1", "usd").await, "0.5");
}
