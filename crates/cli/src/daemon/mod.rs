//! From a configuration to running relays, and how they stop.
//!
//! The first SIGTERM or SIGINT drains all of them: what is in flight comes back, the cursors move over it, and the lanes are
//! given back, so that nothing is published twice. A second one, unless it comes along with the first, ends the process at
//! once; what was in flight is then published again by the next owner. During the start the first one ends it too: whatever it
//! waits for, nothing is in flight. SIGHUP reads the configuration again.

mod build;
mod collect;
mod expiry;
mod gone;
mod log;
mod reload;
mod unrouted;

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use postrider::{Relay, metrics::Metrics, relay::RelayHandle};
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

pub(crate) use self::log::log_to_stderr;
use self::{
    build::Outbox,
    log::Log,
    reload::Reloader,
    unrouted::{Judged, Unrouted},
};
use crate::{
    admin::{self, Told},
    config::{AdminConfig, Loaded, Source},
    exit::{Code, Failure, Outcome},
    signals::{Reload, Stop},
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
    let mut helpers = JoinSet::new();
    let (tell_stop, mut stopping) = watch::channel(false);
    helpers.spawn(heed_signals(Stop::install()?, tell_stop));
    let reload = Reload::install()?;
    let metrics = Metrics::new();
    let told = match &config.admin {
        Some(admin) => Some(answer(admin, metrics.clone(), &mut helpers).await?),
        None => None,
    };
    // Opening may take long: a server that does not answer, a migration that waits for a lock.
    let outboxes = tokio::select! {
        biased;
        () = is_told(&mut stopping) => {
            info!("stopped before anything was started");
            return Ok(Code::Done);
        }
        opened = build::outboxes(config, &metrics, telemetry) => opened?,
    };
    let mut relays = JoinSet::new();
    let (mut routes, mut watched) = (Vec::new(), Vec::new());
    let (stop_collecting, collecting_stops) = watch::channel(());
    let mut collectors = JoinSet::new();
    for Outbox { relay, routes: own, watched: watch, unrouted, collecting, gone } in outboxes {
        info!(store = watch.name, node = %watch.relay.node(), "relay starts");
        if let Some(collecting) = collecting {
            let mut stops = collecting_stops.clone();
            // Ends with the sender, which says nothing else.
            let stopped = async move { drop(stops.changed().await) };
            collectors.spawn(collecting.run(Arc::clone(&watch.admin), Arc::clone(&watch.metrics), stopped));
        }
        helpers.spawn(gone::pause_routes(Arc::clone(&watch.admin), watch.relay.clone(), gone));
        if let Some(keep) = config.relay.keep_dead {
            helpers.spawn(expiry::run(Arc::clone(&watch.admin), keep, config.relay.options.purge_every));
        }
        routes.extend(own);
        watched.push(watch);
        relays.spawn(run_one(relay, unrouted, stopping.clone()));
    }
    let by_store = watched.iter().map(|watch| (watch.name.clone(), watch.relay.clone())).collect();
    let handles: Vec<RelayHandle> = watched.iter().map(|watch| watch.relay.clone()).collect();
    if let Some(told) = &told {
        told.stores_are(watched);
    }
    let reloader = Reloader::new(source.clone(), loaded, routes, log, by_store, Arc::clone(telemetry), told);
    helpers.spawn(drain_when_told(stopping, handles.clone()));
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

/// Listens, and answers from now on: a probe that gets no answer during a long start would have the process killed.
async fn answer(config: &AdminConfig, metrics: Metrics, helpers: &mut JoinSet<()>) -> Outcome<Told> {
    let (listener, token) = (admin::bind(config.listen).await?, config.token()?);
    let told = Told::new(metrics, token);
    // With the port that the system has chosen, if it was left to it.
    let address = listener.local_addr().unwrap_or(config.listen);
    info!(%address, "answering /livez, /readyz, /healthz and /metrics");
    helpers.spawn(admin::serve(listener, told.clone()));
    Ok(told)
}

/// One relay, from the look at its log to its end. Topics that no route reads are its failure.
async fn run_one(relay: Relay, unrouted: Unrouted, mut stopping: watch::Receiver<bool>) -> Outcome<()> {
    let handle = relay.handle();
    let first = async {
        match unrouted.may_wait().await? {
            true => Ok(None),
            false => unrouted.look_at_all().await.map(Some),
        }
    };
    let judged = tokio::select! {
        biased;
        () = is_told(&mut stopping) => return Ok(()),
        judged = first => judged?,
    };
    let mut running = std::pin::pin!(relay.run());
    tokio::select! {
        biased;
        ended = &mut running => Ok(ended?),
        Err(refused) = watch_topics(&unrouted, judged) => {
            handle.drain();
            running.await?;
            Err(refused)
        }
    }
}

/// Looks at the whole log, unless that is done, and then at what is new. Ends when it is dropped, or with topics that no
/// route reads.
async fn watch_topics(unrouted: &Unrouted, judged: Option<Judged>) -> Outcome<Infallible> {
    let judged = match judged {
        Some(judged) => judged,
        None => unrouted.look_at_all().await?,
    };
    Ok(unrouted.watch(judged).await)
}

/// Until the last relay has ended. If one ends, the others are drained: whether it was asked to leave or has failed, a
/// process that serves only some of its stores would look well and not be. A failure is the daemon's.
async fn all_ended(relays: &mut JoinSet<Outcome<()>>, handles: &[RelayHandle]) -> Outcome<()> {
    let mut outcome = Ok(());
    while let Some(ended) = relays.join_next().await {
        handles.iter().for_each(RelayHandle::drain);
        let failure = match ended {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure,
            Err(error) => Failure::because(Code::Problem, "a relay has crashed", &error),
        };
        if outcome.is_ok() {
            outcome = Err(failure);
        }
    }
    outcome
}

/// A signal that comes so soon after the first is the same wish: `timeout`, terminals and supervisors signal a process and its
/// group, or send two kinds at once.
const SAME_WISH: Duration = Duration::from_millis(500);

/// The first signal is told on; a second one ends the process, whatever it does.
async fn heed_signals(mut stop: Stop, tell: watch::Sender<bool>) {
    stop.next().await;
    info!("draining; a second signal ends the process at once");
    tell.send_replace(true);
    let told_at = Instant::now();
    stop.next().await;
    // Ends with one that was meant as a second.
    while told_at.elapsed() < SAME_WISH {
        stop.next().await;
    }
    warn!("ended without draining; what was in flight will be published again");
    std::process::exit(Code::Problem as i32);
}

/// Until somebody has asked for an end.
async fn is_told(stopping: &mut watch::Receiver<bool>) {
    // Who could ask is there until the process ends.
    if stopping.wait_for(|told| *told).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn drain_when_told(mut stopping: watch::Receiver<bool>, handles: Vec<RelayHandle>) {
    is_told(&mut stopping).await;
    handles.iter().for_each(RelayHandle::drain);
}

async fn read_again_at_signal(mut reload: Reload, mut reloader: Reloader) {
    loop {
        reload.next().await;
        reloader.read_again();
    }
}
