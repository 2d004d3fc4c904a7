//! The whole store suite on a real server, each test in a schema of its own, with an application that enqueues through
//! tokio-postgres.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use support::Place;

postrider_testkit::store_conformance!(|| Place::fresh(20));
