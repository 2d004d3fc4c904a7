//! Alive, started, ready, and what is wrong in words.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode, response::IntoResponse};
use postrider::{ErrorKind, Result, diagnosis::Finding};
use serde::Serialize;

use super::{Blind, Shared, Watched, at_once, see};
use crate::{exit::Code, unread::Unread};

pub(super) async fn livez() -> &'static str {
    "alive\n"
}

pub(super) async fn startupz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let works = |store: &Watched| store.relay.heartbeat_age().is_some();
    if shared.stores.get().is_some_and(|stores| stores.iter().all(works)) {
        (StatusCode::OK, "started\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting\n")
    }
}

pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let state = condition(&shared);
    (state.code(), format!("{}\n", state.name()))
}

pub(super) async fn healthz(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let open = shared.stores.get().map_or(&[][..], Vec::as_slice);
    let answers = at_once(open.iter().map(|store| see(store, findings(store)))).await;
    let stores = open.iter().zip(answers).map(|(store, found)| store_health(store, found)).collect();
    let state = condition(&shared);
    (state.code(), Json(Health { status: state.name(), stores }))
}

/// That of the store that is worst off.
fn condition(shared: &Shared) -> Condition {
    shared.stores.get().and_then(|stores| stores.iter().map(state).max()).unwrap_or(Condition::Starting)
}

/// The worst is the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Ready,
    Degraded,
    /// Its relay has not been at work yet.
    Starting,
    Unavailable,
}

impl Condition {
    fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Starting => "starting",
            Self::Unavailable => "unavailable",
        }
    }

    fn code(self) -> StatusCode {
        match self {
            Self::Ready | Self::Degraded => StatusCode::OK,
            Self::Starting | Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
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
        None => Condition::Starting,
        Some(_) => Condition::Unavailable,
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

async fn findings(store: &Watched) -> Result<Vec<Finding>> {
    let overview = store.admin.overview().await?;
    let (mut findings, _) = store.survey(&overview).await?;
    findings.extend(store.topics.lock().await.in_part());
    Ok(findings)
}

fn store_health(store: &Watched, found: Option<Result<Vec<Finding>, Blind>>) -> StoreHealth {
    let findings = match found {
        Some(Ok(findings)) => findings,
        Some(Err(Blind::Locked(lock))) => vec![lock],
        Some(Err(Blind::Failed(error))) => {
            let kind = error.kind();
            vec![unread(Unread::of(Code::of(kind), kind == ErrorKind::Corrupt), &error.chain())]
        }
        Some(Err(Blind::Silent)) | None => vec![unread(Unread::Unreachable, "no answer in time")],
    };
    StoreHealth {
        store: store.name.clone(),
        status: state(store).name(),
        heartbeat_age_seconds: store.relay.heartbeat_age().map(|age| age.as_secs_f64()),
        findings,
    }
}

/// Unlike a command, a relay tries again by itself.
fn unread(unread: Unread, why: &str) -> Finding {
    let fix = match unread {
        Unread::Corrupt => "bring it back from a backup",
        Unread::Unreachable => "see that the database runs and lets this node in; the relay tries again by itself",
        Unread::Refused => {
            "the cause says what it wants; `postrider migrate status` tells of the schema. The relay tries again by itself"
        }
        Unread::Failed => "the cause says what has failed; the relay tries again by itself",
    };
    let what = format!("the store cannot be read: {why}");
    Finding { route: None, code: unread.code(), what, fix: Some(fix.to_owned()) }
}
