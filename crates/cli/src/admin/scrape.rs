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
    diagnosis,
    metrics::{CONTENT_TYPE, Metrics},
};
use tokio::sync::Mutex;

use super::{Shared, Watched};

/// A look at the store is good for so long.
const FRESH: Duration = Duration::from_secs(2);

/// How long a store may take to be looked at.
const PATIENCE: Duration = Duration::from_secs(5);

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
            for store in stores {
                look(store).await;
            }
            *looked_at = Some(Instant::now());
        }
        self.metrics.render()
    }
}

async fn look(store: &Watched) {
    let look = async {
        let (overview, dead, vitals) =
            tokio::try_join!(store.admin.overview(), store.admin.dead_groups(), store.admin.vitals())?;
        let mut topics = store.topics.lock().await;
        let findings = diagnosis::survey(&*store.admin, &overview, &mut topics).await?;
        Ok::<_, postrider::Error>((topics.unread(&overview), overview, dead, vitals, findings))
    };
    match tokio::time::timeout(PATIENCE, look).await {
        Ok(Ok((unread, overview, dead, vitals, findings))) => {
            store.metrics.show_unrouted(&unread);
            store.metrics.show(&overview, &dead);
            store.metrics.show_vitals(&vitals);
            store.metrics.show_retention(&vitals, store.keep);
            store.metrics.show_findings(&findings);
        }
        Ok(Err(_)) | Err(_) => store.metrics.show_unreachable(),
    }
}

pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], shared.scraper.text(&shared.stores).await)
}
