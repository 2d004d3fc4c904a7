//! The whole store suite on a real replica set, each test in a database of its own, with an application that enqueues in its
//! own transactions.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use support::Place;

postrider_testkit::store_conformance!(Place::fresh);
