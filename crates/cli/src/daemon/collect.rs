//! Carrying the mail of documents into a store, beside the relay that delivers it from there.
//!
//! A server that is away is told once and tried again by itself: what waits in its documents waits there. What trying again
//! cannot cure, such as mail that goes into another store, ends the start; where the server was away then, it is told when it
//! comes.

use std::{sync::Arc, time::Duration};

use postrider::{
    Error, ErrorKind,
    core::admin::StoreAdmin,
    metrics::StoreMetrics,
    mongodb::embedded::{Builder, Collector, Round},
};
use tracing::{info, warn};

use crate::{
    config::StoreConfig,
    exit::{Failure, Outcome},
    registry::{Place, StoreAdapter},
};

/// How soon a server that was away is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// How long giving the lease back may take; if it does not get there, the lease expires.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// The collector of one store.
pub(super) struct Collecting {
    store: String,
    builder: Builder,
    opened: Option<Collector>,
}

impl Collecting {
    /// Opens the collector of a store, if it has one. The store is open already.
    pub(super) async fn open(
        store: &StoreConfig,
        (adapter, place): (&'static dyn StoreAdapter, &Place),
    ) -> Outcome<Option<Self>> {
        let Some(config) = &store.collect else { return Ok(None) };
        let builder = config.builder()?.store_identity(&identity(adapter, place.clone()).await?);
        let opened = match builder.clone().open().await {
            Ok(collector) => Some(collector),
            Err(error) if error.is_transient() => {
                warn!(store = store.name, error = error.chain(), "mail cannot be collected yet; trying again");
                None
            }
            Err(error) => return Err(Failure::from(error)),
        };
        Ok(Some(Self { store: store.name.clone(), builder, opened }))
    }

    /// Until `stopped` resolves.
    pub(super) async fn run(
        mut self,
        into: Arc<dyn StoreAdmin>,
        metrics: Arc<StoreMetrics>,
        stopped: impl Future<Output = ()>,
    ) {
        let store = self.store.clone();
        // What keeps it from being opened at the start is told there.
        let mut told = Told { store: &store, metrics: &metrics, failing: Some(ErrorKind::Unavailable) };
        tokio::pin!(stopped);
        let collector = loop {
            if let Some(collector) = self.opened.take() {
                break collector;
            }
            metrics.collector_up(false);
            tokio::select! {
                () = &mut stopped => return,
                () = tokio::time::sleep(AGAIN_AFTER) => {}
            }
            match self.builder.clone().open().await {
                Ok(collector) => self.opened = Some(collector),
                Err(error) => told.fail(&error),
            }
        };
        info!(store, "collecting the mail of documents");
        told.failing = None;
        tokio::select! {
            () = &mut stopped => {}
            () = collector.run(&*into, |round| told.hear(round)) => {}
        }
        let _ = tokio::time::timeout(RELEASE_PATIENCE, collector.release()).await;
    }
}

/// What tells a store from any other: when it was made. A URL does not, for on another host the same one is another file.
async fn identity(adapter: &'static dyn StoreAdapter, place: Place) -> Outcome<String> {
    // Migrations are looked at outside of any runtime.
    let looked = tokio::task::spawn_blocking(move || adapter.migrations(&place)).await;
    let failed = |error| Error::new(ErrorKind::Other, "look when the store was made").caused_by(error);
    let made_at = looked.map_err(failed)??.first().and_then(|first| first.applied_at);
    let made_at = made_at.ok_or_else(|| Error::new(ErrorKind::Schema, "the store does not know when it was made"))?;
    Ok(format!("made at {made_at}"))
}

/// What is logged and counted of the rounds: a fault once, whatever comes of another kind behind it, and its end.
struct Told<'a> {
    store: &'a str,
    metrics: &'a StoreMetrics,
    failing: Option<ErrorKind>,
}

impl Told<'_> {
    fn hear(&mut self, round: &Result<Round, Error>) {
        self.metrics.collector_up(round.is_ok());
        match round {
            Ok(round) => {
                if self.failing.take().is_some() {
                    info!(store = self.store, "mail is collected again");
                }
                self.metrics.collected(round.messages as u64, round.refused.len() as u64);
                for refused in &round.refused {
                    let (collection, document) = (&*refused.collection, &*refused.document);
                    let cause = refused.cause.to_string();
                    warn!(
                        store = self.store,
                        collection, document, cause, "mail of a document cannot be sent and waits"
                    );
                }
            }
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: &Error) {
        if self.failing.replace(error.kind()) != Some(error.kind()) {
            warn!(store = self.store, error = error.chain(), "mail cannot be collected; trying again");
        }
    }
}
