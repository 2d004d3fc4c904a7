//! What happens to whole clusters: they crash, are restored elsewhere, are followed and promoted, and run out of 32 bits.
//!
//! Each test makes the clusters that it needs from the system's PostgreSQL, so nothing that it does disturbs another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;
mod reader;

mod crash;
mod restore;
mod standby;
