//! From a configuration to relays: one for each store, with its routes.
//!
//! Destinations are opened first, then the stores: a destination that cannot be opened leaves no new database behind.

use std::sync::Arc;

use postrider::{
    Relay, Route,
    metrics::{Metrics, StoreMetrics},
    relay::events::{Observer, TracingObserver},
};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{collect::Collecting, gone, unrouted::Unrouted};
use crate::{
    admin::{Heartbeats, Watched},
    config::{Config, RouteConfig, StoreConfig},
    exit::{Code, Failure, Outcome},
    registry::{self, Destination},
    telemetry::Telemetry,
};

/// The relay of one store, and what watches it.
pub(super) struct Outbox {
    pub(super) relay: Relay,
    /// Its routes.
    pub(super) routes: Vec<RouteConfig>,
    pub(super) watched: Watched,
    pub(super) unrouted: Unrouted,
    pub(super) collecting: Option<Collecting>,
    /// Routes and replays whose endpoint is gone for good.
    pub(super) gone: UnboundedReceiver<Arc<str>>,
}

/// Opens everything.
pub(super) async fn outboxes(config: &Config, metrics: &Metrics, telemetry: &Telemetry) -> Outcome<Vec<Outbox>> {
    let mut destinations = Vec::new();
    for store in &config.stores {
        let of_store = config.routes.iter().filter(|route| route.store == store.name);
        destinations.push(of_store.map(|route| open_route(route, telemetry)).collect::<Outcome<Vec<Route>>>()?);
    }
    let mut outboxes = Vec::new();
    for (store, routes) in config.stores.iter().zip(destinations) {
        outboxes.push(outbox(config, store, routes, metrics).await?);
    }
    Ok(outboxes)
}

async fn outbox(config: &Config, store: &StoreConfig, routes: Vec<Route>, metrics: &Metrics) -> Outcome<Outbox> {
    let (adapter, place) = store.find().map_err(Failure::usage)?;
    let opened = adapter.open(&place, store.migrate).await?;
    let own: Vec<RouteConfig> = config.routes.iter().filter(|route| route.store == store.name).cloned().collect();
    let (admin, allowed) = (Arc::clone(&opened.admin), config.relay.allow_unrouted);
    let unrouted = Unrouted::new(store.name.clone(), admin, own.clone(), allowed)?;
    let collecting = Collecting::open(store, (adapter, &place)).await?;
    let of_store = Arc::new(metrics.of_store(&store.name));
    let (listener, gone) = gone::listener();
    let heartbeats = Arc::new(Heartbeats::default());
    let observers: Vec<Arc<dyn Observer>> = vec![
        Arc::new(TracingObserver),
        Arc::<StoreMetrics>::clone(&of_store),
        Arc::new(listener),
        Arc::<Heartbeats>::clone(&heartbeats),
    ];
    let options = config.relay.options.clone();
    let mut builder = Relay::builder(opened.log).options(options).observer(Arc::new(observers));
    if let Some(name) = &config.relay.name {
        builder = builder.node_name(name);
    }
    for route in routes {
        builder = builder.route(route);
    }
    let relay = builder.build()?;
    let watched = Watched {
        name: store.name.clone(),
        relay: relay.handle(),
        admin: opened.admin,
        metrics: of_store,
        topics: Arc::clone(&unrouted.topics),
        lease_life: config.relay.options.lease_life,
        heartbeats,
        keep: config.relay.options.keep_delivered,
    };
    Ok(Outbox { relay, routes: own, watched, unrouted, collecting, gone })
}

/// Opens the destination of a route, and sets the route up.
pub(super) fn open_route(config: &RouteConfig, telemetry: &Telemetry) -> Outcome<Route> {
    let (open, rest) = registry::transport(&config.transport).map_err(Failure::usage)?;
    let destination = Destination {
        url: &config.transport,
        rest: &rest,
        http: config.http.as_ref(),
        nats: config.nats.as_ref(),
        rabbitmq: config.rabbitmq.as_ref(),
        redis: config.redis.as_ref(),
        kafka: config.kafka.as_ref(),
    };
    let destination = open(&destination).map_err(|error| {
        let message = format!("the destination of the route `{}` cannot be opened", config.name);
        Failure::because(Code::Usage, message, &error)
    })?;
    let destination = telemetry.watch(&config.name, &config.transport, destination);
    let route = Route::to(&config.name, destination)
        .topics(&config.topics)
        .order(config.order)
        .lanes(config.lanes)
        .start(config.start)
        .on_dead(config.on_dead)
        .retry(config.retry.clone())
        .window(config.window)
        .window_bytes(config.window_bytes)
        .publish_timeout(config.publish_timeout)
        .page(config.page)
        .batches(config.batch, config.batches)
        .settle(config.settle_every, config.settle_after)
        .poll(config.poll_min, config.poll_max)
        .breaker(config.breaker_first, config.breaker_max);
    let route = match &config.destination {
        Some(topics) => route.router(topics.clone()),
        None => route,
    };
    Ok(match config.rate {
        Some(rate) => route.rate(rate),
        None => route,
    })
}
