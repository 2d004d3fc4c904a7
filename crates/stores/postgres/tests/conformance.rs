//! The whole store suite on a real server, each test in a schema of its own, with an application that enqueues through
//! tokio-postgres. Twice: with blocks of the ordinary size, and with blocks of four records, where every page crosses
//! leaves, the ring goes round, and retention has something to empty.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use support::Place;

mod ordinary_blocks {
    use super::Place;

    postrider_testkit::store_conformance!(|| Place::fresh(20));
}

mod tiny_blocks {
    use super::Place;

    postrider_testkit::store_conformance!(|| Place::fresh(2));
}
