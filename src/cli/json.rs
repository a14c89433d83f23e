//! Parts of JSON documents that several commands print. Keys are always there, null where there is nothing; times are RFC
//! 3339 in UTC, amounts decimal text. docs/cli.md has the shapes.

use serde_json::{Value, json};

use tollgate::clock::Timestamp;
use tollgate::component::Descriptor;
use tollgate::journal::{Denial, Dependency, Failure, RequestEvidence};
use tollgate::policy::{Limits, units};
use tollgate::store::RunRow;

/// A moment.
pub fn time(at: Timestamp) -> Value {
    Value::from(at.to_string())
}

/// A moment, if there is one.
pub fn opt_time(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, time)
}

/// A stored JSON text as the value that it is.
pub fn stored(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::from(text))
}

/// A stored JSON text, if there is one.
pub fn opt_stored(text: Option<&String>) -> Value {
    text.map_or(Value::Null, |text| stored(text))
}

/// Why something failed.
pub fn failure(failure: &Failure) -> Value {
    json!({
        "code": failure.code,
        "message": failure.message,
        "retryable": failure.retryable,
        "not_before": opt_time(failure.not_before),
        "details": failure.details,
    })
}

/// Why something failed, if it did.
pub fn opt_failure(found: Option<&Failure>) -> Value {
    found.map_or(Value::Null, failure)
}

/// What is waited for.
pub fn opt_dependency(dependency: Option<&Dependency>) -> Value {
    dependency.map_or(
        Value::Null,
        |dependency| json!({ "kind": dependency.kind, "key": dependency.key, "due": opt_time(dependency.due) }),
    )
}

/// A request that an attempt made.
pub fn request(request: &RequestEvidence) -> Value {
    json!({
        "number": request.number,
        "phase": request.phase,
        "method": request.method,
        "url": request.url,
        "safe": request.safe,
        "key": request.key,
        "body_sha256": request.body_sha256,
        "left_at": opt_time(request.left_at),
        "status": request.status,
        "heard_at": opt_time(request.heard_at),
        "error": request.error,
    })
}

/// A capability that was refused.
pub fn denial(denial: &Denial) -> Value {
    json!({
        "phase": denial.phase,
        "capability": denial.capability,
        "reason": denial.reason,
        "remedy": denial.remedy,
    })
}

/// A run's head with what it was given and what it yielded.
pub fn whole_run(run: &RunRow) -> Value {
    let mut shape = self::run(run);
    shape["params"] = stored(&run.params);
    shape["outputs"] = opt_stored(run.outputs.as_ref());
    shape
}

/// A run's head: what a listing shows.
pub fn run(run: &RunRow) -> Value {
    json!({
        "run": run.id,
        "workflow": run.workflow_ref,
        "title": run.title,
        "state": run.state,
        "parent": run.parent_id,
        "root": run.root_id,
        "scope": run.scope,
        "key": run.start_key,
        "definition": run.definition_hash,
        "labels": stored(&run.labels),
        "generation": run.generation,
        "holder": run.lease_holder,
        "lease_expires_at": opt_time(run.lease_expires_at),
        "wake_at": opt_time(run.wake_at),
        "failure": opt_failure(run.failure.as_ref()),
        "created_at": time(run.created_at),
        "updated_at": time(run.updated_at),
        "finished_at": opt_time(run.finished_at),
    })
}

/// An action, as its component describes it.
pub fn action(action: &Descriptor) -> Value {
    json!({
        "name": action.name,
        "title": action.title,
        "description": action.description,
        "class": action.effect_class,
        "hooks": action.hooks,
        "config_schema": action.config_schema,
        "output_schema": action.output_schema,
        "http": action.http,
        "meters": action.meters,
        "limits": action.limits,
    })
}

/// Limits, with their units.
pub fn limits(limits: &Limits) -> Value {
    json!({
        "memory": units::format_size(limits.memory_bytes),
        "cpu": units::format_duration(limits.cpu),
        "wall": units::format_duration(limits.wall),
        "request": units::format_size(limits.request_bytes),
        "response": units::format_size(limits.response_bytes),
        "output": units::format_size(limits.output_bytes),
        "logs": units::format_size(limits.logs_bytes),
        "requests": limits.requests,
    })
}
