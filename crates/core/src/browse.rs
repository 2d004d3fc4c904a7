//! Looking through the log: which records there are, and how far each reader is with them.
//!
//! For people and for tools that count before they act. A record is shown without its headers and payload, so that
//! whoever may see how things stand may also look here. The log has no index by which it could be searched, since every
//! enqueue would pay for it: a call looks at a bounded number of records and says where to go on.

use crate::{
    envelope::MessageId,
    lease::{LaneId, ReplayFilter},
    time::Timestamp,
};

/// Which records. Empty fields choose everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordFilter {
    /// By time, key, name and topic, as a replay chooses.
    pub chosen: ReplayFilter,
    /// Only those that this route or replay reads.
    pub route: Option<String>,
    /// Only those whose readers (or whose `route`, if one is named) are so far with them.
    pub standing: Option<Standing>,
    /// The newest first; otherwise the oldest.
    pub newest_first: bool,
}

/// How far the readers of a record are with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Somebody reads it or once did, and everybody who does has passed it: it is delivered, or parked.
    Passed,
    /// At least one cursor has not passed it.
    Waiting,
    /// No route reads it, and none had passed it that once did.
    Unrouted,
}

/// One record of the log, without headers and payload.
#[derive(Clone, Debug, PartialEq)]
pub struct LogRecord {
    /// Its number in the log. Later records have greater ones, except that a transaction may commit late.
    pub number: u64,
    /// The message.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its name.
    pub name: String,
    /// Its ordering key.
    pub key: Option<String>,
    /// When it was enqueued, by the store's clock.
    pub enqueued_at: Timestamp,
    /// Not before this instant.
    pub deliver_at: Option<Timestamp>,
    /// Not after this instant.
    pub expires_at: Option<Timestamp>,
    /// The lanes that it belongs to, of routes and replays that read it: whether the cursor has passed it. Of a route that reads
    /// its topic no longer, the lane that had [passed it](crate::left) by then, if one had.
    pub passed: Vec<(LaneId, bool)>,
}

/// What one look returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordPage {
    /// In the order that was asked for. May be fewer than asked for, and none, although there are more.
    pub records: Vec<LogRecord>,
    /// Where to go on. `None`: there is nothing more.
    pub next: Option<u64>,
}

/// The topics of one stretch of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPage {
    /// How many records of the stretch have each, by topic.
    pub topics: Vec<(String, u64)>,
    /// Where to go on, in the store's own numbers. `None`: the stretch ends with the log.
    pub next: Option<u64>,
}

impl TopicPage {
    /// Of what a store has counted: each topic, its records, and the greatest number that one of them has. The stretch ends
    /// with the log if it has fewer than `limit` records.
    #[must_use]
    pub fn of_counts(counts: impl IntoIterator<Item = (String, u64, u64)>, limit: u32) -> Self {
        let mut topics = std::collections::BTreeMap::<String, u64>::new();
        let (mut records, mut last) = (0, None);
        for (topic, count, greatest) in counts {
            *topics.entry(topic).or_default() += count;
            records += count;
            last = last.max(Some(greatest));
        }
        Self { topics: topics.into_iter().collect(), next: last.filter(|_| records >= u64::from(limit)) }
    }
}

impl LogRecord {
    /// How far its readers are with it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if self.passed.is_empty() {
            Standing::Unrouted
        } else if self.passed.iter().all(|(_, passed)| *passed) {
            Standing::Passed
        } else {
            Standing::Waiting
        }
    }
}

impl RecordFilter {
    /// Whether it chooses a record, readers included. With a route, the others are left out of `passed`.
    pub fn takes(&self, record: &mut LogRecord) -> bool {
        if let Some(route) = &self.route {
            record.passed.retain(|(lane, _)| *lane.route == **route);
            if record.passed.is_empty() {
                return false;
            }
        }
        let LogRecord { topic, name, key, enqueued_at, .. } = &*record;
        self.chosen.takes(topic, name, key.as_deref(), *enqueued_at)
            && self.standing.is_none_or(|wanted| record.standing() == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::TopicFilter;

    fn record(passed: &[(&str, bool)]) -> LogRecord {
        let lane = |route: &str| LaneId { route: route.into(), number: 0 };
        LogRecord {
            number: 1,
            id: MessageId::generate(),
            topic: "orders.placed".to_owned(),
            name: "order.placed".to_owned(),
            key: Some("4711".to_owned()),
            enqueued_at: Timestamp::from_micros(10),
            deliver_at: None,
            expires_at: None,
            passed: passed.iter().map(|(route, passed)| (lane(route), *passed)).collect(),
        }
    }

    #[test]
    fn a_record_stands_as_its_slowest_reader() {
        assert_eq!(record(&[]).standing(), Standing::Unrouted);
        assert_eq!(record(&[("a", true), ("b", true)]).standing(), Standing::Passed);
        assert_eq!(record(&[("a", true), ("b", false)]).standing(), Standing::Waiting);
    }

    #[test]
    fn a_route_is_looked_at_alone() {
        let filter = |route: &str, standing| RecordFilter {
            route: Some(route.to_owned()),
            standing: Some(standing),
            ..RecordFilter::default()
        };
        let both = record(&[("a", true), ("b", false)]);
        assert!(filter("a", Standing::Passed).takes(&mut both.clone()));
        assert!(!filter("b", Standing::Passed).takes(&mut both.clone()));
        assert!(!filter("c", Standing::Unrouted).takes(&mut both.clone()), "it does not read it at all");
    }

    #[test]
    fn every_field_of_a_replay_chooses() {
        let all = ReplayFilter::default;
        let (early, late) = (Some(Timestamp::from_micros(10)), Some(Timestamp::from_micros(11)));
        let topics = |pattern| Some(TopicFilter::new([pattern]).unwrap());
        let cases = [
            (all(), true),
            (ReplayFilter { since: early, until: late, ..all() }, true),
            (ReplayFilter { since: late, ..all() }, false),
            (ReplayFilter { until: early, ..all() }, false),
            (ReplayFilter { key: Some("4711".into()), name: Some("order.placed".into()), ..all() }, true),
            (ReplayFilter { key: Some("4712".into()), ..all() }, false),
            (ReplayFilter { name: Some("order".into()), ..all() }, false),
            (ReplayFilter { topics: topics("orders.*"), ..all() }, true),
            (ReplayFilter { topics: topics("payments"), ..all() }, false),
        ];
        for (chosen, expected) in cases {
            let filter = RecordFilter { chosen, ..RecordFilter::default() };
            assert_eq!(filter.takes(&mut record(&[])), expected, "{filter:?}");
        }
    }
}
