//! What leaves, what is refused before it does, and what the evidence says of both (R7, R12, R16, section 6).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate::budget::Allowance;
use tollgate::capability::Phase;
use tollgate::clock::{Ambient, Clock, SystemClock};
use tollgate::component::HttpNeed;
use tollgate::effect::EffectClass;
use tollgate::egress::{Egress, EgressConfig, EgressError, Outgoing};
use tollgate::host::Host;
use tollgate::journal::{Denial, RequestEvidence, codes};
use tollgate::policy::{Policy, Secrets};
use tollgate::run::Ended;
use tollgate::worker::lease::Lease;

use super::support::{Performed, World, perform, used};

/// A request, and what else the instruction says.
fn http(world: &World, method: &str, path: &str, more: Value) -> Value {
    let mut instruction = json!({ "do": "http", "method": method, "url": format!("{}{path}", world.provider.url) });
    instruction.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    instruction
}

fn post(world: &World, body: &str) -> Value {
    http(world, "POST", "/v1/messages", json!({ "body": body }))
}

/// As [`post`], not waited for.
fn fire_and_forget(world: &World, body: &str) -> Value {
    let mut instruction = post(world, body);
    instruction["do"] = "http-fire-and-forget".into();
    instruction
}

/// Announces three metered requests and makes those of `run`.
fn with(run: Value) -> Value {
    json!({ "plan": [{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "3" }] }], "run": run })
}

async fn act(world: &World, action: &str, run: Value) -> Performed {
    perform(&world.probe().await, action, &with(run), "").await
}

/// Whether each result is an error, and the error's text.
#[track_caller]
fn errors(performed: &Performed) -> Vec<Option<String>> {
    performed.results().iter().map(|result| result["error"].as_str().map(str::to_owned)).collect()
}

/// The one refusal of an attempt.
#[track_caller]
fn denial(performed: &Performed) -> &Denial {
    match performed.record.denials.as_slice() {
        [denial] => denial,
        denials => panic!("one refusal is expected: {denials:?}"),
    }
}

/// Nothing of a request reached the network.
#[track_caller]
fn never_left(request: &RequestEvidence) {
    assert!(request.left_at.is_none() && request.status.is_none() && request.heard_at.is_none(), "{request:?}");
    assert!(request.error.is_some(), "{request:?}");
}

const EXAMPLE: &str = "{provider}";

// ---- Section 6: nothing is reachable by default, and the remedy is exact -------------------------------------------

/// Without a rule `run` of `action` is refused; with the lines of the refusal in the policy it is not.
async fn check_missing_rule(action: &str, phase: &str, instruction: Value, expected: &str) {
    let world = World::new();
    let text = world.policy_text();
    let rules = text.find("[[app.probe.http]]").expect("the policy has rules");
    world.edit_policy(&text[rules..], "");
    let mut given = with(json!([]));
    given[phase] = json!([instruction_at(&world, &instruction)]);

    let performed = perform(&world.probe().await, action, &given, "").await;
    let denial = denial(&performed).clone();
    assert_eq!(denial.phase, phase);
    assert_eq!(denial.remedy, expected.replace(EXAMPLE, &world.provider.url));
    assert_eq!(denial.reason, format!("no rule of the policy grants it to probe/{action}"));
    never_left(&performed.record.requests[0]);
    if phase == "run" {
        // Whoever reads the guest's own error learns it too.
        let error = errors(&performed)[0].clone().expect("it is refused");
        assert!(error.contains(&denial.remedy) && error.contains(&denial.capability), "{error}");
    }
    assert!(world.provider.requests().is_empty());

    world.extend_policy(&denial.remedy);
    let performed = perform(&world.probe().await, action, &given, "").await;
    assert!(matches!(performed.ended, Ended::Completed { .. }), "{performed:?}");
    assert_eq!(performed.record.denials, []);
    assert_eq!(world.provider.requests().len(), 1);
}

/// The instruction with the provider's address in it.
fn instruction_at(world: &World, instruction: &Value) -> Value {
    serde_json::from_str(&instruction.to_string().replace(EXAMPLE, &world.provider.url)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_rule_grants_is_refused_with_the_lines_that_grant_it() {
    let post = json!({ "do": "http", "method": "POST", "url": "{provider}/v1/messages?draft=1", "body": "x" });
    let lines = "[[app.probe.http]]\nactions = [\"amb-op\"]\nurl = \"{provider}/v1/messages\"\nmethods = [\"POST\"]\n\
                 addresses = [\"127.0.0.1/32\"]";
    check_missing_rule("amb-op", "run", post.clone(), lines).await;
    let lines = "[[app.probe.http]]\nactions = [\"idem-op\"]\nurl = \"{provider}/v1/messages\"\nmethods = [\"POST\"]\n\
                 addresses = [\"127.0.0.1/32\"]\nidempotency = { header = \"Idempotency-Key\" }";
    check_missing_rule("idem-op", "run", post, lines).await;
    // Where only safe requests may be made, the lines say safe.
    let get = json!({ "do": "http", "url": "{provider}/health" });
    let lines = "[[app.probe.http]]\nactions = [\"amb-op\"]\nurl = \"{provider}/health\"\nmethods = [\"GET\"]\nsafe = true\n\
                 addresses = [\"127.0.0.1/32\"]";
    check_missing_rule("amb-op", "authorize", get, lines).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_not_public_is_refused_unless_the_rule_names_its_range() {
    // By address and by name: what is checked is what is dialled.
    for host in ["127.0.0.1", "localhost"] {
        let world = World::new();
        let url = world.provider.url.replace("127.0.0.1", host);
        world
            .edit_policy("\"127.0.0.0/8\"", "\"10.0.0.0/8\", \"192.168.0.0/16\"")
            .edit_policy(&world.provider.url, &url);
        let run = json!([{ "do": "http", "method": "POST", "url": format!("{url}/v1/messages"), "body": "x" }]);
        let performed = act(&world, "amb-op", run.clone()).await;
        let denial = denial(&performed).clone();
        let address = if denial.reason.contains("::1") { "::1/128" } else { "127.0.0.1/32" };
        assert_eq!(denial.remedy, format!("addresses = [\"10.0.0.0/8\", \"192.168.0.0/16\", \"{address}\"]"));
        assert!(denial.reason.ends_with("which is loopback"), "{denial:?}");
        assert_eq!(denial.capability, format!("POST {url}/v1/messages"));
        never_left(&performed.record.requests[0]);
        assert!(world.provider.requests().is_empty());

        // The line takes the place of the rule's own.
        world.edit_policy("addresses = [\"10.0.0.0/8\", \"192.168.0.0/16\"]", &denial.remedy);
        if address.starts_with("127") {
            let performed = act(&world, "amb-op", run).await;
            assert_eq!(errors(&performed), [None]);
            assert_eq!(world.provider.effects().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_action_needs_the_operator_to_vouch_for_the_key() {
    let world = World::new();
    world.edit_policy("idempotency = { header = \"Idempotency-Key\", window = \"24h\" }\n", "");
    let performed = act(&world, "idem-op", json!([post(&world, "x")])).await;
    assert_eq!(denial(&performed).remedy, "idempotency = { header = \"Idempotency-Key\" }");
    assert!(denial(&performed).reason.contains("vouches"), "{:?}", denial(&performed));
    assert!(world.provider.requests().is_empty());
    // An ambiguous action promises nothing that the other end would have to keep.
    assert_eq!(errors(&act(&world, "amb-op", json!([post(&world, "x")])).await), [None]);

    world.edit_policy(
        "visible_within = \"1s\"",
        "visible_within = \"1s\"\nidempotency = { header = \"Idempotency-Key\" }",
    );
    assert_eq!(errors(&act(&world, "idem-op", json!([post(&world, "x")])).await), [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effectful_request_leaves_in_run_alone() {
    let world = World::new();
    let host = world.probe().await;
    for action in ["idem-op", "amb-op"] {
        for phase in ["authorize", "plan"] {
            let performed = perform(&host, action, &json!({ phase: [post(&world, "x")] }), "").await;
            let denial = denial(&performed);
            assert_eq!(
                (denial.phase.as_str(), denial.remedy.as_str()),
                (phase, "if it changes nothing at the other end: safe = true",)
            );
            // Line 16 is the rule for POST.
            assert!(denial.reason.contains("rule at line 16 of tollgate.toml"), "{denial:?}");
            never_left(&performed.record.requests[0]);
        }
    }
    assert!(world.provider.requests().is_empty());
}

/// cases.md: a redirect to another host, or to 169.254.169.254, is checked as a request of its own.
#[tokio::test(flavor = "multi_thread")]
async fn no_redirect_is_followed_and_where_it_leads_is_judged_on_its_own() {
    let world = World::new();
    let metadata = "http://169.254.169.254/latest/meta-data";
    let follow = json!([
        http(&world, "GET", &format!("/redirect?to={metadata}"), json!({ "with_headers": true })),
        { "do": "http", "url": metadata },
    ]);
    let performed = act(&world, "amb-op", follow.clone()).await;
    let results = performed.results();
    assert_eq!((&results[0]["status"], &results[0]["headers"]["location"]), (&json!(302), &json!(metadata)));
    assert!(results[1]["error"].as_str().unwrap().contains("no rule of the policy grants it"), "{}", results[1]);
    assert_eq!(world.provider.requests().len(), 1);

    // Nor does a rule for the host open the address.
    world.extend_policy(
        "[[app.probe.http]]\nurl = \"http://169.254.169.254/**\"\nmethods = [\"GET\"]\nsafe = true\n\
         addresses = [\"10.0.0.0/8\"]",
    );
    let performed = act(&world, "amb-op", follow).await;
    assert!(denial(&performed).reason.contains("a cloud metadata service"), "{:?}", denial(&performed));
    never_left(&performed.record.requests[1]);
}

// ---- R1, R16: one key, one request ---------------------------------------------------------------------------------

/// Makes the requests in one attempt and says for each whether it went, and under what key the provider saw those.
async fn check_keys(
    (world, host): (&World, &Host),
    action: &str,
    requests: &[(&str, Option<&str>, &str)],
    expected: &[Result<&str, &str>],
) {
    let before = world.provider.effects().len();
    let run: Vec<Value> = requests
        .iter()
        .map(|(path, label, body)| {
            let headers = label.map_or(json!({}), |label| json!({ "Idempotency-Key": label }));
            http(world, "POST", path, json!({ "headers": headers, "body": body }))
        })
        .collect();
    let performed = perform(host, action, &with(json!(run)), "").await;
    let own = format!("workflow:{}:step:only", performed.run);
    let mut keys = Vec::new();
    for (error, expected) in errors(&performed).into_iter().zip(expected) {
        match (error, expected) {
            (None, Ok(suffix)) => keys.push(format!("{own}{suffix}")),
            (Some(error), Err(says)) => assert!(error.contains(says), "{error}"),
            (found, expected) => panic!("{requests:?}: {expected:?} was expected: {found:?}"),
        }
    }
    let seen: Vec<Value> = world.provider.effects()[before..].iter().map(|effect| effect["key"].clone()).collect();
    assert_eq!(seen, keys, "{requests:?}");
    let evidence: Vec<_> = performed.record.requests.iter().filter(|request| request.left_at.is_some()).collect();
    assert_eq!(evidence.iter().map(|request| request.key.clone().unwrap()).collect::<Vec<_>>(), keys);
    assert_eq!(performed.record.denials.len(), expected.iter().filter(|expected| expected.is_err()).count());
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_the_host_writes_the_key_and_the_guest_can_only_label_it() {
    let world = World::new();
    let world = &(&world, &world.probe().await);
    let (path, no_label) = ("/v1/messages", "is not a label");
    for action in ["idem-op", "amb-op"] {
        check_keys(*world, action, &[(path, None, "a")], &[Ok("")]).await;
        check_keys(*world, action, &[(path, Some("forged"), "a")], &[Ok("/forged")]).await;
        for forged in ["workflow:another:step:only", "a b", "a/b", "", &"x".repeat(65)] {
            check_keys(*world, action, &[(path, Some(forged), "a")], &[Err(no_label)]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_second_request_under_one_key_must_be_the_same_and_from_an_ambiguous_action_must_not_be() {
    let world = World::new();
    let world = &(&world, &world.probe().await);
    let (path, other) = ("/v1/messages", "/v1/other");
    let (differs, same) = ("differs in method, URL or body", "makes an effectful request once");
    for action in ["idem-op", "amb-op"] {
        check_keys(*world, action, &[(path, None, "a"), (path, None, "b")], &[Ok(""), Err(differs)]).await;
        check_keys(*world, action, &[(path, None, "a"), (other, None, "a")], &[Ok(""), Err(differs)]).await;
        let labels = [(path, None, "a"), (path, Some("one"), "b"), (other, Some("two"), "b")];
        check_keys(*world, action, &labels, &[Ok(""), Ok("/one"), Ok("/two")]).await;
        let under_a_label = [(path, Some("one"), "a"), (path, Some("one"), "b")];
        check_keys(*world, action, &under_a_label, &[Ok("/one"), Err(differs)]).await;
    }
    let twice = [(path, None, "a"), (path, None, "a")];
    check_keys(*world, "idem-op", &twice, &[Ok(""), Ok("")]).await;
    check_keys(*world, "amb-op", &twice, &[Ok(""), Err(same)]).await;
}

/// R16: a request of which no byte left holds no key. A refused connection is one.
#[tokio::test(flavor = "multi_thread")]
async fn r12_r16_a_refused_connection_is_nothing_left_and_everything_is_given_back() {
    let world = World::new();
    let nobody = unused_port();
    world.extend_policy(&format!(
        "[[app.probe.http]]\nurl = \"{nobody}/**\"\nmethods = [\"POST\"]\nmeter = {{ emails = 1 }}\n\
         addresses = [\"127.0.0.0/8\"]"
    ));
    let request = |body: &str| json!({ "do": "http", "method": "POST", "url": format!("{nobody}/m"), "body": body });
    let fails = json!({ "do": "fail", "message": "nobody there", "if_last": "error" });
    let host = world.probe().await;
    let run = json!([request("a"), request("a"), request("b"), request("c"), request("d"), fails]);
    let performed = perform(&host, "amb-op", &with(run), "").await;
    assert_eq!(performed.failure().message, "nobody there");
    for request in &performed.record.requests {
        never_left(request);
        assert!(request.error.as_ref().unwrap().contains("cannot connect"), "{request:?}");
    }
    // Five of three that the plan announced: what did not leave drew nothing.
    assert_eq!((performed.record.requests.len(), performed.record.denials.len()), (5, 0));
    assert_eq!(used(&host, &performed.run, "emails").await, "0");
}

/// A URL at which nobody listens.
fn unused_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

// ---- Secrets --------------------------------------------------------------------------------------------------------

/// cases.md: a secret in a log, an event, an error: nowhere, ever.
async fn check_secret(auth: &str, source: &str, header: &str, shown: &str, secrets: &[&str]) {
    let world = World::new();
    let auth = format!("safe = true\nauth = {auth}");
    world
        .edit_policy("safe = true", &auth)
        .edit_policy(
            "methods = [\"POST\"]",
            &format!("methods = [\"POST\"]\nauth = {}", &auth["safe = true\nauth = ".len()..]),
        )
        .extend_policy(&format!("[secrets]\nword = {source}"));
    let echo = json!({ "headers": { header: "the guest's own" } });
    let run = json!([
        http(&world, "GET", "/echo", echo.clone()),
        http(&world, "POST", "/v1/messages", json!({ "body": "hello", "headers": { header: "the guest's own" } })),
        { "do": "stderr", "message": "done" },
    ]);
    let host = world.probe().await;
    let performed = perform(&host, "amb-op", &with(run), "").await;
    let results = performed.results();
    let echoed: Value = serde_json::from_str(results[0]["body"].as_str().unwrap()).unwrap();
    // That it was redacted proves that the provider got it, to the letter: only exact occurrences are.
    assert_eq!(echoed["headers"][header], shown, "{echoed}");
    assert_eq!(results[1]["status"], 202);

    // A connection that breaks says why, and nothing more.
    world.provider.control(&json!({ "mode": "drop", "times": 1 }));
    let broken =
        perform(&host, "amb-op", &with(json!([post(&world, "again"), { "do": "panic", "message": "no" }])), "").await;
    let told = format!("{performed:?} {broken:?} {host:?} {:?}", host.policy);
    drop(host);
    for secret in secrets {
        assert!(!told.contains(secret), "the secret is in what the library returned");
        for file in std::fs::read_dir(world.folder.path()).unwrap() {
            let path = file.unwrap().path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("store.db")) {
                assert!(!contains(&path, secret), "the secret is in {}", path.display());
            }
        }
    }
    // The search would find it.
    assert!(contains(&world.store_path(), "the guest's own") || contains(&wal(&world), "the guest's own"));
}

fn contains(path: &Path, text: &str) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn wal(world: &World) -> std::path::PathBuf {
    world.folder.path().join("store.db-wal")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_reaches_the_provider_and_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let secret = "s3cr3t-t0ken-9f2c";
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let from_file = format!("{{ file = \"{}\" }}", file.display());
    let bearer = "{ bearer = \"word\" }";
    check_secret(bearer, &from_file, "authorization", "Bearer [redacted]", &[secret]).await;
    // Basic credentials travel encoded: "ada:" and the secret.
    let encoded = "YWRhOnMzY3IzdC10MGtlbi05ZjJj";
    let basic = "{ basic = { user = \"ada\", password = \"word\" } }";
    check_secret(basic, &from_file, "authorization", "Basic [redacted]", &[secret, encoded]).await;
    // From the environment, with a variable that cargo sets for every test: setting one is not safe.
    let variable = std::env::var("CARGO_PKG_DESCRIPTION").expect("cargo sets it");
    let header = "{ header = { name = \"x-api-key\", value = \"word\" } }";
    check_secret(header, "{ env = \"CARGO_PKG_DESCRIPTION\" }", "x-api-key", "[redacted]", &[&variable]).await;
}

/// A secret that comes back in a header, even among bytes that are no text, is redacted there too.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_redacted_in_headers_and_the_length_still_fits() {
    let world = World::new();
    let file = world.folder.path().join("token");
    std::fs::write(&file, "s3cr3t").unwrap();
    let answer = b"HTTP/1.1 202 Accepted\r\nx-echo: \xff s3cr3t\r\ncontent-length: 8\r\n\r\n<s3cr3t>";
    let url = one_answer(answer.as_slice());
    world
        .edit_policy(&world.provider.url, &url)
        .edit_policy("methods = [\"POST\"]", "methods = [\"POST\"]\nauth = { bearer = \"word\" }")
        .extend_policy(&format!("[secrets]\nword = {{ file = \"{}\" }}", file.display()));
    let asks =
        json!({ "do": "http", "method": "POST", "url": format!("{url}/v1/m"), "body": "x", "with_headers": true });
    let result = act(&world, "amb-op", json!([asks])).await.results().remove(0);
    assert_eq!(result["headers"]["x-echo"], "\u{FFFD} [redacted]");
    assert_eq!((&result["body"], &result["headers"]["content-length"]), (&json!("<[redacted]>"), &json!("12")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_that_is_not_there_stops_the_request_and_is_named() {
    let world = World::new();
    world
        .edit_policy("methods = [\"POST\"]", "methods = [\"POST\"]\nauth = { bearer = \"word\" }")
        .extend_policy("[secrets]\nword = { file = \"/nonexistent/token\" }");
    let performed = act(&world, "amb-op", json!([post(&world, "x")])).await;
    assert!(denial(&performed).reason.starts_with("secret `word`: cannot read /nonexistent/token"), "{performed:?}");
    never_left(&performed.record.requests[0]);
    assert!(world.provider.requests().is_empty());
}

// ---- R12: what was heard --------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn the_evidence_of_a_request_is_on_its_attempt() {
    let world = World::new();
    let before = SystemClock.now();
    let run = json!([http(&world, "GET", "/health?x=1", json!({})), post(&world, "hello")]);
    let performed = act(&world, "amb-op", run).await;
    let [get, post] = performed.record.requests.as_slice() else { panic!("{performed:?}") };
    assert_eq!((get.number, get.method.as_str(), get.safe, get.status), (1, "GET", true, Some(200)));
    assert_eq!((get.url.clone(), get.key.clone()), (format!("{}/health?x=1", world.provider.url), None));
    assert_eq!((post.number, post.method.as_str(), post.safe, post.status), (2, "POST", false, Some(202)));
    assert_eq!(post.key, Some(format!("workflow:{}:step:only", performed.run)));
    assert_eq!(post.body_sha256, world.provider.effectful_requests()[0]["body_sha256"].as_str().map(str::to_owned));
    for request in [get, post] {
        assert_eq!((request.phase.as_str(), &request.error), ("run", &None));
        let (left, heard) = (request.left_at.unwrap(), request.heard_at.unwrap());
        assert!(before <= left && left <= heard && heard <= SystemClock.now(), "{request:?}");
    }
}

/// What becomes of an ambiguous step whose request meets a provider in `mode`, and whose guest fails on an error and on
/// what is no success.
async fn meets(world: &World, host: &Host, mode: Value, run: Value) -> Performed {
    world.provider.control(&mode);
    perform(host, "amb-op", &with(run), "").await
}

fn fail() -> Value {
    json!({ "do": "fail", "message": "the guest gave up" })
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_a_refusal_that_was_heard_leaves_no_doubt() {
    let world = World::new();
    let host = world.probe().await;
    for (mode, status) in [("refuse", 422), ("fail", 500), ("unavailable", 503), ("rate-limit", 429)] {
        let performed =
            meets(&world, &host, json!({ "mode": mode, "retry_after": 7 }), json!([post(&world, "x"), fail()])).await;
        assert_eq!(performed.failure().message, "the guest gave up", "{mode}");
        let request = &performed.record.requests[0];
        assert!(request.status == Some(status) && request.heard_at.is_some(), "{request:?}");
    }
    let asks = http(&world, "POST", "/v1/messages", json!({ "body": "x", "with_headers": true }));
    let performed = meets(&world, &host, json!({ "mode": "rate-limit", "retry_after": 7 }), json!([asks])).await;
    let result = &performed.results()[0];
    assert_eq!((&result["status"], &result["headers"]["retry-after"]), (&json!(429), &json!("7")));
    assert_eq!(world.provider.effects().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_what_left_and_was_not_heard_is_unknown() {
    let world = World::new();
    let host = world.edit_policy("wall = \"5s\"", "wall = \"1s\"").probe().await;
    let cases = [
        // Stopped at the wall limit while it waits.
        (json!({ "mode": "accept-then-hang" }), json!([post(&world, "x")]), "limit `wall`"),
        (json!({ "mode": "accept-then-drop" }), json!([post(&world, "x"), fail()]), "the guest gave up"),
        (json!({ "mode": "drop" }), json!([post(&world, "x"), fail()]), "the guest gave up"),
        (
            json!({ "mode": "accept-then-drop" }),
            json!([post(&world, "x"), { "do": "panic", "message": "x" }]),
            "trapped",
        ),
        // Not waited for by the guest, and then by the host as long as it may.
        (json!({ "mode": "accept-then-hang" }), json!([fire_and_forget(&world, "x"), fail()]), "the guest gave up"),
    ];
    for (mode, run, says) in cases {
        let performed = meets(&world, &host, mode.clone(), run).await;
        let doubt = performed.doubt();
        assert_eq!(doubt.code, codes::OUTCOME_UNKNOWN, "{mode}: {doubt:?}");
        assert!(doubt.message.contains(says), "{mode}: {doubt:?}");
        let request = &performed.record.requests[0];
        assert!(request.left_at.is_some() && request.heard_at.is_none() && request.error.is_some(), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_a_request_in_flight_when_the_export_returns_is_awaited_and_heard() {
    let world = World::new();
    let host = world.probe().await;
    for mode in ["accept-late", "accept-delayed"] {
        // The guest gave the second one up: it went on all the same.
        let mut given_up = fire_and_forget(&world, "b");
        given_up["abort"] = true.into();
        given_up["headers"] = json!({ "Idempotency-Key": "second" });
        let before = world.provider.effects().len();
        let performed = meets(
            &world,
            &host,
            json!({ "mode": mode, "latency_ms": 700 }),
            json!([fire_and_forget(&world, "a"), given_up]),
        )
        .await;
        assert_eq!(performed.results(), ["started", "started"], "{mode}");
        let requests = &performed.record.requests;
        let heard: Vec<_> = requests.iter().map(|request| (request.status, request.heard_at.is_some())).collect();
        assert_eq!(heard, [(Some(202), true), (Some(202), true)], "{mode}: {requests:?}");
        assert!(performed.record.wall_ms >= 700, "{mode}");
        assert_eq!(world.provider.effects().len() - before, 2, "{mode}");
        // A guest that then fails is believed: everything was heard.
        let performed = meets(
            &world,
            &host,
            json!({ "mode": mode, "latency_ms": 300 }),
            json!([fire_and_forget(&world, "a"), fail()]),
        )
        .await;
        assert_eq!(performed.failure().message, "the guest gave up", "{mode}");
    }
}

/// R12: a success is heard by its whole body alone, a refusal by its status.
#[tokio::test(flavor = "multi_thread")]
async fn r12_a_body_that_breaks_off_or_is_too_large_is_an_unheard_success() {
    let cases = [
        ("202 Accepted", "content-length: 100", "short", false),
        ("202 Accepted", "content-length: 5", "whole", true),
        ("422 Unprocessable", "content-length: 100", "short", true),
        ("202 Accepted", "content-length: 300000", &"x".repeat(300_000), false),
        ("422 Unprocessable", "content-length: 300000", &"x".repeat(300_000), true),
    ];
    for (status, header, body, heard) in cases {
        let world = World::new();
        let url = one_answer(format!("HTTP/1.1 {status}\r\n{header}\r\n\r\n{body}"));
        world.edit_policy(&world.provider.url, &url);
        let run = json!([{ "do": "http", "method": "POST", "url": format!("{url}/v1/m"), "body": "x" }, fail()]);
        let performed = act(&world, "amb-op", run).await;
        let request = &performed.record.requests[0];
        assert_eq!(request.heard_at.is_some(), heard, "{status} {header}: {request:?}");
        assert_eq!(request.status, status[..3].parse().ok());
        match heard {
            true => assert_eq!(performed.failure().message, "the guest gave up"),
            false => assert_eq!(performed.doubt().code, codes::OUTCOME_UNKNOWN),
        }
    }
}

/// Where a server listens that answers the first request with `answer`, byte for byte, and hangs up.
fn one_answer(answer: impl Into<Vec<u8>>) -> String {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = answer.into();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 64 << 10];
        let mut length = 0;
        while !request[..length].windows(5).any(|window| window == b"\r\n\r\nx") {
            length += stream.read(&mut request[length..]).unwrap();
        }
        // The other end may have heard enough.
        let _ = stream.write_all(&answer);
    });
    url
}

/// What nobody waits for any more ends with its attempt: no connection stays for as long as the other end likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_flight_does_not_outlive_its_attempt() {
    use std::io::Read as _;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // Never answers, and reads until the other end hangs up.
        let _ = closed.send(stream.read_to_end(&mut Vec::new()).map_err(|error| error.to_string()));
    });
    let world = World::new();
    world.edit_policy(&world.provider.url, &url);
    let asks = json!({ "do": "http-fire-and-forget", "url": format!("{url}/slow") });
    let authorize = json!([asks, { "do": "sleep", "ms": 200 }, { "do": "refuse", "reason": "no" }]);
    let performed = perform(&world.probe().await, "amb-op", &json!({ "authorize": authorize }), "").await;
    assert_eq!(performed.failure().code, codes::FORBIDDEN);
    assert!(performed.record.requests[0].left_at.is_some(), "{performed:?}");
    let closed = tokio::time::timeout(Duration::from_secs(10), is_closed).await.expect("it is hung up on");
    assert!(closed.is_ok());
}

// ---- The gate alone: what a guest of the probe's kind cannot be made to do -----------------------------------------

/// An attempt's way out, in `run` of an ambiguous action that asks for `needs`, armed until `deadline` from now.
fn egress(world: &World, needs: &[&str], deadline: Duration, lease: Lease) -> Egress {
    let policy = Policy::parse("tollgate.toml", &world.policy_text()).unwrap();
    let needs = needs.iter().map(|url| HttpNeed {
        url: (*url).to_owned(),
        methods: vec!["POST".to_owned(), "GET".to_owned()],
        safe: true,
    });
    let ambient = Ambient::system();
    let deadline = ambient.clock.elapsed() + deadline;
    let egress = Egress::new(EgressConfig {
        grant: policy.grant("probe", "amb-op"),
        needs: needs.collect(),
        secrets: Arc::new(Secrets::of(&policy)),
        class: EffectClass::Ambiguous,
        effect_key: "workflow:r:step:s".to_owned(),
        ambient,
        lease: Arc::new(lease),
    });
    egress.enter(Phase::Run);
    egress.arm(deadline, Allowance::of(&[]), None);
    egress
}

fn outgoing(world: &World, method: &str, path: &str) -> Outgoing {
    Outgoing {
        method: method.parse().unwrap(),
        url: format!("{}{path}", world.provider.url),
        headers: http::HeaderMap::new(),
        connect_timeout: None,
        first_byte_timeout: None,
    }
}

const MINUTE: Duration = Duration::from_secs(60);

async fn whole() -> Result<Bytes, EgressError> {
    Ok(Bytes::from_static(b"x"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_action_does_not_ask_for_is_refused_though_the_policy_grants_it() {
    let world = World::new();
    let egress = egress(&world, &["http://*/v1/messages"], MINUTE, Lease::unlimited());
    assert!(egress.admit(outgoing(&world, "POST", "/v1/messages")).is_ok());
    let error = egress.admit(outgoing(&world, "POST", "/v1/other")).unwrap_err().to_string();
    assert!(error.contains("its descriptor lists no such request under `http`"), "{error}");
    for (method, path) in [("P".repeat(100), "/".to_owned()), ("GET".to_owned(), format!("/{}", "x".repeat(9000)))] {
        let error = egress.admit(outgoing(&world, &method, &path)).unwrap_err().to_string();
        assert!(error.contains("at most 64 and 8192 are accepted") && error.len() < 200, "{error}");
    }
    assert_eq!(egress.requests().len(), 2);
}

/// R7: past the deadline, or without a live lease, no byte of an effectful request leaves; a safe one may.
#[tokio::test(flavor = "multi_thread")]
async fn r7_no_effectful_byte_leaves_past_the_deadline_or_without_a_lease() {
    let world = World::new();
    let lost = Lease::unlimited();
    lost.lose();
    for (egress, says) in [
        (
            egress(&world, &["http://*/**"], Duration::ZERO, Lease::unlimited()),
            "the deadline of its attempt had passed",
        ),
        (egress(&world, &["http://*/**"], MINUTE, lost), "the lease of its run had ended"),
    ] {
        let admitted = egress.admit(outgoing(&world, "POST", "/v1/messages")).unwrap();
        let error = egress.send(admitted, whole()).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        never_left(&egress.requests()[0]);
        let admitted = egress.admit(outgoing(&world, "GET", "/health")).unwrap();
        assert_eq!(egress.send(admitted, whole()).await.unwrap().status(), 200);
    }
    assert_eq!(world.provider.effectful_requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_awaits_what_is_on_its_way_and_gives_up_a_body_without_an_end() {
    let world = World::new();
    world.provider.control(&json!({ "mode": "accept-late", "latency_ms": 600 }));
    let egress = egress(&world, &["http://*/**"], MINUTE, Lease::unlimited());
    let labelled = |label: &str| {
        let mut outgoing = outgoing(&world, "POST", "/v1/messages");
        outgoing.headers.insert("idempotency-key", label.parse().unwrap());
        egress.admit(outgoing).unwrap()
    };
    // Whole at once, whole in a moment, never, and never because what was to write it panicked.
    drop(egress.send(labelled("at-once"), whole()));
    drop(egress.send(labelled("in-a-moment"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        whole().await
    }));
    drop(egress.send(labelled("never"), std::future::pending()));
    drop(egress.send(labelled("panics"), async { panic!("this panic is part of the test") }));
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(20), egress.drain()).await.expect("it ends");
    assert!(began.elapsed() >= Duration::from_millis(600), "it waits for the answers");
    let heard: Vec<bool> = egress.requests().iter().map(|request| request.heard_at.is_some()).collect();
    assert_eq!(heard, [true, true, false, false], "{:?}", egress.requests());
    assert_eq!(
        egress.requests()[2].error.as_deref(),
        Some("it did not leave: the export returned before its body was whole")
    );
    assert_eq!(world.provider.effects().len(), 2);
    // With nothing in flight there is nothing to wait for.
    tokio::time::timeout(Duration::from_secs(5), egress.drain()).await.expect("it ends at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_after_the_attempt_does_not_leave() {
    let world = World::new();
    let egress = egress(&world, &["http://*/**"], MINUTE, Lease::unlimited());
    let (finish, finished) = tokio::sync::oneshot::channel();
    let admitted = egress.admit(outgoing(&world, "POST", "/v1/messages")).unwrap();
    let answer = egress.send(admitted, async move {
        // What the memory of a trapped instance leaves behind: half a body that looks whole.
        finished.await.map_err(|_| EgressError::Broken("gone".to_owned()))?;
        whole().await
    });
    egress.close();
    finish.send(()).unwrap();
    let error = answer.await.unwrap_err().to_string();
    assert!(error.ends_with("did not leave: the attempt was over"), "{error}");
    never_left(&egress.requests()[0]);
    assert!(world.provider.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_broken_off_is_over_and_says_so() {
    let world = World::new();
    world.provider.control(&json!({ "mode": "accept-then-hang" }));
    let egress = egress(&world, &["http://*/**"], MINUTE, Lease::unlimited());
    let admitted = egress.admit(outgoing(&world, "POST", "/v1/messages")).unwrap();
    let answer = egress.send(admitted, whole());
    super::support::until("it was accepted", async || world.provider.effects().len() == 1).await;
    assert!(tokio::time::timeout(Duration::from_millis(100), egress.drain()).await.is_err(), "it is in flight");
    egress.abort();
    tokio::time::timeout(Duration::from_secs(5), egress.drain()).await.expect("nothing is in flight any more");
    assert!(answer.await.is_err());
    let request = &egress.requests()[0];
    assert!(
        request.is_unheard() && request.error.as_deref() == Some("the attempt ended before the answer"),
        "{request:?}"
    );
}

/// A timeout of the guest's own ends the request: nothing of it leaves afterwards, so its key is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_timed_out_before_it_left_does_not_leave_later() {
    let world = World::new();
    for _ in 0..20 {
        let egress = egress(&world, &["http://*/**"], MINUTE, Lease::unlimited());
        let before = world.provider.effectful_requests().len();
        let mut hasty = outgoing(&world, "POST", "/v1/messages");
        hasty.first_byte_timeout = Some(Duration::ZERO);
        let admitted = egress.admit(hasty).unwrap();
        let _ = egress.send(admitted, whole()).await;
        let left = egress.requests()[0].left_at.is_some();
        let again = egress.admit(outgoing(&world, "POST", "/v1/messages")).unwrap();
        let went_again = egress.send(again, whole()).await.is_ok();
        // Whichever won the race, an ambiguous action has sent it once.
        assert_ne!(left, went_again, "{:?}", egress.requests());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(world.provider.effectful_requests().len() - before <= 1, "{:?}", egress.requests());
    }
}
