//! The contract, in process: what each class does, what is charged, what is written.

use serde_json::{Value, json};
use tollgate::run::Ended;

use super::support::{World, one_step, run};

fn post(world: &World) -> Value {
    json!({ "do": "http", "method": "POST", "url": format!("{}/v1/messages", world.provider.url), "body": "hello" })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_step_goes_out_once_and_is_charged() {
    let world = World::new();
    let host = world.probe().await;
    let with = json!({
        "plan": [{ "do": "planned", "consumes": [{ "dimension": "emails", "amount": "1" }] }],
        "run": [post(&world)],
    });
    let (id, ended) = run(&host, one_step("amb-op", &with, "")).await;
    assert!(matches!(ended, Ended::Completed { .. }), "{ended:?}");
    assert_eq!(world.provider.effects().len(), 1);
    assert_eq!(world.provider.effects()[0]["key"], format!("workflow:{id}:step:only"));
}
