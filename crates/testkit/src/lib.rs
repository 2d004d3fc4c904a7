//! Proof for anyone who writes a store or a transport.
//!
//! - [`store`]: the conformance suite of a store. Every "must" in the contracts of `postrider-core` has a case here; an
//!   adapter's `tests/conformance.rs` is a page of wiring around [`store_conformance!`].
//! - [`envelopes`]: the envelopes that must survive every trip.
//!
//! The suites know the contracts and nothing else: no engine, no client library.

pub mod store;

pub mod envelopes;

pub mod random;
