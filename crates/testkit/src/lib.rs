//! Proof for anyone who writes a store or a transport.
//!
//! - [`store`] and [`transport`]: conformance suites. Every "must" in the contracts of `postrider-core` has a case here; an
//!   adapter's `tests/conformance.rs` is a page of wiring around [`store_conformance!`], [`publisher_conformance!`] or
//!   [`subscriber_conformance!`].
//! - [`envelopes`]: the envelopes that must survive every trip.
//! - [`fault`]: wrappers that make a working store or publisher fail on purpose.
//! - [`service`]: where the real servers are.
//! - [`patience`]: how long a test waits.
//! - [`checker`]: from what was committed and what arrived, the verdict.
//!
//! The suites know the contracts and nothing else: no engine, no client library.

pub mod store;

pub mod transport;

pub mod envelopes;

pub mod fault;

pub mod service;

pub mod patience;

pub mod checker;

pub mod random;
