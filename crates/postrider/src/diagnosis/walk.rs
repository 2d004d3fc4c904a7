//! A walk over the log that is taken up again: what was counted of each topic, and where to go on.
//!
//! The log is walked once from its beginning, a page at a time, and then only what has come since. The last full page and what
//! follows it are looked at again every time: a transaction that commits late may put records there. What the pages before
//! those have brought is kept, also when retention has removed it.

use std::collections::{BTreeMap, btree_map::Entry};

use postrider_core::browse::TopicPage;

/// Topics that are remembered by name. A log with more of them has a topic per key or worse; the rest is not counted, and that
/// there is one is told.
pub(super) const REMEMBERED_MAX: usize = 50_000;

/// Begins with nothing known.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Of the pages that are not looked at again.
    counted: BTreeMap<String, u64>,
    /// Where those end.
    at: Option<u64>,
    /// The pass that is under way.
    pass: Option<Pass>,
    /// What the last whole pass has seen; before the first one is whole, what it has seen so far.
    seen: BTreeMap<String, u64>,
    whole: bool,
    too_many: bool,
}

/// How far a pass over the log is.
#[derive(Debug)]
struct Pass {
    at: Option<u64>,
    /// The last full page, which the next pass looks at again unless another one follows.
    before: TopicPage,
}

impl Walk {
    /// Behind which record the next page begins.
    pub(super) fn at(&self) -> Option<u64> {
        self.pass.as_ref().map_or(self.at, |pass| pass.at)
    }

    /// Takes what the next page has brought. Returns whether it was the last of a pass.
    pub(super) fn take(&mut self, page: TopicPage) -> bool {
        if !self.whole {
            self.too_many |= !add(&mut self.seen, &page);
        }
        let pass = self.pass.take();
        let Some(next) = page.next else {
            let mut seen = self.counted.clone();
            let before = pass.is_none_or(|pass| add(&mut seen, &pass.before));
            self.too_many |= !(before && add(&mut seen, &page));
            (self.seen, self.whole) = (seen, true);
            return true;
        };
        if let Some(pass) = pass {
            self.at = pass.before.next;
            self.too_many |= !add(&mut self.counted, &pass.before);
        }
        self.pass = Some(Pass { at: Some(next), before: page });
        false
    }

    /// What was counted, by topic.
    pub(super) fn seen(&self) -> &BTreeMap<String, u64> {
        &self.seen
    }

    /// Whether a pass has come to the end of the log.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether a pass has begun and not ended.
    pub(super) fn is_under_way(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether there were more topics than are remembered.
    pub(super) fn has_too_many(&self) -> bool {
        self.too_many
    }
}

/// Whether all of them were remembered.
#[must_use]
fn add(topics: &mut BTreeMap<String, u64>, page: &TopicPage) -> bool {
    let mut all = true;
    for (topic, records) in &page.topics {
        let full = topics.len() >= REMEMBERED_MAX;
        match topics.entry(topic.clone()) {
            Entry::Occupied(mut known) => *known.get_mut() += records,
            Entry::Vacant(_) if full => all = false,
            Entry::Vacant(new) => drop(new.insert(*records)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(topics: &[(&str, u64)], next: Option<u64>) -> TopicPage {
        TopicPage { topics: topics.iter().map(|(topic, records)| ((*topic).to_owned(), *records)).collect(), next }
    }

    #[test]
    fn only_what_follows_the_last_full_page_is_looked_at_again() {
        let mut walk = Walk::default();
        assert!(!walk.take(page(&[("a", 10)], Some(10))) && !walk.take(page(&[("a", 9), ("b", 1)], Some(20))));
        assert!(walk.is_under_way() && !walk.is_whole());
        assert!(walk.take(page(&[("b", 2)], None)));
        assert_eq!((walk.seen()["a"], walk.seen()["b"], walk.at()), (19, 3, Some(10)));
        // A late commit has put one into the last full page, and one has come.
        assert!(!walk.take(page(&[("a", 10), ("b", 1)], Some(20))));
        assert_eq!(walk.seen()["a"], 19, "what the last whole pass has seen");
        assert!(walk.take(page(&[("b", 3)], None)));
        assert_eq!((walk.seen()["a"], walk.seen()["b"]), (20, 4));
    }

    #[test]
    fn there_is_a_limit_to_what_is_remembered() {
        let mut known = BTreeMap::new();
        let page = |from: usize, to: usize| TopicPage {
            topics: (from..to).map(|number| (number.to_string(), 1)).collect(),
            next: None,
        };
        assert!(add(&mut known, &page(0, REMEMBERED_MAX)));
        assert!(add(&mut known, &page(0, 1)), "one that is known is counted on");
        assert!(!add(&mut known, &page(REMEMBERED_MAX, REMEMBERED_MAX + 1)));
        assert_eq!((known.len(), known["0"]), (REMEMBERED_MAX, 2));
    }
}
