//! The doors through which time, chance and tasks enter the engine.
//!
//! The engine asks nothing else for the time and starts nothing by itself, so that the simulator can run the whole of it
//! from one seed. Applications use [`TokioRuntime`] without noticing.

use std::time::{Duration, Instant};

use postrider_core::BoxFuture;

/// Time, chance and tasks.
pub trait Runtime: Send + Sync {
    /// Monotonic time since some origin.
    fn now(&self) -> Duration;

    /// Resolves once [`Self::now`] has reached `at`, not before.
    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task beside the caller.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// A number that nobody can guess, or in a simulation, one that the seed decides.
    fn random(&self) -> u64;
}

/// The tokio runtime in which the relay runs.
#[derive(Debug)]
pub struct TokioRuntime {
    origin: Instant,
}

impl TokioRuntime {
    /// Time begins now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for TokioRuntime {
    fn default() -> Self {
        Self::new()
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep_until((self.origin + at).into()))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(self.origin)
    }
}
