//! What is left undelivered of topics that routes read once and no longer do.
//!
//! How many records a topic has tells nothing of it: those that a route had passed before it let the topic go are delivered.
//! So the log is walked once more for such topics alone, and the store says of each record whether it is one of those. What a
//! route had passed then does not change any more, so that is done once, and whatever comes later is undelivered.

use std::collections::{BTreeMap, BTreeSet};

use postrider_core::{
    Result,
    admin::{Overview, StoreAdmin},
    browse::{RecordFilter, Standing},
    lease::ReplayFilter,
    time::Timestamp,
    topic::TopicFilter,
};

/// Records of one page.
const PAGE: u32 = 10_000;

/// What is known of such topics.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    /// What was let go, and when. Other than this, what is known here is of no use.
    of: Vec<(TopicFilter, Timestamp)>,
    /// How far the walk is; `None` before it, and behind it.
    at: Option<u64>,
    done: bool,
    /// Records that nobody had passed, by topic.
    undelivered: BTreeMap<String, u64>,
    /// How many records of a topic were known of when the walk was done.
    known: BTreeMap<String, u64>,
}

impl Sorted {
    /// Looks at one page. Returns whether there is nothing more to look at. `seen` is how many records each topic has.
    pub(super) async fn step(
        &mut self,
        admin: &dyn StoreAdmin,
        overview: &Overview,
        seen: &BTreeMap<String, u64>,
    ) -> Result<bool> {
        let of = let_go(overview);
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        if self.done || self.of.is_empty() {
            return Ok(true);
        }
        let mut topics = self.of[0].0.clone();
        self.of.iter().for_each(|(more, _)| topics.add(more));
        let chosen = ReplayFilter { topics: Some(topics), ..ReplayFilter::default() };
        let page = admin.records(&RecordFilter { chosen, ..RecordFilter::default() }, self.at, PAGE).await?;
        // From here on nothing is waited for, so nothing can be left half done.
        let nobodys = page.records.into_iter().filter(|record| record.standing() != Standing::Passed);
        for record in nobodys.filter(|record| seen.contains_key(&record.topic)) {
            *self.undelivered.entry(record.topic).or_default() += 1;
        }
        self.at = page.next;
        self.done = page.next.is_none();
        if self.done {
            self.known = seen.clone();
        }
        Ok(self.done)
    }

    /// Whether there is something to look at still.
    pub(super) fn is_half_done(&self) -> bool {
        !self.done && !self.of.is_empty()
    }

    /// How many of the `seen` records of a topic nobody has delivered. `None`: that was not looked at yet.
    pub(super) fn undelivered(&self, overview: &Overview, topic: &str, seen: u64) -> Option<u64> {
        if !let_go(overview).iter().any(|(topics, _)| topics.matches(topic)) {
            return Some(seen);
        }
        if !self.done || self.of != let_go(overview) {
            return None;
        }
        let since = seen.saturating_sub(self.known.get(topic).copied().unwrap_or(0));
        Some(self.undelivered.get(topic).copied().unwrap_or(0) + since)
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

fn let_go(overview: &Overview) -> Vec<(TopicFilter, Timestamp)> {
    let left = overview.routes.iter().flat_map(|route| &route.left);
    left.map(|left| (left.topics.clone(), left.until)).collect()
}
