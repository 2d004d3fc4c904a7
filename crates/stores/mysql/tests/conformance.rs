//! The whole store suite on a real server, each test with tables of its own, with an application that enqueues through
//! mysql_async.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use support::Place;

postrider_testkit::store_conformance!(Place::fresh);
