//! The code that wasmtime generates from `wit/`, and nothing else.
//!
//! The types of `wasi:http` and everything below it are wasmtime's own, so that its host implementations serve them.

#![allow(missing_docs, reason = "generated code")]

wasmtime::component::bindgen!({
    path: "wit",
    world: "tollgate:action/action",
    imports: { default: async | trappable },
    exports: { default: async },
    with: {
        "wasi:io": wasmtime_wasi::p2::bindings::io,
        "wasi:clocks": wasmtime_wasi::p2::bindings::clocks,
        "wasi:http": wasmtime_wasi_http::p2::bindings::http,
    },
    require_store_data_send: true,
});
