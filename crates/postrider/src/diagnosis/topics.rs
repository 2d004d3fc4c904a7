//! Which topics the log has, and which of them no route reads.
//!
//! A message on such a topic is delivered by nobody, and retention removes it like any other when it is old enough. So it
//! has to be said early, and to be remembered: [`Topics`] walks the whole log once, and then only what has come since, so
//! that a process that looks again and again pays for the log once. What it has seen it does not forget when retention
//! removes it.

use std::collections::BTreeMap;

use postrider_core::{
    Result,
    admin::{Overview, StoreAdmin},
    browse::TopicPage,
    topic::TopicFilter,
};

/// Records of one stretch. The last full stretch and what follows it are looked at again every time: a transaction that
/// commits late may put records there.
const STRETCH: u32 = 20_000;

/// What is known of the topics of one log. Begins with nothing known.
#[derive(Debug, Default)]
pub struct Topics {
    /// Of the stretches that are not looked at again.
    counted: BTreeMap<String, u64>,
    /// Where those end.
    at: Option<u64>,
    /// Everything that the last look has seen.
    seen: BTreeMap<String, u64>,
}

impl Topics {
    /// Looks at what has come since the last look. The first one walks the whole log; dropped half-way, the next one goes on
    /// where it was.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn look(&mut self, admin: &dyn StoreAdmin) -> Result<()> {
        self.walk(admin, STRETCH).await
    }

    async fn walk(&mut self, admin: &dyn StoreAdmin, stretch: u32) -> Result<()> {
        let (mut at, mut before) = (self.at, None::<TopicPage>);
        // Ends with the log: with the first stretch that is not full.
        loop {
            let page = admin.topics(at, stretch).await?;
            let Some(next) = page.next else {
                let mut seen = self.counted.clone();
                add(&mut seen, before.unwrap_or_default());
                add(&mut seen, page);
                self.seen = seen;
                return Ok(());
            };
            if let Some(before) = before.replace(page) {
                self.at = before.next;
                add(&mut self.counted, before);
            }
            at = Some(next);
        }
    }

    /// Every topic that was seen, and how many messages had it, also those that are no longer in the log.
    #[must_use]
    pub fn seen(&self) -> &BTreeMap<String, u64> {
        &self.seen
    }

    /// Those that no route of the store reads, by topic.
    #[must_use]
    pub fn unread(&self, overview: &Overview) -> Vec<(String, u64)> {
        let live = overview.routes.iter().filter(|route| route.replay_of.is_none());
        // What a newer version writes and this one cannot read is no reason to complain.
        let filters: Vec<TopicFilter> =
            live.filter_map(|route| TopicFilter::new(route.topics.split(", ")).ok()).collect();
        let unread = self.seen.iter().filter(|(topic, _)| !filters.iter().any(|filter| filter.matches(topic)));
        unread.map(|(topic, records)| (topic.clone(), *records)).collect()
    }
}

fn add(topics: &mut BTreeMap<String, u64>, page: TopicPage) {
    for (topic, records) in page.topics {
        *topics.entry(topic).or_default() += records;
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::envelope::Envelope;
    use postrider_store_memory::MemoryStore;

    use super::*;

    fn enqueue(store: &MemoryStore, topic: &str, records: u64) {
        let mut transaction = store.begin();
        crate::Outbox::new(postrider_store_memory::Memory)
            .enqueue_raw(&mut transaction, (0..records).map(|_| Envelope::new(topic, "n", "")).collect())
            .unwrap();
        transaction.commit();
    }

    async fn shown(topics: &mut Topics, store: &MemoryStore) -> Vec<String> {
        topics.walk(store, 10).await.unwrap();
        topics.seen().iter().map(|(topic, records)| format!("{topic} {records}")).collect()
    }

    #[tokio::test]
    async fn a_log_is_walked_once_and_then_only_what_is_new() {
        let store = MemoryStore::new();
        enqueue(&store, "old", 1);
        enqueue(&store, "new", 30);
        let mut topics = Topics::default();
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "old 1"]);
        let at = topics.at;
        assert!(at.is_some(), "two full stretches are not looked at again");
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "old 1"], "nothing is counted twice");
        enqueue(&store, "newest", 25);
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "newest 25", "old 1"]);
        assert!(topics.at > at, "{topics:?}");
    }
}
