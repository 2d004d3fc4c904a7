//! Medians, resident memory, and a publisher that does nothing.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use postrider::core::{
    BoxFuture,
    capability::PublisherCapabilities,
    log::RecordRef,
    transport::{Outcome, Publisher},
};
use tokio::sync::Notify;

/// Takes everything at once and counts it.
#[derive(Default)]
pub(crate) struct NullPublisher {
    taken: AtomicU64,
    wanted: AtomicU64,
    enough: Notify,
    /// When how many had been taken: one entry a batch.
    progress: Mutex<Vec<(Instant, u64)>>,
}

impl NullPublisher {
    /// Resolves once so many messages have been taken.
    pub(crate) async fn taken(&self, messages: u64) {
        self.wanted.store(messages, Ordering::Relaxed);
        self.enough.notified().await;
    }

    /// When how many had been taken, counted from `began`.
    pub(crate) fn progress(&self, began: Instant) -> Vec<(Duration, u64)> {
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.iter().map(|(at, taken)| (at.saturating_duration_since(began), *taken)).collect()
    }
}

impl Publisher for NullPublisher {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities { name: "null", run_max: 64, message_bytes_max: None, batch_max: None, batches_max: None }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        let taken = self.taken.fetch_add(batch.len() as u64, Ordering::Relaxed) + batch.len() as u64;
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), taken));
        if taken >= self.wanted.load(Ordering::Relaxed) {
            self.enough.notify_one();
        }
        Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
    }
}

/// The middle one; of an even number the lower of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}

/// The largest resident size that this process ever had, in MB.
pub(crate) fn peak_resident_mb() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|kib| kib.trim().parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| anyhow::anyhow!("the system does not tell the resident size"))
}
