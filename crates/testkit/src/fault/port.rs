//! A port for a server that a test starts, ends and starts again.
//!
//! Not one that the system gives away: those are also what connections get, and while the server is down a client that tries
//! to reach it may get the very port, connect to itself and keep the server from coming back.

use std::{
    hash::{BuildHasher, RandomState},
    net::TcpListener,
};

/// Below the ports that Linux, the BSDs, macOS and Windows give to connections.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A loopback port that is free now and that no connection is given.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let drawn = RandomState::new().hash_one(0);
    let start = u16::try_from(drawn % u64::from(COUNT)).expect("less than a count of ports");
    let mut ports = (0..COUNT).map(|step| FIRST + (start + step) % COUNT);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("there is a free loopback port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_free_and_none_that_a_connection_gets() {
        let port = free_port();
        assert!((FIRST..FIRST + COUNT).contains(&port));
        let held = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
        assert!(TcpListener::bind(held.local_addr().expect("an address")).is_err());
    }
}
