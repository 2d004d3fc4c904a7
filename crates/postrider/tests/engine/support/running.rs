//! A relay in the background.

use std::{ops::Deref, sync::Arc, time::Duration};

use postrider::{
    Relay, Route,
    core::{
        Result,
        log::Log,
        retry::{Backoff, Jitter, RetryPolicy},
    },
    relay::{RelayHandle, options::Options},
};
use tokio::task::JoinHandle;

use super::{Broker, Observed};

/// A relay that runs until it is drained or dropped; dropping it is a crash.
pub(crate) struct Running {
    handle: RelayHandle,
    observed: Observed,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) fn start(log: &Arc<dyn Log>, routes: impl IntoIterator<Item = Route>) -> Self {
        Self::start_with(log, routes, options())
    }

    pub(crate) fn start_with(log: &Arc<dyn Log>, routes: impl IntoIterator<Item = Route>, options: Options) -> Self {
        let observed = Observed::default();
        let mut builder =
            Relay::builder(Arc::clone(log)).options(options).observer(Arc::new(observed.clone())).node_name("test");
        for route in routes {
            builder = builder.route(route);
        }
        let relay = builder.build().unwrap();
        Self { handle: relay.handle(), observed, task: tokio::spawn(relay.run()) }
    }

    pub(crate) fn observed(&self) -> &Observed {
        &self.observed
    }

    /// A clean stop.
    pub(crate) async fn drained(self) -> Observed {
        self.handle.drain();
        self.ended().await
    }

    /// Waits for a clean stop that somebody else has asked for.
    pub(crate) async fn ended(mut self) -> Observed {
        let ended = tokio::time::timeout(super::DEADLINE, &mut self.task).await;
        ended.expect("the relay stops in time").expect("no panic").expect("a clean stop");
        self.observed.clone()
    }

    /// Drops the future in the middle of whatever it does.
    pub(crate) async fn crash(mut self) -> Observed {
        self.task.abort();
        assert!((&mut self.task).await.unwrap_err().is_cancelled());
        self.observed.clone()
    }
}

impl Deref for Running {
    type Target = RelayHandle;
    fn deref(&self) -> &RelayHandle {
        &self.handle
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Quick to learn of changes, slow to lose a lease: a busy machine must not cause duplicates that a test counts.
pub(crate) fn options() -> Options {
    Options { lease_life: Duration::from_mins(1), heartbeat_every: Duration::from_millis(20), ..Options::default() }
}

/// A route that loses no time.
pub(crate) fn route(name: &str, broker: &Broker) -> Route {
    let ms = Duration::from_millis;
    Route::new(name, broker.clone())
        .poll(ms(2), ms(10))
        .settle(1000, ms(1))
        .breaker(ms(1), ms(10))
        .unknown(3, ms(1))
        .retry(retries(3))
}

/// So many attempts, a moment apart.
pub(crate) fn retries(attempts_max: u32) -> RetryPolicy {
    let backoff = Backoff::Fixed { wait: Duration::from_millis(1) };
    RetryPolicy { attempts_max, backoff, jitter: Jitter::None }
}
