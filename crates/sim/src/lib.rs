//! The simulator: the real engine (relay, supervisor, drivers, lanes) on a simulated store and broker, from one seed.
//!
//! | module | part |
//! |---|---|
//! | [`random`] | the seed's numbers |
//! | [`world`] | virtual time, tasks, and the crashes and pauses of whole nodes |
//! | [`store`] | a store whose transactions commit in another order than their ids, with snapshots, leases, parked rows |
//! | [`log`] | the network to that store: late, lost and doubled calls |
//! | [`broker`] | a destination: durable, rejecting, throttling, silent, down |
//! | [`scenario`] | what a seed draws |
//! | [`history`] | what happens in one seed: producers, operators, faults |
//! | [`check`] | what must hold after every step and at the end |
//! | [`plants`] | mistakes that the checks must find |
//!
//! One seed is one history: the same seed gives the same history, event by event. A history is some seconds of trouble
//! followed by peace, in which everything must come to rest.

pub mod broker;
pub mod check;
pub mod history;
pub mod log;
pub mod plants;
pub mod random;
pub mod scenario;
pub mod store;
pub mod world;
