//! What a guest call costs without Tollgate: the same engine, the same code, and nothing around it.
//!
//! For the benchmarks alone, behind the feature `bench-floors`: no limits, no phases, no gate. A guest has WASI; what it
//! asks of the host beyond that traps, and no request leaves.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Linker, ResourceTable};
use wasmtime::{Engine, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView};

use super::bindings::tollgate::action::types as wit;
use super::bindings::{Action, ActionPre};
use super::{CallContext, Component, Sandbox};

/// A component, linked once more with as little as it takes.
pub struct Bare {
    engine: Engine,
    pre: ActionPre<State>,
}

struct State {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: NoRequests,
    table: ResourceTable,
}

struct NoRequests;

type Worker = Box<dyn Future<Output = Result<(), Error>> + Send>;

impl WasiHttpHooks for NoRequests {
    fn send_request(
        &mut self,
        _request: http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _processed: Worker,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Worker), Error>> + Send> {
        Box::new(async { Err(Error::HttpRequestDenied) })
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl Bare {
    /// Links `component` once more, barely.
    ///
    /// # Errors
    /// What wasmtime says.
    pub fn new(sandbox: &Sandbox, component: &Component) -> Result<Bare, String> {
        let engine = sandbox.inner.engine.clone();
        let pre = link(&engine, component.pre.instance_pre().component()).map_err(|error| format!("{error:#}"))?;
        Ok(Bare { engine, pre })
    }

    /// A fresh store, an instance, one call of `run`.
    ///
    /// # Errors
    /// What wasmtime says, or an outcome other than success.
    pub async fn run(&self, action: &str, context: &CallContext, input: &str) -> Result<Option<String>, String> {
        let mut builder = WasiCtxBuilder::new();
        let state =
            State { wasi: builder.build(), http: WasiHttpCtx::new(), hooks: NoRequests, table: ResourceTable::new() };
        let mut store = Store::new(&self.engine, state);
        // Never interrupted, and its stack switched to like any other's.
        store.set_epoch_deadline(u64::MAX / 2);
        let context = wit::Context {
            run_id: context.run_id.clone(),
            step_key: context.step_key.clone(),
            effect_key: context.effect_key.clone(),
            attempt: context.attempt,
            invocation: context.invocation.clone(),
        };
        let instance: Action = self.pre.instantiate_async(&mut store).await.map_err(|error| format!("{error:#}"))?;
        let actions = instance.tollgate_action_actions();
        let (action, input) = (action.to_owned(), input.to_owned());
        let outcome = actions.call_run(&mut store, &action, &context, &input).await;
        match outcome.map_err(|error| format!("{error:#}"))? {
            wit::Outcome::Succeeded(output) => Ok(output),
            other => Err(format!("it did not succeed: {other:?}")),
        }
    }
}

impl std::fmt::Debug for Bare {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Bare")
    }
}

fn link(engine: &Engine, component: &wasmtime::component::Component) -> wasmtime::Result<ActionPre<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    for (name, import) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(interface) = import.ty else { continue };
        if name.starts_with("wasi:") {
            continue;
        }
        let mut defined = linker.instance(name)?;
        for (function, item) in interface.exports(engine) {
            if matches!(item.ty, ComponentItem::ComponentFunc(_)) {
                defined.func_new(function, |_, _, _, _| Err(wasmtime::Error::msg("there is nothing but WASI")))?;
            }
        }
    }
    ActionPre::new(linker.instantiate_pre(component)?)
}
