//! Producers in a closed loop: every one of them runs one transaction after the other, as tasks of a service do.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::measure::median;

/// One connection with its statements.
pub(crate) trait Producer: Send + Sized + 'static {
    /// What a transaction does.
    type Variant: Copy + Send;

    /// One transaction, from its beginning to the answer to its commit.
    fn transaction(&mut self, variant: Self::Variant) -> impl Future<Output = Result<()>> + Send;
}

/// Transactions per second of all producers together, for as long as a slice lasts.
pub(crate) async fn slice_of<P: Producer>(
    producers: &mut Vec<P>,
    variant: P::Variant,
    slice: Duration,
    after_commit: impl Fn() + Clone + Send + 'static,
) -> Result<f64> {
    let (over, began) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let tasks: Vec<_> = producers
        .drain(..)
        .map(|producer| tokio::spawn(work(producer, variant, Arc::clone(&over), after_commit.clone())))
        .collect();
    tokio::time::sleep(slice).await;
    over.store(true, Ordering::Relaxed);
    let mut transactions = 0;
    for task in tasks {
        let (producer, count) = task.await??;
        producers.push(producer);
        transactions += count;
    }
    Ok(transactions as f64 / began.elapsed().as_secs_f64())
}

/// Two variants in turn, in another order each round: the median ratio of the second to the first, and the median rate of
/// the first.
pub(crate) async fn compare<P: Producer>(
    producers: &mut Vec<P>,
    variants: [P::Variant; 2],
    slice: Duration,
    rounds: usize,
) -> Result<(f64, f64)> {
    let (mut ratios, mut first) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let mut rates = [0.0, 0.0];
        for turn in [round % 2, 1 - round % 2] {
            rates[turn] = slice_of(producers, variants[turn], slice, || ()).await?;
        }
        // The first one warms up.
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
            first.push(rates[0]);
        }
    }
    Ok((median(ratios), median(first)))
}

/// One transaction after the other until it is over; how many.
async fn work<P: Producer>(
    mut producer: P,
    variant: P::Variant,
    over: Arc<AtomicBool>,
    after_commit: impl Fn() + Send,
) -> Result<(P, u64)> {
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        producer.transaction(variant).await?;
        after_commit();
        count += 1;
    }
    Ok((producer, count))
}
