//! The engine as a user meets it: each feature shown once, on real stores and a real runtime.
//!
//! The simulator in `crates/sim` looks for what nobody thought of; these tests say what was thought of. Nothing here sleeps
//! to synchronise: a test waits until a condition holds, and time that matters is the store's, moved by hand.

#![expect(clippy::unwrap_used, reason = "the whole program is a test")]

#[macro_use]
mod support;

mod outbox;

mod routes;

mod order;

mod outage;
mod retry;

mod dead;

mod schedule;

mod bounds;

mod fairness;
mod nodes;
mod pause;
mod replace;

mod replay;
mod retention;

mod wake;

mod store_faults;

mod diagnosis;
mod telemetry;
#[cfg(feature = "opentelemetry")]
mod traces;
