//! The conformance suite of a store: what a relay, an operator and an application may rely on.
//!
//! An adapter brings a [`Fixture`]: a fresh, empty, isolated store, and the few things a test must do to it that are no
//! part of the contracts (open a transaction, let time pass, crash). The cases are plain async functions over a fixture,
//! one file a subject; [`store_conformance!`](crate::store_conformance) makes a test of each. Cases that need an ability
//! look at the store's capabilities and pass at once where it lacks that ability.
//!
//! ```text
//! // tests/conformance.rs of an adapter
//! async fn fresh() -> Arc<dyn Fixture> { Arc::new(MyFixture::new().await) }
//! postrider_testkit::store_conformance!(fresh);
//! ```
//!
//! Where a case waits for something to expire, it uses a short span and [`Fixture::pass`]; where it shows that something
//! has *not* happened yet, it uses an hour. So a slow machine cannot make a right store fail.

pub mod fixture;
pub mod owner;

pub mod log;

pub mod lanes;
pub mod lease;

pub mod due;
pub mod settle;

pub mod admin;
pub mod browse;
pub mod purge;
pub mod replay;

pub mod unaudited;

pub mod durability;
pub mod hint;

mod cases;

pub use fixture::{Fixture, OpenTransaction};
pub use owner::Owner;
