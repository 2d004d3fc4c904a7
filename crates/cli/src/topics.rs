//! Topics that no route reads, as everything here looks for them.
//!
//! A log of some hundred million records takes minutes to walk. A daemon has that time; whoever runs a command has not, and
//! `check` runs again and again. So a command looks for a few seconds at most, and says so if that was not enough.

use std::time::{Duration, Instant};

use postrider::{
    Result,
    core::{
        admin::{Overview, StoreAdmin},
        topic::TopicFilter,
    },
    diagnosis::Topics,
};

/// How long a command that looks once walks the log.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// What `bench` enqueues. Nobody misses it when its route is forgotten, and no start is refused for it.
pub(crate) const OF_BENCH: &str = "postrider.bench";

/// Nothing known yet, and nothing to remember of topics that `read` takes, nor of [`OF_BENCH`].
pub(crate) fn unknown(mut read: Vec<TopicFilter>) -> Topics {
    read.extend(TopicFilter::new([OF_BENCH]));
    Topics::expecting(read)
}

/// Looks at what is new, for so long at most: at least one stretch, and none is broken off. The next look goes on there.
/// Returns what the store has by then.
pub(crate) async fn look_for(patience: Duration, admin: &dyn StoreAdmin, topics: &mut Topics) -> Result<Overview> {
    let began = Instant::now();
    while !topics.step(admin).await? && began.elapsed() < patience {}
    let overview = admin.overview().await?;
    if topics.is_whole() {
        while !topics.sort_out_some(admin, &overview).await? && began.elapsed() < patience {}
    }
    Ok(overview)
}

#[cfg(test)]
mod tests {
    use postrider::memory::{Memory, MemoryStore};
    use postrider::{Envelope, Outbox};

    use super::*;

    fn enqueue(store: &MemoryStore, topic: &str, records: usize) {
        let mut transaction = store.begin();
        let envelopes = (0..records).map(|_| Envelope::new(topic, "n", "")).collect();
        Outbox::new(Memory).enqueue_raw(&mut transaction, envelopes).unwrap();
        transaction.commit();
    }

    #[tokio::test]
    async fn a_command_looks_no_longer_than_it_has_patience_and_says_how_far_it_came() {
        let store = MemoryStore::new();
        for topic in [OF_BENCH, OF_BENCH, "strange", "strange", "strange"] {
            enqueue(&store, topic, 10_000);
        }
        let mut topics = unknown(Vec::new());
        look_for(Duration::ZERO, &store, &mut topics).await.unwrap();
        let told = topics.in_part().expect("a log of that size has more than one stretch").what;
        assert!(told.contains("only the oldest 20000 records"), "{told}");
        look_for(Duration::MAX, &store, &mut topics).await.unwrap();
        assert_eq!(topics.in_part(), None, "the next look goes on there");
        assert_eq!(
            topics.seen().iter().collect::<Vec<_>>(),
            [(&"strange".to_owned(), &30_000)],
            "and not of the benchmark"
        );
    }
}
