//! Alive, started, ready, and what is wrong in words.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use postrider::diagnosis::{self, Finding};
use serde::Serialize;

use super::{Shared, Watched};

/// How long a store may take to be looked at.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn livez() -> &'static str {
    "alive\n"
}

pub(super) async fn startupz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    if shared.stores.iter().all(|store| store.relay.heartbeat_age().is_some()) {
        (StatusCode::OK, "started\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
    }
}

pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let state = shared.stores.iter().map(state).max().unwrap_or(Condition::Ready);
    (state.code(), format!("{}\n", state.name()))
}

pub(super) async fn healthz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let mut stores = Vec::new();
    for store in &shared.stores {
        stores.push(store_health(store).await);
    }
    let state = shared.stores.iter().map(state).max().unwrap_or(Condition::Ready);
    (state.code(), Json(Health { status: state.name(), stores }))
}

/// The worst is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Ready,
    Degraded,
    Unavailable,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Unavailable => "unavailable",
        }
    }

    fn code(self) -> StatusCode {
        match self {
            Self::Ready | Self::Degraded => StatusCode::OK,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

fn state(store: &Watched) -> Condition {
    match store.relay.heartbeat_age() {
        Some(age) if age < store.lease_life => {
            if store.relay.standstills().is_empty() {
                Condition::Ready
            } else {
                Condition::Degraded
            }
        }
        _ => Condition::Unavailable,
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    stores: Vec<StoreHealth>,
}

#[derive(Serialize)]
struct StoreHealth {
    store: String,
    status: &'static str,
    heartbeat_age_seconds: Option<f64>,
    findings: Vec<Finding>,
}

async fn store_health(store: &Watched) -> StoreHealth {
    let look = async {
        let overview = store.admin.overview().await?;
        diagnosis::survey(&*store.admin, &overview, &mut *store.topics.lock().await).await
    };
    let findings = match tokio::time::timeout(PATIENCE, look).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => vec![unreachable(&error.chain())],
        Err(_) => vec![unreachable("no answer in time")],
    };
    StoreHealth {
        store: store.name.clone(),
        status: state(store).name(),
        heartbeat_age_seconds: store.relay.heartbeat_age().map(|age| age.as_secs_f64()),
        findings,
    }
}

fn unreachable(why: &str) -> Finding {
    Finding {
        route: None,
        code: "store-unreachable",
        what: format!("the store cannot be read: {why}"),
        fix: Some("see that the database runs and lets this node in; the relay tries again by itself".to_owned()),
    }
}
