//! What Tollgate costs, each figure beside its floor in the same run: `scripts/bench [NAME…]`.
//!
//! Not tests: nothing here fails because a machine is slow. Every figure is the median of several rounds, with the least and
//! the most; figure and floor take turns, and the ratio is the median of the rounds' own.

#![allow(missing_docs, reason = "a program")]

mod bare;
mod calls;
mod guests;
mod measure;
mod memory;
mod neighbours;
mod rules;
mod steps;

use tollgate::sandbox::Sandbox;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    // As the program's own.
    let runtime = tokio::runtime::Builder::new_multi_thread().event_interval(1).enable_all().build();
    runtime.expect("there are threads").block_on(async {
        let sandbox = Sandbox::new().expect("the sandbox can be set up");
        if wants("calls") {
            calls::measure(&sandbox).await;
        }
        if wants("steps") {
            steps::measure(&sandbox).await;
        }
        if wants("neighbours") {
            neighbours::measure(&sandbox).await;
        }
        if wants("rules") {
            rules::measure();
        }
        if wants("memory") {
            memory::measure(&sandbox).await;
        }
    });
}
