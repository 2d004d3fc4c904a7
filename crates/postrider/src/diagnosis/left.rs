//! What is left undelivered of topics that routes read once and no longer do.
//!
//! How many records a topic has tells nothing of it: those that a route had passed before it let the topic go are delivered.
//! So the log is walked once more for such topics alone, and the store says of each record whether it is one of those. What a
//! route had passed then does not change any more, so each record is looked at once, and those that come later are walked on to.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::{
    Result,
    admin::{Overview, StoreAdmin},
    browse::{RecordFilter, Standing, TopicPage},
    lease::ReplayFilter,
    time::Timestamp,
    topic::TopicFilter,
};

use super::walk::Walk;

/// Records of one page.
const PAGE: u32 = 10_000;

/// What the routes of a store read, and what they have let go.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Readings {
    now: Vec<TopicFilter>,
    /// With the instants at which that was.
    once: Vec<(TopicFilter, Timestamp)>,
}

impl Readings {
    pub(super) fn of(overview: &Overview) -> Self {
        let live = overview.routes.iter().filter(|route| route.replay_of.is_none());
        let once = overview.routes.iter().flat_map(|route| &route.left).map(|left| (left.topics.clone(), left.until));
        // What a newer version writes and this one cannot read is no reason to complain.
        let now = live.filter_map(|route| TopicFilter::new(route.topics.split(", ")).ok()).collect();
        Self { now, once: once.collect() }
    }

    /// Whether a route reads it.
    pub(super) fn has(&self, topic: &str) -> bool {
        self.now.iter().any(|topics| topics.matches(topic))
    }

    /// Whether a route has read it once.
    fn had(&self, topic: &str) -> bool {
        self.once.iter().any(|(topics, _)| topics.matches(topic))
    }

    /// Everything that a route has read once.
    fn all_once(&self) -> Option<TopicFilter> {
        let (first, more) = self.once.split_first()?;
        let mut topics = first.0.clone();
        more.iter().for_each(|(more, _)| topics.add(more));
        Some(topics)
    }
}

/// What is known of such topics.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// Other than this, what is known here is of no use.
    of: Readings,
    /// Of records that nobody had passed.
    walk: Walk,
    /// What was to be sorted out when the last pass began, and how many records there were.
    wanted: BTreeMap<String, u64>,
}

impl Sorted {
    /// Looks at one page. Returns whether there is nothing more to look at. `seen` is how many records each topic has: a pass
    /// begins when those that are to be sorted out have others than before the last one.
    ///
    /// What comes while a pass is under way is counted by it or is not. Whoever counts the topics sees it then, and the next pass
    /// goes on where this one has ended: nothing is counted twice, and nothing is missed for long.
    pub(super) async fn step(
        &mut self,
        admin: &dyn StoreAdmin,
        overview: &Overview,
        seen: &BTreeMap<String, u64>,
    ) -> Result<bool> {
        let of = Readings::of(overview);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        let Some(topics) = self.of.all_once() else { return Ok(true) };
        if !self.walk.is_under_way() {
            let wanted = seen.iter().filter(|(topic, _)| self.of.had(topic) && !self.of.has(topic));
            let wanted: BTreeMap<String, u64> = wanted.map(|(topic, records)| (topic.clone(), *records)).collect();
            if wanted.is_empty() || self.walk.is_whole() && wanted == self.wanted {
                return Ok(true);
            }
            self.wanted = wanted;
        }
        let chosen = ReplayFilter { topics: Some(topics), ..ReplayFilter::default() };
        let page = admin.records(&RecordFilter { chosen, ..RecordFilter::default() }, self.walk.at(), PAGE).await?;
        // From here on nothing is waited for, so nothing can be left half done.
        let mut nobodys: BTreeMap<String, u64> = BTreeMap::new();
        for record in page.records {
            if record.standing() != Standing::Passed && !self.of.has(&record.topic) {
                *nobodys.entry(record.topic).or_default() += 1;
            }
        }
        Ok(self.walk.take(TopicPage { topics: nobodys.into_iter().collect(), next: page.next }))
    }

    /// Whether the first pass has begun and not ended.
    pub(super) fn is_half_done(&self) -> bool {
        !self.wanted.is_empty() && !self.walk.is_whole()
    }

    /// How many of the `seen` records of a topic nobody has delivered. `None`: that was not looked at yet.
    pub(super) fn undelivered(&self, readings: &Readings, topic: &str, seen: u64) -> Option<u64> {
        if !readings.had(topic) {
            return Some(seen);
        }
        let known = self.walk.is_whole() && self.of == *readings;
        known.then(|| self.walk.seen().get(topic).copied().unwrap_or(0))
    }
}

/// Those of these topics of which a record is left that nobody has passed. Walks the whole log, unless it finds one of each
/// before.
///
/// # Errors
/// If the store cannot be read.
pub async fn undelivered(admin: &dyn StoreAdmin, topics: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    // One that no filter can name was never read by a route either.
    let (named, mut found): (BTreeSet<_>, BTreeSet<_>) =
        topics.iter().cloned().partition(|topic| TopicFilter::new([topic]).is_ok());
    let chosen = ReplayFilter { topics: TopicFilter::new(&named).ok(), ..ReplayFilter::default() };
    let filter = RecordFilter { chosen, ..RecordFilter::default() };
    let mut at = None;
    // Ends with the log, or when all of them are found.
    while found.len() < topics.len() {
        let page = admin.records(&filter, at, PAGE).await?;
        let nobodys = page.records.into_iter().filter(|record| record.standing() != Standing::Passed);
        found.extend(nobodys.map(|record| record.topic).filter(|topic| topics.contains(topic)));
        at = page.next;
        if at.is_none() {
            break;
        }
    }
    Ok(found)
}
