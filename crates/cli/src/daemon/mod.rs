//! From a configuration to running relays, and how they stop.
//!
//! The first SIGTERM or SIGINT drains all of them: what is in flight comes back, the cursors move over it, and the lanes are
//! given back, so that nothing is published twice. A second one ends the process at once; what was in flight is then
//! published again by the next owner. SIGHUP reads the configuration again.

mod build;
mod collect;
mod gone;
mod log;
mod reload;
mod signals;
mod unrouted;

use std::sync::Arc;

use postrider::{metrics::Metrics, relay::RelayHandle};
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

pub(crate) use self::log::log_to_stderr;
use self::{
    build::Outbox,
    log::Log,
    reload::Reloader,
    signals::{Reload, Stop},
};
use crate::{
    admin,
    config::{Loaded, Source},
    exit::{Code, Failure, Outcome},
    telemetry::Telemetry,
};

/// Runs until a signal comes.
pub(crate) fn run(source: &Source) -> Outcome {
    let loaded = source.load()?;
    let log = Log::start(&loaded.config.log);
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    let telemetry = Arc::new(Telemetry::start(&loaded.config.telemetry)?);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because(Code::Problem, "the runtime cannot be started", &error))?;
    let outcome = runtime.block_on(serve(source, &loaded, log, &telemetry));
    // A write to a destination that stands still must not keep the process.
    runtime.shutdown_background();
    telemetry.stop();
    outcome
}

async fn serve(source: &Source, loaded: &Loaded, log: Log, telemetry: &Arc<Telemetry>) -> Outcome {
    let config = &loaded.config;
    let (stop, reload) = (Stop::install()?, Reload::install()?);
    let listener = match &config.admin {
        Some(admin) => Some((admin::bind(admin.listen).await?, admin.token()?)),
        None => None,
    };
    let metrics = Metrics::new();
    let mut relays = JoinSet::new();
    let mut watched = Vec::new();
    let (stop_collecting, collecting_stops) = watch::channel(());
    let mut collectors = JoinSet::new();
    let mut helpers = JoinSet::new();
    for Outbox { relay, watched: watch, collecting, gone } in build::outboxes(config, &metrics, telemetry).await? {
        info!(store = watch.name, node = %watch.relay.node(), "relay starts");
        if let Some(collecting) = collecting {
            let mut stops = collecting_stops.clone();
            // Ends with the sender, which says nothing else.
            let stopped = async move { drop(stops.changed().await) };
            collectors.spawn(collecting.run(Arc::clone(&watch.admin), Arc::clone(&watch.metrics), stopped));
        }
        helpers.spawn(gone::pause_routes(Arc::clone(&watch.admin), gone));
        helpers.spawn(unrouted::watch(watch.name.clone(), Arc::clone(&watch.admin), Arc::clone(&watch.topics)));
        watched.push(watch);
        relays.spawn(relay.run());
    }
    let by_store = watched.iter().map(|watch| (watch.name.clone(), watch.relay.clone())).collect();
    let reloader = Reloader::new(source.clone(), loaded, log, by_store, Arc::clone(telemetry));
    let handles: Vec<RelayHandle> = watched.iter().map(|watch| watch.relay.clone()).collect();
    if let Some((listener, token)) = listener {
        info!(address = ?listener.local_addr().ok(), "answering /livez, /readyz, /healthz and /metrics");
        helpers.spawn(admin::serve(listener, token, admin::scraper(metrics), watched));
    }
    helpers.spawn(drain_at_signal(stop, handles.clone()));
    helpers.spawn(read_again_at_signal(reload, reloader));
    let ended = all_ended(&mut relays, &handles).await;
    drop(stop_collecting);
    collectors.join_all().await;
    helpers.shutdown().await;
    ended?;
    if handles.iter().any(|handle| handle.stats().undrained() > 0) {
        let message = "the drain deadline has passed; what was in flight will be published again";
        return Err(Failure::new(Code::Problem, message));
    }
    info!("relay has stopped");
    Ok(Code::Done)
}

/// Until the last relay has ended. If one ends, the others are drained: whether it was asked to leave or has failed, a
/// process that serves only some of its stores would look well and not be. A failure is the daemon's.
async fn all_ended(relays: &mut JoinSet<postrider::Result<()>>, handles: &[RelayHandle]) -> Outcome<()> {
    let mut outcome = Ok(());
    while let Some(ended) = relays.join_next().await {
        handles.iter().for_each(RelayHandle::drain);
        let failure = match ended {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => Failure::from(error),
            Err(error) => Failure::because(Code::Problem, "a relay has crashed", &error),
        };
        if outcome.is_ok() {
            outcome = Err(failure);
        }
    }
    outcome
}

async fn drain_at_signal(mut stop: Stop, handles: Vec<RelayHandle>) {
    stop.next().await;
    info!("draining; a second signal ends the process at once");
    handles.iter().for_each(RelayHandle::drain);
    stop.next().await;
    warn!("ended without draining; what was in flight will be published again");
    std::process::exit(Code::Problem as i32);
}

async fn read_again_at_signal(mut reload: Reload, mut reloader: Reloader) {
    loop {
        reload.next().await;
        reloader.read_again();
    }
}
