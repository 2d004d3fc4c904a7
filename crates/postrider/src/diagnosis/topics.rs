//! Which topics the log has, and which of them no route reads.
//!
//! A message on such a topic is delivered by nobody, and retention removes it like any other when it is old enough. So it
//! has to be said early, and to be remembered: [`Topics`] walks the whole log once, and then only what has come since, so
//! that a process that looks again and again pays for the log once. It walks a stretch at a time, so whoever has no time for
//! a large log stops in between and says how much was seen. What it has seen it does not forget when retention removes it.

use std::collections::BTreeMap;

use postrider_core::{
    Result,
    admin::{Overview, StoreAdmin},
    topic::TopicFilter,
};

use super::{
    Finding,
    left::{Readings, Sorted},
    walk::{REMEMBERED_MAX, Walk},
};

/// Records of one stretch.
const STRETCH: u32 = 20_000;

/// What is known of the topics of one log. Begins with nothing known.
#[derive(Debug, Default)]
pub struct Topics {
    expected: Vec<TopicFilter>,
    /// Of what is not expected.
    walk: Walk,
    /// Records that the first pass has looked at.
    records: u64,
    /// What routes have delivered of topics that they no longer read.
    sorted: Sorted,
}

impl Topics {
    /// Does not remember topics that one of these filters takes: somebody reads them as long as this is asked. A log may have
    /// any number of those.
    #[must_use]
    pub fn expecting(expected: Vec<TopicFilter>) -> Self {
        Self { expected, ..Self::default() }
    }

    /// Looks at what has come since the last look. The first one walks the whole log; dropped half-way, the next one goes on
    /// where it was.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn look(&mut self, admin: &dyn StoreAdmin) -> Result<()> {
        while !self.step(admin).await? {}
        Ok(())
    }

    /// Looks at one stretch of what has come since the last look. Returns whether it has come to the end of the log; the
    /// step after that begins the next look. Dropped half-way, or after an error, the stretch is looked at again.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn step(&mut self, admin: &dyn StoreAdmin) -> Result<bool> {
        self.step_by(admin, STRETCH).await
    }

    async fn step_by(&mut self, admin: &dyn StoreAdmin, stretch: u32) -> Result<bool> {
        let mut page = admin.topics(self.walk.at(), stretch).await?;
        // From here on nothing is waited for, so nothing can be left half done.
        if !self.walk.is_whole() {
            self.records += page.topics.iter().map(|(_, records)| records).sum::<u64>();
        }
        page.topics.retain(|(topic, _)| !self.expected.iter().any(|filter| filter.matches(topic)));
        Ok(self.walk.take(page))
    }

    /// Every topic that was seen and is not expected, and how many messages had it, also those that are no longer in the
    /// log.
    #[must_use]
    pub fn seen(&self) -> &BTreeMap<String, u64> {
        self.walk.seen()
    }

    /// Whether the whole log was looked at, up to its end at that time.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.walk.is_whole()
    }

    /// Sorts out what routes have delivered of the topics that they no longer read: one page of the log, if something of them
    /// has come since that was done, or if they let go of more. Returns whether there is nothing more to sort out. Dropped
    /// half-way, or after an error, the page is looked at again.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn sort_out_some(&mut self, admin: &dyn StoreAdmin, overview: &Overview) -> Result<bool> {
        self.sorted.step(admin, overview, self.walk.seen()).await
    }

    /// Whether the whole log was looked at for that, if there was anything to sort out. What has come since may be left.
    #[must_use]
    pub fn is_sorted_out(&self) -> bool {
        !self.sorted.is_half_done()
    }

    /// Those that no route of the store reads, by topic, with the messages that nobody has delivered. Of topics that a route
    /// read once that is known when they are [sorted out](Self::sort_out_some); before, nothing is said of them.
    #[must_use]
    pub fn unread(&self, overview: &Overview) -> Vec<(String, u64)> {
        let readings = Readings::of(overview);
        let unread = self.seen().iter().filter(|(topic, _)| !readings.has(topic));
        let left = unread.filter_map(|(topic, seen)| Some((topic, self.sorted.undelivered(&readings, topic, *seen)?)));
        left.filter(|(_, records)| *records > 0).map(|(topic, records)| (topic.clone(), records)).collect()
    }

    /// That only a part of the log is known, if it is so.
    #[must_use]
    pub fn in_part(&self) -> Option<Finding> {
        let what = match (self.walk.is_whole(), self.walk.has_too_many()) {
            (true, false) if !self.is_sorted_out() => "only a part of the log was looked at for messages of topics \
                                                            that a route read once: some of those may be undelivered"
                .to_owned(),
            (true, false) => return None,
            (true, true) => format!(
                "the log has more topics than are remembered ({REMEMBERED_MAX}): there may be more of those that no route \
                 reads"
            ),
            (false, _) => format!(
                "only the oldest {} records were looked at for topics that no route reads: the log is larger than that",
                self.records
            ),
        };
        let fix = "a relay that runs looks at the whole log: its log and its metrics name such topics".to_owned();
        Some(Finding { route: None, code: "topics-in-part", what, fix: Some(fix) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use postrider_core::{
        envelope::Envelope,
        lease::{Node, NodeId, Order, RouteSpec, Start},
        log::Log,
    };
    use postrider_store_memory::MemoryStore;

    use super::*;

    fn enqueue(store: &MemoryStore, topic: &str, records: u64) {
        let mut transaction = store.begin();
        crate::Outbox::new(postrider_store_memory::Memory)
            .enqueue_raw(&mut transaction, (0..records).map(|_| Envelope::new(topic, "n", "")).collect())
            .unwrap();
        transaction.commit();
    }

    fn in_words(topics: &Topics) -> Vec<String> {
        topics.seen().iter().map(|(topic, records)| format!("{topic} {records}")).collect()
    }

    async fn shown(topics: &mut Topics, store: &MemoryStore) -> Vec<String> {
        while !topics.step_by(store, 10).await.unwrap() {}
        in_words(topics)
    }

    #[tokio::test]
    async fn a_log_is_walked_once_and_then_only_what_is_new() {
        let store = MemoryStore::new();
        enqueue(&store, "old", 1);
        enqueue(&store, "new", 30);
        let mut topics = Topics::default();
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "old 1"]);
        let at = topics.walk.at();
        assert!(at.is_some(), "two full stretches are not looked at again");
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "old 1"], "nothing is counted twice");
        enqueue(&store, "newest", 25);
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "newest 25", "old 1"]);
        assert!(topics.walk.at() > at, "{topics:?}");
        assert_eq!(topics.in_part(), None);
    }

    #[tokio::test]
    async fn a_walk_that_stops_in_between_says_how_much_it_has_seen_and_goes_on_there() {
        let store = MemoryStore::new();
        enqueue(&store, "old", 1);
        enqueue(&store, "new", 30);
        enqueue(&store, "newest", 1);
        let mut topics = Topics::default();
        assert!(topics.in_part().unwrap().what.contains("the oldest 0 records"));
        assert!(!topics.step_by(&store, 10).await.unwrap());
        assert!(!topics.step_by(&store, 10).await.unwrap());
        assert_eq!(in_words(&topics), ["new 19", "old 1"]);
        assert!(!topics.is_whole() && topics.in_part().unwrap().what.contains("the oldest 20 records"), "{topics:?}");
        assert_eq!(shown(&mut topics, &store).await, ["new 30", "newest 1", "old 1"]);
        assert!(topics.is_whole() && topics.in_part().is_none(), "{topics:?}");
    }

    #[tokio::test]
    async fn what_is_expected_is_not_remembered() {
        let store = MemoryStore::new();
        enqueue(&store, "orders.1", 12);
        enqueue(&store, "refunds", 2);
        enqueue(&store, "orders.2", 12);
        let mut topics = Topics::expecting(vec![TopicFilter::new(["orders.*"]).unwrap()]);
        assert_eq!(shown(&mut topics, &store).await, ["refunds 2"]);
        assert_eq!(topics.records, 26, "but looked at");
    }

    /// A store whose route has let go of `refunds`.
    async fn narrowed(store: &MemoryStore) -> Overview {
        for topics in [&["orders", "refunds"][..], &["orders"]] {
            let node = Node {
                id: NodeId::generate(),
                name: "test".to_owned(),
                routes: vec!["all".into()],
                lease_life: Duration::from_secs(60),
                standstills: Vec::new(),
            };
            let topics = TopicFilter::new(topics).unwrap();
            let spec = RouteSpec { name: "all".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest };
            store.register(&node, &[spec]).await.unwrap();
            store.retire(node.id).await.unwrap();
        }
        store.overview().await.unwrap()
    }

    #[tokio::test]
    async fn what_comes_between_the_look_and_the_walk_is_counted_once() {
        let store = MemoryStore::new();
        enqueue(&store, "refunds", 1);
        let overview = narrowed(&store).await;
        let mut topics = Topics::default();
        topics.look(&store).await.unwrap();
        assert_eq!(topics.unread(&overview), [], "not looked at yet");
        for expected in 2..5 {
            enqueue(&store, "refunds", 1);
            while !topics.sort_out_some(&store, &overview).await.unwrap() {}
            topics.look(&store).await.unwrap();
            while !topics.sort_out_some(&store, &overview).await.unwrap() {}
            assert_eq!(topics.unread(&overview), [("refunds".to_owned(), expected)]);
        }
    }
}
