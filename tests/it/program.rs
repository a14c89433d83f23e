//! The program as a shell sees it: exit codes and documents of `run`, scopes, and `action invoke`.

use std::process::{Command, Output};

use serde_json::{Value, json};

use super::support::{World, program, push};

/// A world with the probe and the invoices in its store, and its policy in a file.
async fn world() -> World {
    let world = World::new();
    world.extend_policy("[app.billing]");
    std::fs::write(world.folder.path().join("tollgate.toml"), world.policy_text()).expect("the folder is ours");
    let host = world.probe().await;
    push(&host, "billing", "invoices").await;
    world
}

/// Runs the program in the world's folder, with `--json`, and answers its exit code and its document.
fn tollgate(world: &World, arguments: &[&str]) -> (i32, Value) {
    let output = output(world, &[arguments, &["--json"]].concat());
    let document = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{arguments:?}: {error}\n{}", String::from_utf8_lossy(&output.stderr));
    });
    (output.status.code().expect("nothing killed it"), document)
}

fn output(world: &World, arguments: &[&str]) -> Output {
    let mut command = Command::new(program());
    command
        .current_dir(world.folder.path())
        .env("TOLLGATE_STORE", format!("sqlite:{}", world.store_path().display()))
        .env_remove("TOLLGATE_CRASH_AT")
        .args(arguments);
    command.output().expect("it starts")
}

/// A workflow of one step of the probe, in a file.
fn workflow(world: &World, action: &str, run: &Value) -> String {
    let name = format!("{action}.yaml");
    let text = format!(
        "workflow: test/{action}\nparams: {{ type: object, properties: {{ n: {{ type: integer }} }} }}\nsteps:\n  - id: only\n    \
         action: probe/{action}\n    with: {}\noutputs: {{ result: \"{{{{ steps.only.output }}}}\" }}\n",
        json!({ "plan": [{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }], "run": run })
    );
    std::fs::write(world.folder.path().join(&name), text).expect("the folder is ours");
    name
}

#[track_caller]
fn keys_of_a_run(document: &Value) {
    let mut keys: Vec<&str> = document.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let documented = [
        "dependency",
        "existing",
        "failure",
        "holder",
        "next",
        "outputs",
        "requests",
        "run",
        "state",
        "step",
        "until",
        "workflow",
    ];
    assert_eq!(keys, documented);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_the_code_and_the_document_of_how_it_stands() {
    let world = world().await;

    let (exit, done) = tollgate(&world, &["run", &workflow(&world, "pure-op", &json!([{ "do": "count" }]))]);
    keys_of_a_run(&done);
    assert_eq!(
        (exit, &done["state"], &done["outputs"]["result"]),
        (0, &json!("completed"), &json!({ "results": [1] }))
    );
    assert_eq!((&done["existing"], &done["failure"], &done["next"]), (&json!(false), &Value::Null, &json!([])));

    let file = workflow(&world, "pure-op", &json!([{ "do": "fail", "message": "no", "code": "NO" }]));
    let (exit, failed) = tollgate(&world, &["run", &file]);
    keys_of_a_run(&failed);
    assert_eq!((exit, &failed["state"], &failed["step"]), (4, &json!("failed"), &json!("only")));
    assert_eq!((&failed["failure"]["code"], &failed["failure"]["message"]), (&json!("NO"), &json!("no")));

    let url = format!("{}/v1/messages", world.provider.url);
    let doubt =
        json!([{ "do": "http", "method": "POST", "url": url, "body": "x" }, { "do": "doubt", "message": "who knows" }]);
    let (exit, blocked) = tollgate(&world, &["run", &workflow(&world, "amb-op", &doubt)]);
    keys_of_a_run(&blocked);
    assert_eq!((exit, &blocked["state"], &blocked["step"]), (5, &json!("blocked"), &json!("only")));
    assert_eq!(blocked["failure"]["message"], "who knows");
    assert_eq!(
        (blocked["requests"].as_array().map(Vec::len), &blocked["requests"][0]["attempt"]),
        (Some(1), &json!(1))
    );
    assert!(blocked["next"].to_string().contains("runs resolve"), "{}", blocked["next"]);

    let file = workflow(&world, "pure-op", &json!([{ "do": "wait", "kind": "signal", "key": "paid" }]));
    let (exit, waits) = tollgate(&world, &["run", &file, "--wait", "0"]);
    keys_of_a_run(&waits);
    assert_eq!((exit, &waits["state"], &waits["step"]), (6, &json!("waiting"), &json!("only")));
    assert_eq!(waits["dependency"], json!({ "kind": "signal", "key": "paid", "due": null }));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_is_refused_starts_nothing() {
    let world = world().await;
    let file = workflow(&world, "pure-op", &json!([]));
    std::fs::write(world.folder.path().join("broken.yaml"), "workflow: a/b\nstep: []\n").expect("the folder is ours");
    for (arguments, code) in [
        (&["run", &file, "--param", "n=\"one\""][..], "PARAMS_INVALID"),
        (&["run", &file, "--key", ""], "NAME_INVALID"),
        (&["run", "broken.yaml"], "FILE_INVALID"),
        (&["run", "absent.yaml"], "FILE_UNREADABLE"),
        (&["run", &file, "--budget", "emails=many"], "BUDGET_INVALID"),
        (&["action", "invoke", "billing/triage"], "CONFIG_INVALID"),
        (&["action", "invoke", "billing/triage", "--config", r#"{"csv": 1}"#], "CONFIG_INVALID"),
        (&["action", "invoke", "billing/triage", "--config", r#"{"csv": 1}"#, "--dry-run"], "CONFIG_INVALID"),
        (&["action", "invoke", "billing/triage", "--config", "[]"], "CONFIG_INVALID"),
        (&["action", "invoke", "billing/triage", "--config", "@absent.json"], "FILE_UNREADABLE"),
        (&["action", "invoke", "billing/send"], "ACTION_NOT_FOUND"),
        (&["action", "invoke", "nobody/send"], "ACTION_NOT_FOUND"),
    ] {
        let (exit, refused) = tollgate(&world, arguments);
        assert_eq!(
            (exit, &refused["error"]["code"], &refused["error"]["exit"]),
            (3, &json!(code), &json!(3)),
            "{arguments:?}"
        );
        assert!(refused["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{arguments:?}");
    }
    let (_, listed) = tollgate(&world, &["runs", "list"]);
    assert_eq!(listed["runs"], json!([]));
    let usage = output(&world, &["action", "invoke", "triage"]);
    assert_eq!(usage.status.code(), Some(2));
}

/// S1, from the command line.
#[tokio::test(flavor = "multi_thread")]
async fn a_scope_is_refused_attached_to_or_forced() {
    let world = world().await;
    let file = workflow(&world, "pure-op", &json!([{ "do": "wait", "kind": "signal", "key": "paid" }]));
    let run = |more: &[&str]| tollgate(&world, &[&["run", &file, "--wait", "0", "--scope", "acme"], more].concat());
    let (exit, first) = run(&[]);
    assert_eq!(exit, 6);

    let (exit, refused) = run(&[]);
    assert_eq!((exit, &refused["error"]["code"]), (3, &json!("SCOPE_OCCUPIED")));
    let occupant = first["run"].as_str().expect("it has an id");
    assert!(refused["error"]["message"].as_str().is_some_and(|message| message.contains(occupant)), "{refused}");

    let (exit, attached) = run(&["--attach"]);
    assert_eq!((exit, &attached["run"], &attached["existing"]), (6, &first["run"], &json!(true)));

    let (exit, forced) = run(&["--force"]);
    assert_eq!((exit, &forced["existing"]), (6, &json!(false)));
    assert_ne!(forced["run"], first["run"]);

    for wrong in [&["--attach", "--force"][..], &["--scope", "other"]] {
        let arguments = [&["run", &file, "--scope", "acme"], wrong].concat();
        assert_eq!(output(&world, &arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(output(&world, &["run", &file, "--attach"]).status.code(), Some(2), "attach to what?");
}

/// Everything that holds for a step of a workflow holds for an action by itself: policy, budget, journal.
#[tokio::test(flavor = "multi_thread")]
async fn an_action_is_performed_by_itself() {
    let world = world().await;
    let invoke = |action: &str, config: &Value, more: &[&str]| {
        let config = config.to_string();
        tollgate(&world, &[&["action", "invoke", action, "--config", &config], more].concat())
    };
    let text =
        json!({ "run": [{ "do": "succeed", "output": { "said": "{{ nothing }} {% of this %} means anything" } }] });
    let (exit, done) = invoke("probe/pure-op", &text, &[]);
    keys_of_a_run(&done);
    assert_eq!((exit, &done["workflow"]), (0, &json!("probe/pure-op")));
    assert_eq!(done["outputs"], json!({ "output": { "said": "{{ nothing }} {% of this %} means anything" } }));

    let (exit, failed) =
        invoke("probe/pure-op", &json!({ "run": [{ "do": "fail", "message": "no", "code": "NO" }] }), &[]);
    assert_eq!((exit, &failed["failure"]["code"], &failed["step"]), (4, &json!("NO"), &json!("invoke")));

    let send = json!({
        "plan": [{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }],
        "run": [{ "do": "http", "method": "POST", "url": format!("{}/v1/messages", world.provider.url), "body": "x" }],
    });
    let (exit, forecast) = invoke("probe/amb-op", &send, &["--dry-run", "--budget", "emails=1"]);
    assert_eq!((exit, &forecast["fails"], &forecast["steps"][0]["status"]), (0, &json!(false), &json!("planned")));
    assert_eq!(forecast["budget"]["planned"], json!({ "emails": "1" }));
    let (exit, forecast) = invoke("probe/amb-op", &send, &["--dry-run", "--budget", "emails=0"]);
    assert_eq!((exit, &forecast["budget"]["runs_out"]["dimension"]), (4, &json!("emails")));
    let (exit, over) = invoke("probe/amb-op", &send, &["--budget", "emails=0"]);
    assert_eq!((exit, &over["failure"]["code"]), (4, &json!("WORKFLOW_BUDGET_EXCEEDED")));
    assert_eq!(world.provider.effectful_requests().len(), 0, "nothing has left yet");

    std::fs::write(world.folder.path().join("config.json"), send.to_string()).expect("the folder is ours");
    let from_file =
        ["action", "invoke", "probe/amb-op", "--config", "@config.json", "--budget", "emails=1", "--key", "once"];
    let (exit, sent) = tollgate(&world, &from_file);
    assert_eq!((exit, &sent["existing"]), (0, &json!(false)));
    let (exit, again) = tollgate(&world, &from_file);
    assert_eq!((exit, &again["existing"], &again["run"]), (0, &json!(true), &sent["run"]));
    assert_eq!(world.provider.effects().len(), 1);

    let run = sent["run"].as_str().expect("it has an id");
    let (_, budget) = tollgate(&world, &["budget", "show", run]);
    assert_eq!((&budget["dimensions"][0]["used"], &budget["dimensions"][0]["left"]), (&json!("1"), &json!("0")));
    let (_, shown) = tollgate(&world, &["runs", "show", run]);
    assert_eq!(
        (&shown["params"], &shown["steps"][0]["input"], &shown["effects"][0]["state"]),
        (&send, &send, &json!("succeeded"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_is_shown_what_it_may_touch() {
    let world = world().await;
    let file = super::support::guests().join("mail.wasm");
    let file = file.to_str().expect("its path is text");
    let (exit, inspected) = tollgate(&world, &["component", "inspect", file]);
    assert_eq!(exit, 0);
    let send = &inspected["touches"][0];
    assert_eq!(send["action"], "send");
    let phases: Vec<&String> = send["phases"].as_object().expect("an object").keys().collect();
    assert_eq!(phases, ["describe", "plan", "reconcile", "run"], "it has no authorize");
    let may = |phase: &str, what: &str| send["phases"][phase].as_array().is_some_and(|may| may.contains(&json!(what)));
    assert!(may("run", "effectful HTTP requests"));
    assert!(!may("plan", "effectful HTTP requests") && may("plan", "safe HTTP requests"));
    assert_eq!(send["phases"]["describe"], json!(["logging"]));
    assert!(inspected["compiled_ms"].as_f64() > Some(0.0) && inspected["described_ms"].as_f64() > Some(0.0));
    assert!(inspected["bytes"].as_u64() > Some(0));

    let text = output(&world, &["component", "inspect", file]);
    let text = String::from_utf8(text.stdout).expect("it is text");
    assert!(text.contains("what send may touch (ambiguous)"), "{text}");
}

/// `script`, of bsdutils, which Debian counts as essential, gives the program a terminal.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_sees_how_many_steps_have_ended_and_for_how_long_one_has_been_under_way() {
    let world = world().await;
    let step = |id: &str, run: Value| {
        format!("  - id: {id}\n    action: probe/pure-op\n    with: {}\n", json!({ "run": run }))
    };
    let (slow, quick) = (json!([{ "do": "sleep", "ms": 2_600 }]), json!([{ "do": "count" }]));
    let text = format!("workflow: test/slow\nsteps:\n{}{}", step("slow", slow), step("quick", quick));
    std::fs::write(world.folder.path().join("slow.yaml"), text).expect("the folder is ours");

    let shown = Command::new("script")
        .current_dir(world.folder.path())
        .env("TOLLGATE_STORE", format!("sqlite:{}", world.store_path().display()))
        .env_remove("TOLLGATE_CRASH_AT")
        .args(["--quiet", "--return", "--command", &format!("{} run slow.yaml", program().display()), "/dev/null"])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{text}");
    for part in [
        "0/2  slow  probe/pure-op …",
        "0/2  slow  probe/pure-op …  1 s",
        "1/2  slow  completed",
        "2/2  quick  completed",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
