//! The daemon's own HTTP server: is it alive, can it work, what does it count.
//!
//! | path | asks | answers 503 |
//! |---|---|---|
//! | `/livez` | does the process run? | never: it asks neither store nor destination |
//! | `/startupz` | has every relay been at work once? | until then |
//! | `/readyz` | can this node do its job? | until then, and if a store has not answered for as long as a lease lives |
//! | `/healthz` | what is wrong, in words? | as `/readyz` |
//! | `/metrics` | what is counted? | never |
//!
//! It answers before the stores are opened, so that a long start is not taken for a hang. A destination that is down makes a
//! node *degraded*, which is still 200: restarting the node would not help. It listens on loopback unless told otherwise, and
//! anywhere else only with a token, which `/healthz` and `/metrics` then ask for. The others tell nothing but a word.

mod connection;
mod health;
mod heartbeat;
mod scrape;
mod token;

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Router, middleware, routing::get};
use futures_util::future::join_all;
use postrider::{
    Error, Result,
    core::admin::{Overview, StoreAdmin},
    diagnosis::{self, Finding, Topics},
    metrics::{Metrics, StoreMetrics},
    relay::RelayHandle,
};
use tokio::{net::TcpListener, sync::Mutex};

pub(crate) use self::heartbeat::Heartbeats;
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
    /// Why its heartbeats fail, if they do.
    pub(crate) heartbeats: Arc<Heartbeats>,
    /// How long delivered records are kept; `None`: forever.
    pub(crate) keep: Option<Duration>,
}

impl Watched {
    /// What is wrong with the store, and the topics that no route reads with their messages. While the log is still walked,
    /// which the start does by itself, as far as that has come.
    async fn survey(&self, overview: &Overview) -> Result<(Vec<Finding>, Vec<(String, u64)>)> {
        let mut topics = self.topics.lock().await;
        if topics.is_whole() {
            topics.look(&*self.admin).await?;
            // Whoever asks has not the time for a large log: the first walk is gone on with by the relay itself.
            while !topics.sort_out_some(&*self.admin, overview).await? && topics.is_sorted_out() {}
        }
        let mut findings = diagnosis::survey(&*self.admin, overview, &topics).await?;
        if let Some(unheard) = self.heartbeats.finding(self.relay.heartbeat_age(), self.lease_life)
            && !findings.iter().any(|finding| finding.code == STORE_LOCKED)
        {
            // Where nothing waits nobody has asked yet whether that is why; a lock is told with who keeps it.
            findings.insert(0, diagnosis::locked(&*self.admin).await.unwrap_or(unheard));
        }
        Ok((findings, topics.unread(overview)))
    }
}

/// The code of a lock that everybody waits for.
const STORE_LOCKED: &str = "store-locked";

/// What is told to whoever asks. Clones are the same.
#[derive(Clone)]
pub(crate) struct Told(Arc<Shared>);

/// What the handlers share.
struct Shared {
    /// Empty until all of them are open.
    stores: OnceLock<Vec<Watched>>,
    scraper: Scraper,
    token: Arc<Token>,
}

impl Told {
    /// The daemon has begun; its stores are yet to be opened.
    pub(crate) fn new(metrics: Metrics, token: Option<String>) -> Self {
        let (scraper, token) = (Scraper::new(metrics), Arc::new(Token::new(token)));
        Self(Arc::new(Shared { stores: OnceLock::new(), scraper, token }))
    }

    /// They are open, all of them. Said once.
    pub(crate) fn stores_are(&self, stores: Vec<Watched>) {
        let _ = self.0.stores.set(stores);
    }

    /// From now on this token has to be shown and no other.
    pub(crate) fn ask_for(&self, token: String) {
        self.0.token.replace(token);
    }
}

/// How long all stores together may take to be looked at.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is left of that to ask for a lock, once a look has failed or taken too long.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Why a look has seen nothing.
enum Blind {
    /// Somebody keeps a lock behind which nobody can look.
    Locked(Finding),
    /// Nobody has answered in time.
    Silent,
    /// What was answered instead.
    Failed(Error),
}

/// Looks at a store. Where nothing comes of it, it is asked who keeps it locked: that question needs none of its tables, and
/// none of the connections that a relay may have waiting for one.
async fn see<T>(store: &Watched, look: impl Future<Output = Result<T>>) -> Result<T, Blind> {
    let blind = match tokio::time::timeout(PATIENCE - LOCK_PATIENCE, look).await {
        Ok(Ok(seen)) => return Ok(seen),
        Ok(Err(error)) => Blind::Failed(error),
        Err(_) => Blind::Silent,
    };
    Err(diagnosis::locked(&*store.admin).await.map_or(blind, Blind::Locked))
}

/// Every answer, or `None` in place of one that did not come in time. They are asked at once: each store that is down would
/// add its share to the wait for all others.
async fn at_once<T>(asked: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<Option<T>> {
    let within = |asked| async { tokio::time::timeout(PATIENCE, asked).await.ok() };
    join_all(asked.into_iter().map(within)).await
}

/// Takes the address, before anything else is started: a taken port must not be found out later.
pub(crate) async fn bind(listen: SocketAddr) -> Outcome<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        Failure::because(Code::Usage, format!("the address {listen} of `[admin]` cannot be listened on"), &error)
    })
}

/// Serves until the future is dropped.
pub(crate) async fn serve(listener: TcpListener, told: Told) {
    let shared = told.0;
    let guarded = Router::new()
        .route("/healthz", get(health::healthz))
        .route("/metrics", get(scrape::metrics))
        .layer(middleware::from_fn_with_state(Arc::clone(&shared.token), token::require));
    let router = Router::new()
        .route("/livez", get(health::livez))
        .route("/startupz", get(health::startupz))
        .route("/readyz", get(health::readyz))
        .merge(guarded)
        .with_state(shared);
    connection::serve(listener, router).await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::sync::Barrier;

    use super::*;

    /// Each waits for the other: one after the other, neither would answer.
    #[tokio::test]
    async fn stores_are_asked_at_once() {
        let barrier = Barrier::new(2);
        let answers = at_once([barrier.wait(), barrier.wait()]).await;
        assert!(answers.iter().all(Option::is_some));
    }

    /// Two that never answer cost no more than one, and the third is told all the same.
    #[tokio::test]
    async fn stores_that_are_down_have_one_deadline() {
        let began = Instant::now();
        let store = async |up: bool| if up { 1 } else { std::future::pending().await };
        assert_eq!(at_once([store(false), store(true), store(false)]).await, [None, Some(1), None]);
        assert!(began.elapsed() >= PATIENCE);
    }
}
