//! What needs a cluster of its own: crashes, restores elsewhere, standbys and promotions, 2^32, what things cost, and facts.
//!
//! Each test makes the clusters that it needs from the system's PostgreSQL, so nothing that it does disturbs another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;
mod reader;

mod costs;
mod crash;
mod facts;
mod restore;
mod retention;
mod standby;
