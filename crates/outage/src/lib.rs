//! The whole way through an outage: a SQLite store, the relay, and a transport to a real broker that goes away and comes
//! back. Nothing may be lost, order is kept per key, and no message pays for an outage with an attempt.
//!
//! A transport's `tests/outage.rs` runs a scenario with its publisher, reads what arrived, and has it judged:
//!
//! ```no_run
//! # async fn example(publisher: impl postrider_core::transport::Publisher + 'static, server: &str) {
//! # async fn events() -> Vec<postrider_core::cloudevents::Received> { Vec::new() }
//! let proxy = postrider_testkit::fault::Proxy::to(server).await;
//! let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
//! place.judge(&events().await).await;
//! # }
//! ```
//!
//! The suites of `postrider-testkit` know no engine; this does, and so it is a crate of its own, for tests alone. A publisher
//! should be given a short timeout, so that a connection that says nothing is noticed soon.

mod place;
mod told;

use std::time::Duration;

use postrider_core::transport::Publisher;
use postrider_testkit::fault::{Proxy, Server, Traffic};

pub use place::Place;

/// How often a scenario is gone through.
const ROUNDS: usize = 3;

/// Through cuts and resets while messages are under way, and silence in which nobody closes anything. The publisher connects
/// through the proxy. At the end the network works, and everything is delivered.
pub async fn through_a_bad_network(publisher: impl Publisher + 'static, proxy: &Proxy) -> Place {
    let mut place = Place::new(publisher).await;
    place.enqueue();
    place.delivered().await;
    for _ in 0..ROUNDS {
        proxy.set(Traffic::Delayed(Duration::from_millis(5)));
        place.enqueue();
        proxy.cut();
        place.enqueue();
        proxy.reset();
        proxy.set(Traffic::Flowing);
        place.delivered().await;
        // Half-open: nobody answers, and nobody says so.
        let before = place.openings();
        proxy.set(Traffic::Silent);
        place.enqueue();
        place.opened(before + 1).await;
        proxy.set(Traffic::Refusing);
        proxy.reset();
        proxy.set(Traffic::Flowing);
        place.delivered().await;
    }
    place
}

/// Through a broker that is killed, then asked to end, then killed again, and started again on its data each time. At the end
/// it runs, and everything is delivered.
pub async fn through_a_broker_that_ends(publisher: impl Publisher + 'static, server: &mut Server) -> Place {
    let mut place = Place::new(publisher).await;
    for round in 0..ROUNDS {
        place.enqueue();
        place.delivered().await;
        let before = place.openings();
        if round % 2 == 0 {
            server.kill();
        } else {
            server.stop();
        }
        place.enqueue();
        place.opened(before + 1).await;
        server.restart();
        place.delivered().await;
    }
    place
}
