//! Producers in a closed loop: every one of them runs one transaction after the other, as tasks of a service do.

use std::{
    collections::BTreeMap,
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

/// What every variant reached with so many producers, round by round.
pub(crate) struct Rates<V>(BTreeMap<(usize, V), Vec<f64>>);

impl<V: Copy + Ord> Rates<V> {
    /// The median ratio of two variants, each of two slices of the same round.
    pub(crate) fn ratio(&self, producers: usize, ours: V, theirs: V) -> f64 {
        let pairs = self.of(producers, ours).iter().zip(self.of(producers, theirs));
        median(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }

    /// The median rate of one, in transactions per second.
    pub(crate) fn rate(&self, producers: usize, variant: V) -> f64 {
        median(self.of(producers, variant).to_vec())
    }

    fn of(&self, producers: usize, variant: V) -> &[f64] {
        &self.0[&(producers, variant)]
    }
}

/// All variants in turn, in another order each round, with each of the groups of producers.
pub(crate) async fn take_turns<P: Producer<Variant: Ord>, const N: usize>(
    mut groups: [&mut Vec<P>; N],
    variants: &[P::Variant],
    slice: Duration,
    rounds: usize,
) -> Result<Rates<P::Variant>> {
    let mut rates: BTreeMap<(usize, P::Variant), Vec<f64>> = BTreeMap::new();
    for round in 0..=rounds {
        for turn in 0..variants.len() {
            let variant = variants[(turn + round) % variants.len()];
            for producers in &mut groups {
                let rate = slice_of(producers, variant, slice, || ()).await?;
                // The first one warms up.
                if round > 0 {
                    rates.entry((producers.len(), variant)).or_default().push(rate);
                }
            }
        }
    }
    Ok(Rates(rates))
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
