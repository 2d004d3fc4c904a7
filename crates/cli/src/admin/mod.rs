//! The daemon's own HTTP server: is it alive, can it work, what does it count.
//!
//! | path | asks | answers 503 |
//! |---|---|---|
//! | `/livez` | does the process run? | never: it asks neither store nor destination |
//! | `/startupz` | has every store answered once? | until then |
//! | `/readyz` | can this node do its job? | if a store has not answered for as long as a lease lives |
//! | `/healthz` | what is wrong, in words? | as `/readyz` |
//! | `/metrics` | what is counted? | never |
//!
//! A destination that is down makes a node *degraded*, which is still 200: restarting the node would not help. It listens on
//! loopback unless told otherwise, and anywhere else only with a token, which `/healthz` and `/metrics` then ask for. The
//! others tell nothing but a word.

mod connection;
mod health;
mod scrape;
mod token;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, middleware, routing::get};
use postrider::{core::admin::StoreAdmin, diagnosis::Topics, metrics::StoreMetrics, relay::RelayHandle};
use tokio::{net::TcpListener, sync::Mutex};

use self::{scrape::Scraper, token::Token};
use crate::exit::{Code, Failure, Outcome};

/// One store, the relay that works on it, and what is counted of both.
pub(crate) struct Watched {
    /// What the store is called in metrics.
    pub(crate) name: String,
    pub(crate) relay: RelayHandle,
    pub(crate) admin: Arc<dyn StoreAdmin>,
    pub(crate) metrics: Arc<StoreMetrics>,
    /// What is known of the topics of its log, since the process has started.
    pub(crate) topics: Arc<Mutex<Topics>>,
    pub(crate) lease_life: Duration,
    /// How long delivered records are kept; `None`: forever.
    pub(crate) keep: Option<Duration>,
}

/// What the handlers share.
struct Shared {
    stores: Vec<Watched>,
    scraper: Scraper,
}

/// Takes the address, before anything else is started: a taken port must not be found out later.
pub(crate) async fn bind(listen: SocketAddr) -> Outcome<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        Failure::because(Code::Usage, format!("the address {listen} of `[admin]` cannot be listened on"), &error)
    })
}

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, token: Option<String>, scraper: Scraper, stores: Vec<Watched>) {
    let shared = Arc::new(Shared { stores, scraper });
    let guarded = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/metrics", get(scrape::metrics))
        .layer(middleware::from_fn_with_state(Arc::new(Token::new(token)), token::require));
    let router = Router::new()
        .route("/livez", get(health::livez))
        .route("/startupz", get(health::startupz))
        .route("/readyz", get(health::readyz))
        .merge(guarded)
        .with_state(shared);
    connection::serve(listener, router).await;
}

pub(crate) fn scraper(metrics: postrider::metrics::Metrics) -> Scraper {
    Scraper::new(metrics)
}
