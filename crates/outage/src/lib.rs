//! The whole way through an outage: a SQLite store, the relay, and a transport to a real broker that goes away and comes
//! back. Nothing may be lost, order is kept per key, and no message pays for an outage with an attempt.
//!
//! A transport's `tests/outage.rs` runs a scenario with its publisher, and has judged what arrived, which is read at the end:
//!
//! ```no_run
//! # async fn example(publisher: impl postrider_core::transport::Publisher + 'static, server: &str) {
//! # async fn events() -> Vec<postrider_core::cloudevents::Received> { Vec::new() }
//! let proxy = postrider_testkit::fault::Proxy::to(server).await;
//! let place = postrider_outage::through_a_bad_network(publisher, &proxy).await;
//! place.judge(events).await;
//! # }
//! ```
//!
//! The other half is a subscriber that is taken through the same, with a handler that acknowledges what it gets:
//! [`receive_through_a_bad_network`] and [`receive_through_a_broker_that_ends`]. Nothing may be lost, first arrivals keep the
//! order of their key, and what comes twice is bounded by what was out when something went wrong; what was acknowledged does not
//! come again at all where the server gives its word for an acknowledgement ([`Receiver::judge_acknowledged`]).
//!
//! [`certificates()`] are for servers that a test takes through TLS.
//!
//! The suites of `postrider-testkit` know no engine; this does, and so it is a crate of its own, for tests alone. A publisher
//! should be given a short timeout, so that a connection that says nothing is noticed soon.

mod certificates;
mod numbers;
mod place;
mod receiver;
mod recorder;
mod told;

use std::time::Duration;

use postrider_core::transport::{Publisher, Subscriber};
use postrider_testkit::fault::{Proxy, Server, Traffic};

pub use certificates::certificates;
pub use place::Place;
pub use receiver::Receiver;

/// How often a scenario is gone through.
const ROUNDS: usize = 3;

/// Through cuts and resets while messages are under way, and silence in which nobody closes anything. The publisher connects
/// through the proxy. At the end the network works, and everything is delivered.
pub async fn through_a_bad_network(publisher: impl Publisher + 'static, proxy: &Proxy) -> Place {
    let mut place = Place::new(publisher).await;
    place.enqueue();
    place.delivered().await;
    for _ in 0..ROUNDS {
        disturb(&mut place, proxy).await;
    }
    place
}

/// One round of it.
pub async fn disturb(place: &mut Place, proxy: &Proxy) {
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

/// Through a broker that is killed, then asked to end, then killed again, and started again on its data each time. At the end
/// it runs, and everything is delivered.
pub async fn through_a_broker_that_ends(publisher: impl Publisher + 'static, server: &mut Server) -> Place {
    let mut place = Place::new(publisher).await;
    for round in 0..ROUNDS {
        place.enqueue();
        place.delivered().await;
        end(&mut place, server, if round % 2 == 0 { Server::kill } else { Server::stop }).await;
    }
    place
}

/// The broker ends in this way, and is started again when the relay has noticed.
pub async fn end(place: &mut Place, server: &mut Server, how: fn(&mut Server)) {
    let before = place.openings();
    how(server);
    place.enqueue();
    place.opened(before + 1).await;
    server.restart();
    place.delivered().await;
}

/// Through a while in which one of two destinations is gone: messages to the topic `returns` wait for it, those to `orders` do
/// not. At the end it is back, and everything is delivered.
pub async fn through_a_destination_that_is_gone(
    publisher: impl Publisher + 'static,
    gone: impl AsyncFnOnce(),
    back: impl AsyncFnOnce(),
) -> Place {
    let mut place = Place::with_two_topics(publisher).await;
    place.enqueue();
    place.delivered().await;
    gone().await;
    place.enqueue();
    place.delivered_but_for_one_topic().await;
    back().await;
    place.delivered().await;
    place
}

/// A subscriber through cuts and resets while messages are under way, through connections of which only the client knows that
/// they are gone, and through silence that it has to notice by itself. The subscriber connects through the proxy, the publisher
/// does not. At the end the network works, and everything has arrived.
pub async fn receive_through_a_bad_network(
    publisher: impl Publisher + 'static,
    subscriber: impl Subscriber + 'static,
    proxy: &Proxy,
) -> Receiver {
    let mut receiver = Receiver::new(publisher, subscriber);
    receiver.publish().await;
    receiver.arrived().await;
    for round in 0..ROUNDS {
        proxy.set(Traffic::Delayed(Duration::from_millis(5)));
        for end in [Proxy::cut as fn(&Proxy), Proxy::reset] {
            let before = receiver.count();
            receiver.publish().await;
            receiver.more_than(before).await;
            receiver.disturb();
            end(proxy);
        }
        proxy.set(Traffic::Flowing);
        receiver.arrived().await;
        // What the server sends into the old connection is seen by nobody: before the new one is there, and beside it.
        let connections = proxy.connections();
        receiver.disturb();
        proxy.abandon();
        if round % 2 == 0 {
            receiver.publish().await;
        }
        receiver.until("the subscriber connects again", || proxy.connections() > connections).await;
        receiver.publish().await;
        proxy.release();
        receiver.arrived().await;
    }
    // Half-open: nobody answers, and nobody says so.
    let connections = proxy.connections();
    receiver.disturb();
    proxy.set(Traffic::Silent);
    receiver.publish().await;
    receiver.until("the subscriber notices the silence", || proxy.connections() > connections).await;
    proxy.set(Traffic::Flowing);
    receiver.arrived().await;
    receiver
}

/// A subscriber through a broker that is killed, then asked to end, then killed again, while messages are under way, and
/// started again on its data each time. At the end it runs, and everything has arrived.
pub async fn receive_through_a_broker_that_ends(
    publisher: impl Publisher + 'static,
    subscriber: impl Subscriber + 'static,
    server: &mut Server,
) -> Receiver {
    let mut receiver = Receiver::new(publisher, subscriber);
    for round in 0..ROUNDS {
        let before = receiver.count();
        receiver.publish().await;
        receiver.more_than(before).await;
        receiver.disturb();
        if round % 2 == 0 {
            server.kill();
        } else {
            server.stop();
        }
        server.restart();
        receiver.publish().await;
        receiver.arrived().await;
    }
    receiver
}
