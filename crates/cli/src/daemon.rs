//! From a configuration to a running relay, and how it stops.
//!
//! The first SIGTERM or SIGINT drains: what is in flight comes back, the cursor moves over it, and the lanes are given
//! back, so that nothing is published twice. A second one ends the process at once; what was in flight is then published
//! again by the next owner.

use std::{io::IsTerminal, sync::Arc};

use postrider::{
    Relay, Route,
    metrics::{Metrics, StoreMetrics},
    relay::events::{Observer, TracingObserver},
};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::{
    admin::{self, Watched},
    config::{Config, HttpConfig, RouteConfig, StoreConfig},
    exit::{Code, Failure, Outcome},
    registry::{self, Destination, Place},
};

/// What the store of a daemon is called in metrics.
const STORE_NAME: &str = "default";

/// Runs until a signal comes.
pub(crate) fn run(config: &Config) -> Outcome {
    log_to_stderr();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because(Code::Problem, "the runtime cannot be started", &error))?;
    let outcome = runtime.block_on(serve(config));
    // A write to a destination that stands still must not keep the process.
    runtime.shutdown_background();
    outcome
}

/// Log lines go to standard error, because standard output may be a route's destination. `RUST_LOG` chooses.
pub(crate) fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    // There may be a subscriber already; then it is the better one.
    let _ =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).try_init();
}

async fn serve(config: &Config) -> Outcome {
    let stop = Signals::install()?;
    let listener = match &config.admin {
        Some(admin) => Some((admin::bind(admin.listen).await?, admin.token()?)),
        None => None,
    };
    let Built { relay, watched, metrics } = build(config).await?;
    let handle = relay.handle();
    let server = listener.map(|(listener, token)| {
        info!(address = ?listener.local_addr().ok(), "answering /livez, /readyz, /healthz and /metrics");
        tokio::spawn(admin::serve(listener, token, admin::scraper(metrics), vec![watched]))
    });
    info!(node = %handle.node(), routes = config.routes.len(), "relay starts");
    let stats = handle.clone();
    let drainer = tokio::spawn(async move {
        let mut stop = stop;
        stop.next().await;
        info!("draining; a second signal ends the process at once");
        handle.drain();
        stop.next().await;
        warn!("ended without draining; what was in flight will be published again");
        std::process::exit(Code::Problem as i32);
    });
    let ended = relay.run().await;
    drainer.abort();
    if let Some(server) = server {
        server.abort();
    }
    ended?;
    if stats.stats().undrained() > 0 {
        let message = "the drain deadline has passed; what was in flight will be published again";
        return Err(Failure::new(Code::Problem, message));
    }
    info!("relay has stopped");
    Ok(Code::Done)
}

/// A relay, and what watches it.
struct Built {
    relay: Relay,
    watched: Watched,
    metrics: Metrics,
}

/// Opens the store and the destinations.
async fn build(config: &Config) -> Outcome<Built> {
    let (adapter, path) = registry::store(&config.store.url).map_err(Failure::usage)?;
    let StoreConfig { table_prefix, schema, connections, .. } = config.store.clone();
    let place = Place { path, table_prefix, schema, connections };
    let store = adapter.open(&place, config.store.migrate).await?;
    let metrics = Metrics::new();
    let of_store = Arc::new(metrics.of_store(STORE_NAME));
    let observers: Vec<Arc<dyn Observer>> = vec![Arc::new(TracingObserver), Arc::<StoreMetrics>::clone(&of_store)];
    let mut builder = Relay::builder(store.log).options(config.relay.clone()).observer(Arc::new(observers));
    if let Some(name) = &config.node_name {
        builder = builder.node_name(name);
    }
    for route in &config.routes {
        builder = builder.route(open_route(route)?);
    }
    let relay = builder.build()?;
    let watched = Watched {
        name: STORE_NAME.to_owned(),
        relay: relay.handle(),
        admin: store.admin,
        metrics: of_store,
        lease_life: config.relay.lease_life,
    };
    Ok(Built { relay, watched, metrics })
}

fn open_route(config: &RouteConfig) -> Outcome<Route> {
    let (open, rest) = registry::transport(&config.transport).map_err(Failure::usage)?;
    let destination = Destination { url: &config.transport, rest: &rest, http: config.http.as_ref() };
    let destination = open(&destination).map_err(|error| {
        let message = format!("the destination of the route `{}` cannot be opened", config.name);
        Failure::because(Code::Usage, message, &error)
    })?;
    let mut route = Route::to(&config.name, destination)
        .topics(&config.topics)
        .order(config.order)
        .lanes(config.lanes)
        .start(config.start)
        .on_dead(config.on_dead)
        .retry(config.retry.clone());
    if let Some(rate) = config.rate {
        route = route.rate(rate);
    }
    if let Some(records) = config.window {
        route = route.window(records);
    }
    if let Some(bytes) = config.window_bytes {
        route = route.window_bytes(bytes);
    }
    if let Some(timeout) = config.publish_timeout.or(config.http.as_ref().map(HttpConfig::publish_timeout)) {
        route = route.publish_timeout(timeout);
    }
    Ok(route)
}

/// The signals that ask for an end.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    /// From here on they no longer end the process by themselves.
    #[cfg(unix)]
    fn install() -> Outcome<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error: std::io::Error| Failure::because(Code::Problem, "signals cannot be received", &error);
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    #[cfg(not(unix))]
    fn install() -> Outcome<Self> {
        Ok(Self {})
    }

    /// Waits for the next of them. Dropping the future loses none.
    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
