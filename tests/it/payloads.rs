//! Payloads: what goes in comes out byte for byte, or is refused by a stated rule, and a run always reaches a state that a
//! person can see.
//!
//! The strings are `tests/data/naughty-strings.json`, whose licence lies beside it.

use serde_json::{Value, json};
use tollgate::json as gate;
use tollgate::run::{Ended, StartError, StartRun};

use super::support::{World, failure, last_record, one_step, options, parse, run};

fn naughty_strings() -> Vec<String> {
    let text = include_str!("../data/naughty-strings.json");
    serde_json::from_str(text).expect("the file is a list of strings")
}

/// A workflow that hands its parameter through the probe and out again.
fn passing_on() -> tollgate::workflow::Workflow {
    parse(
        "workflow: test/pass\nparams: { type: object }\nsteps:\n  - id: only\n    action: probe/pure-op\n    with: { run: [{ do: \
         succeed, output: \"{{ params.value }}\" }] }\n    saveAs: result\noutputs: { result: \"{{ result }}\", text: \"<{{ \
         params.text }}>\" }\n",
    )
}

async fn passed_on(host: &tollgate::host::Host, value: &Value, text: &str) -> Value {
    let params = json!({ "value": value, "text": text });
    let started = host.start(StartRun { params, ..StartRun::of(passing_on()) }).await.expect("it starts");
    let ended = host.drive(&started.run, options("test")).await.expect("it is driven");
    let Ended::Completed { outputs } = ended else { panic!("{ended:?}") };
    let stored = host.store.run(&started.run).await.expect("it answers").expect("it is there");
    assert_eq!(stored.outputs.as_deref(), Some(outputs.as_str()), "what is stored is what came out");
    serde_json::from_str(&outputs).expect("outputs are JSON")
}

/// Runs one step of the probe whose instructions come by a parameter: nothing in them is taken for an expression.
async fn run_by_params(host: &tollgate::host::Host, action: &str, instructions: &[Value]) -> (String, Ended) {
    let workflow = parse(&format!(
        "workflow: test/params\nsteps:\n  - id: only\n    action: probe/{action}\n    with: {{ run: \"{{{{ params.run }}}}\" }}\n    \
         saveAs: result\noutputs: {{ result: \"{{{{ result }}}}\" }}\n"
    ));
    let params = json!({ "run": instructions });
    let started = host.start(StartRun { params, ..StartRun::of(workflow) }).await.expect("it starts");
    let ended = host.drive(&started.run, options("test")).await.expect("it is driven");
    (started.run, ended)
}

/// Every string, as a value and as a key of an object, through params, input, guest, output and store.
#[tokio::test(flavor = "multi_thread")]
async fn naughty_strings_pass_through_a_run_unchanged() {
    let world = World::new();
    world.edit_policy("output = \"64KiB\"", "output = \"1MiB\"");
    let host = world.probe().await;
    let strings = naughty_strings();
    assert!(strings.len() > 400, "the list is whole");
    let by_key: serde_json::Map<String, Value> = strings.iter().map(|string| (string.clone(), json!(string))).collect();
    let value = json!({ "list": strings, "by key": by_key });
    let outputs = passed_on(&host, &value, "x").await;
    assert_eq!(outputs["result"], value);
}

/// Written into a text, a string stays what it is: nothing is escaped, expanded or evaluated again.
#[tokio::test(flavor = "multi_thread")]
async fn naughty_strings_are_written_into_texts_as_they_are() {
    let world = World::new();
    let host = world.probe().await;
    let all = naughty_strings().join("\n");
    let outputs = passed_on(&host, &json!(null), &all).await;
    assert_eq!(outputs["text"], json!(format!("<{all}>")));
}

/// A guest's messages, codes and log lines are stored; NUL is replaced, nothing else changes.
#[tokio::test(flavor = "multi_thread")]
async fn naughty_strings_in_messages_can_always_be_stored() {
    let world = World::new();
    world.edit_policy("logs = \"4KiB\"", "logs = \"1MiB\"");
    let host = world.probe().await;
    let strings = naughty_strings();
    let all = format!("{}\u{0}", strings.join("\n"));
    let logs: Vec<Value> = strings.iter().map(|string| json!({ "do": "log", "message": string })).collect();
    let mut instructions = logs;
    instructions.push(json!({ "do": "fail", "message": all, "code": strings[400], "details": { "all": strings } }));
    let (id, ended) = run_by_params(&host, "pure-op", &instructions).await;
    let Ended::Failed { failure } = ended else { panic!("{ended:?}") };
    let expected = gate::replace_nul(&all);
    // A message is kept up to 16 KiB.
    assert!(expected.starts_with(failure.message.as_str()), "{}", failure.message);
    assert!(failure.message.len() > 8 << 10);
    assert_eq!(failure.details, Some(json!({ "all": strings })));
    let record = last_record(&host, &id).await;
    assert_eq!(record.logs.len(), strings.len());
    for (line, string) in record.logs.iter().zip(&strings) {
        assert_eq!(*line, format!("info: {}", gate::replace_nul(string)));
    }
}

/// Start keys, scopes and labels: returned byte-equal, or refused by the stated rule (1 to 256 bytes, no NUL).
#[tokio::test(flavor = "multi_thread")]
async fn naughty_strings_as_keys_scopes_and_labels() {
    let world = World::new();
    let host = world.probe().await;
    let workflow = one_step("pure-op", &json!({}), "");
    for string in naughty_strings() {
        let start = StartRun {
            key: Some(string.clone()),
            scope: Some(string.clone()),
            labels: [(string.clone(), string.clone())].into(),
            ..StartRun::of(workflow.clone())
        };
        match host.start(start.clone()).await {
            Ok(started) => {
                assert!((1..=256).contains(&string.len()) && !string.contains('\0'), "{string:?}");
                let stored = host.store.run(&started.run).await.expect("it answers").expect("it is there");
                assert_eq!(stored.start_key.as_deref(), Some(string.as_str()));
                assert_eq!(stored.scope.as_deref(), Some(string.as_str()));
                let labels: Value = serde_json::from_str(&stored.labels).expect("labels are JSON");
                assert_eq!(labels, json!({ string.clone(): string }));
                let again = host.start(start).await.unwrap_or_else(|error| panic!("{string:?}: {error}"));
                assert_eq!((again.run, again.existing), (started.run, true), "{string:?}");
            }
            Err(StartError::Name(why)) => {
                assert!(!(1..=256).contains(&string.len()) || string.contains('\0'), "{string:?}: {why}");
            }
            Err(other) => panic!("{string:?}: {other}"),
        }
    }
}

/// Ids are found by prefix as text, never as a pattern.
#[tokio::test(flavor = "multi_thread")]
async fn s3_no_naughty_string_is_taken_for_a_pattern() {
    let world = World::new();
    let host = world.probe().await;
    run(&host, one_step("pure-op", &json!({}), "")).await;
    for string in naughty_strings().into_iter().filter(|string| !string.is_empty()) {
        let hexadecimal = string.len() <= 32 && string.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !hexadecimal {
            assert!(host.store.resolve_prefix(&string).await.is_err(), "{string:?} names no run");
        }
    }
}

/// Documents: keys of 1 to 512 bytes without NUL and their values come back byte-equal; others are refused to the guest.
#[tokio::test(flavor = "multi_thread")]
async fn naughty_strings_as_documents() {
    let world = World::new();
    world.edit_policy("output = \"64KiB\"", "output = \"1MiB\"");
    let host = world.probe().await;
    let strings = naughty_strings();
    let mut instructions: Vec<Value> =
        strings.iter().map(|string| json!({ "do": "doc-put", "key": string, "value": string })).collect();
    instructions.extend(strings.iter().map(|string| json!({ "do": "doc-get", "key": string })));
    let (_, ended) = run_by_params(&host, "tx-op", &instructions).await;
    let Ended::Completed { outputs } = ended else { panic!("{ended:?}") };
    let outputs: Value = serde_json::from_str(&outputs).expect("outputs are JSON");
    let results = outputs["result"]["results"].as_array().expect("the probe answers with results");
    for (string, found) in strings.iter().zip(&results[strings.len()..]) {
        if (1..=512).contains(&string.len()) && !string.contains('\0') {
            assert_eq!(*found, json!(string));
            let stored = tollgate::journal::Journal::document(&host.store, "probe", string).await.expect("it answers");
            assert_eq!(stored, Some(gate::canonical(&json!(string))), "{string:?}");
        } else {
            assert!(found["error"].is_string(), "{string:?}: {found}");
        }
    }
}

/// Integers within 64 bits keep their digits everywhere; larger ones are refused where they enter, with what to do.
#[tokio::test(flavor = "multi_thread")]
async fn digits_come_out_as_they_went_in() {
    let world = World::new();
    let host = world.probe().await;
    let numbers = json!([3_544_790_567_247_868_102_u64, u64::MAX, i64::MIN, i64::MAX, 0, -1, 0.1, 1e300, 1.0]);
    let outputs = passed_on(&host, &numbers, "3544790567247868102").await;
    assert_eq!(gate::canonical(&outputs["result"]), gate::canonical(&numbers));

    for text in ["18446744073709551616", "-9223372036854775809", "[1, 99999999999999999999]"] {
        let error = gate::parse(text, 1024).expect_err(text).to_string();
        assert!(error.contains("text"), "{text}: {error}");
        let refused = failure(&host, "pure-op", json!({ "run": [{ "do": "succeed-raw", "text": text }] })).await;
        assert_eq!(refused.code, tollgate::journal::codes::OUTCOME_REFUSED);
        assert!(refused.message.contains("text"), "{refused:?}");
    }
}

/// NUL and lone surrogates in an output: kept escaped, or refused with a clear error.
#[tokio::test(flavor = "multi_thread")]
async fn nul_is_kept_and_a_lone_surrogate_is_refused() {
    let world = World::new();
    let host = world.probe().await;
    let kept = json!({ "run": [{ "do": "succeed-raw", "text": "\"a\\u0000b\"" }] });
    let (_, ended) = run(&host, one_step("pure-op", &kept, "")).await;
    let Ended::Completed { outputs } = ended else { panic!("{ended:?}") };
    assert_eq!(outputs, r#"{"result":"a\u0000b"}"#);
    for text in [r#""\ud800""#, r#""\udc00\ud800""#, "\"\\u00", "nul", ""] {
        let refused = failure(&host, "pure-op", json!({ "run": [{ "do": "succeed-raw", "text": text }] })).await;
        assert_eq!(refused.code, tollgate::journal::codes::OUTCOME_REFUSED, "{text}: {refused:?}");
        assert!(!refused.retryable);
    }
}
