//! `/metrics`: what is counted, with a fresh look at the store.
//!
//! A look costs the store a few queries, so it is shared: whoever asks again within a moment gets the same. A store that
//! does not answer in time is said to be down, and everything else is served all the same.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{extract::State, http::header, response::IntoResponse};
use postrider::{
    Result,
    core::admin::{CauseGroup, Overview, Vitals},
    diagnosis::Finding,
    metrics::{CONTENT_TYPE, Metrics},
};
use tokio::sync::Mutex;

use super::{Blind, Shared, Watched, at_once, see};

/// A look at the store is good for so long.
const FRESH: Duration = Duration::from_secs(2);

pub(crate) struct Scraper {
    metrics: Metrics,
    looked_at: Mutex<Option<Instant>>,
}

impl Scraper {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self { metrics, looked_at: Mutex::new(None) }
    }

    async fn text(&self, stores: &[Watched]) -> String {
        let mut looked_at = self.looked_at.lock().await;
        if looked_at.is_none_or(|at| at.elapsed() >= FRESH) {
            let looks = stores.iter().map(|store| see(store, look(store)));
            at_once(looks).await.into_iter().zip(stores).for_each(|(answer, store)| match answer {
                Some(Ok(looked)) => looked.show(store),
                Some(Err(Blind::Locked(lock))) => store.metrics.show_locked(lock),
                Some(Err(Blind::Silent | Blind::Failed(_))) | None => store.metrics.show_unreachable(),
            });
            *looked_at = Some(Instant::now());
        }
        self.metrics.render()
    }
}

/// What one look at a store has seen.
struct Looked {
    overview: Overview,
    dead: Vec<CauseGroup>,
    vitals: Vitals,
    findings: Vec<Finding>,
    unread: Vec<(String, u64)>,
}

async fn look(store: &Watched) -> Result<Looked> {
    let admin = &store.admin;
    let (overview, dead, vitals) = tokio::try_join!(admin.overview(), admin.dead_groups(), admin.vitals())?;
    let (findings, unread) = store.survey(&overview).await?;
    Ok(Looked { overview, dead, vitals, findings, unread })
}

impl Looked {
    fn show(&self, Watched { metrics, keep, .. }: &Watched) {
        metrics.show_unrouted(&self.unread);
        metrics.show(&self.overview, &self.dead);
        metrics.show_vitals(&self.vitals);
        metrics.show_retention(&self.vitals, *keep);
        metrics.show_findings(&self.findings);
    }
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], shared.scraper.text(shared.stores.get().map_or(&[], Vec::as_slice)).await)
}
