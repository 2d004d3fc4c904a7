//! Faults on purpose: wrappers around a working publisher or store that make it fail as real ones do, and for real servers
//! a proxy that spoils connections and a process that can be killed.
//!
//! Each wrapper comes with a handle, so that a test can switch faults on and off while a relay runs. What is left to
//! chance is drawn from a seed. Whatever a wrapper does stays inside the contract: it never makes a publisher answer
//! `Durable` for what did not arrive, nor a store apply half a settlement.

pub mod log;
pub mod port;
pub mod proxy;
pub mod publisher;
pub mod server;

pub use log::{FaultyLog, LogFaults, Moment, Operation};
pub use port::free_port;
pub use proxy::{Proxy, Traffic};
pub use publisher::{Fault, FaultyPublisher, Mix, PublisherFaults};
pub use server::Server;
