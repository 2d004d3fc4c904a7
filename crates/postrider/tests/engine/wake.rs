//! Wake-up: by a hint at once, and by looking when no hint comes.

use std::{sync::Arc, time::Duration};

use postrider::core::log::Log;

use crate::support::{Broker, Place, Probe, Running, route, until};

on_every_store!(a_commit_is_published_without_waiting_for_the_next_poll, a_lost_hint_costs_no_message);

async fn a_commit_is_published_without_waiting_for_the_next_poll(place: Place) {
    let broker = Broker::new();
    let never = Duration::from_hours(1);
    let relay = Running::start(&place.log, [route("all", &broker).poll(never, never)]);
    for n in 0..20 {
        let label = format!("a{n}");
        place.commit_labels(&[&label]);
        until("it to arrive", async || broker.has(&label)).await;
    }
    relay.drained().await;
}

async fn a_lost_hint_costs_no_message(place: Place) {
    let broker = Broker::new();
    let log: Arc<dyn Log> = Arc::new(Probe::new(&place.log).without_hints());
    let relay = Running::start(&log, [route("all", &broker)]);
    for n in 0..20 {
        let label = format!("a{n}");
        place.commit_labels(&[&label]);
        until("it to arrive", async || broker.has(&label)).await;
    }
    relay.drained().await;
}
