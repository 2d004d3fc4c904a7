//! Who did what to what: the audit record, as it is written and as it is read again.
//!
//! A subject is a sentence for people, and is all that a store keeps of what was done. So what it says is written and taken
//! apart here, in one place.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ParkedFilter, ParkedRow};
use crate::{envelope::MessageId, parked::Ordinal, time::Timestamp};

/// Who does something, and why. Written into the audit record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// A person or a program.
    pub name: String,
    /// Why, in the actor's words.
    pub reason: Option<String>,
}

impl Actor {
    /// An actor without a stated reason.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), reason: None }
    }
}

/// An entry of the audit record names no more messages than this; a change of more rows has several entries.
pub const MESSAGES_PER_ENTRY: usize = 100;

/// What stands before the ids of an entry about several messages. They come last, and ids hold no comma.
const MESSAGES: &str = ", messages ";

impl ParkedFilter {
    /// What the audit record says of the rows that were changed together, each by its route and its message: one subject per
    /// entry, with the route of its rows and the ids of their messages, so that what became of one of many can be told later,
    /// and on which route. Nothing changed is nothing to note.
    #[must_use]
    pub fn subjects(&self, changed: &[(Arc<str>, MessageId)]) -> Vec<String> {
        let of_route = changed.chunk_by(|(one, _), (other, _)| one == other);
        of_route.flat_map(|rows| rows.chunks(MESSAGES_PER_ENTRY)).map(|rows| self.subject(rows)).collect()
    }

    /// Of rows of one route, of which there is at least one. A message that the filter names is not named again.
    fn subject(&self, rows: &[(Arc<str>, MessageId)]) -> String {
        let filter = Self { route: Some(rows[0].0.to_string()), ..self.clone() };
        let ids: Vec<String> = rows.iter().map(|(_, id)| id.to_string()).collect();
        let messages = if self.id.is_some() { String::new() } else { format!("{MESSAGES}{}", ids.join(" ")) };
        format!("{} rows of {filter}{messages}", rows.len())
    }
}

/// What the parts of a subject are about.
const PARTS: [&str; 13] = [
    "parked", "state", "route", "cause", "key", "message", "places", "since", "until", "name", "topic", "topics", "to",
];

/// One thing that somebody did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AuditEntry {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// Who and why.
    pub actor: Actor,
    /// What: `redrive`, `discard`, `pause`, `resume`, `replay`, `cancel-replay`, `forget-route`,
    /// `rebase-route`, `drain-node`, `enqueue`.
    pub action: String,
    /// To what, and how much of it.
    pub subject: String,
}

impl AuditEntry {
    /// Whether it names this message, alone or among others.
    #[must_use]
    pub fn names(&self, id: MessageId) -> bool {
        let is_it = |text: &str| text.parse().is_ok_and(|named: MessageId| named == id);
        self.message() == Some(id) || self.messages().is_some_and(|ids| ids.split(' ').any(is_it))
    }

    /// Whether it tells which messages it is about. What was changed together before entries did so has none.
    #[must_use]
    pub fn names_messages(&self) -> bool {
        self.message().is_some() || self.messages().is_some()
    }

    /// What it is about without the ids of many messages: for a line on a screen.
    #[must_use]
    pub fn in_short(&self) -> &str {
        self.messages().map_or(&*self.subject, |ids| &self.subject[..self.subject.len() - ids.len() - MESSAGES.len()])
    }

    /// The ids of an entry about several messages.
    fn messages(&self) -> Option<&str> {
        let changes_rows = matches!(self.action.as_str(), "redrive" | "discard");
        let (_, ids) = self.subject.rsplit_once(MESSAGES).filter(|_| changes_rows)?;
        ids.split(' ').all(|text| text.parse::<MessageId>().is_ok()).then_some(ids)
    }

    /// The message that it is about, if it is about one alone, although it may name its route too.
    #[must_use]
    pub fn message(&self) -> Option<MessageId> {
        self.parts().find_map(|part| part.strip_prefix("message ")?.parse().ok())
    }

    /// The route that it names, if it names one.
    #[must_use]
    pub fn route(&self) -> Option<&str> {
        self.parts().find_map(|part| part.strip_prefix("route "))
    }

    /// What its subject says of one kind of thing, such as the key behind `key`.
    #[must_use]
    pub fn said_of(&self, kind: &str) -> Option<&str> {
        self.parts().find_map(|part| part.strip_prefix(kind)?.strip_prefix(' '))
    }

    /// Whether the filter that it names takes a row, as far as that can still be told: what state and cause the row had then
    /// is not kept.
    #[must_use]
    pub fn takes(&self, row: &ParkedRow) -> bool {
        let of_route = self.route().is_none_or(|route| route == &*row.route);
        let of_message = !self.names_messages() || self.names(row.envelope.id);
        let own_key = row.envelope.key.as_ref();
        let of_key = self.said_of("key").is_none_or(|key| own_key.is_some_and(|own| own.as_str() == key));
        let places = self.said_of("places").and_then(|places| places.split_once(" to "));
        let place = |text: &str| text.parse().map(Ordinal).ok();
        let of_place = places.is_none_or(|(first, last)| {
            place(first).is_none_or(|first| first <= row.ordinal) && place(last).is_none_or(|last| row.ordinal <= last)
        });
        of_route && of_message && of_key && of_place
    }

    /// What a [`ParkedFilter`] or a [`ReplaySpec`] says, part by part. Before the first stands how many rows it was, or which
    /// replay. Names and keys may hold any sign, so a part ends only where another begins.
    fn parts(&self) -> impl Iterator<Item = &str> {
        let begins =
            |text: &str| PARTS.iter().any(|kind| text.strip_prefix(kind).is_some_and(|rest| rest.starts_with(' ')));
        let subject = match self.action.as_str() {
            "replay" => self.subject.split_once(": ").map_or("", |(_, filter)| filter),
            _ => self.in_short().split_once(" rows of ").map_or(self.in_short(), |(_, filter)| filter),
        };
        let mut rest = Some(subject);
        std::iter::from_fn(move || {
            let text = rest?;
            let end = text.match_indices(", ").map(|(at, _)| at).find(|at| begins(&text[at + 2..]));
            rest = end.map(|at| &text[at + 2..]);
            Some(&text[..end.unwrap_or(text.len())])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_tells_what_it_is_about() {
        let about = |subject: &str| AuditEntry {
            at: Timestamp::from_micros(0),
            actor: Actor::new("ada"),
            action: "discard".to_owned(),
            subject: subject.to_owned(),
        };
        let id = MessageId::generate();
        let filter = ParkedFilter { route: Some("billing".into()), id: Some(id), ..ParkedFilter::default() };
        let one = about(&format!("1 rows of {filter}"));
        assert_eq!((one.message(), one.route()), (Some(id), Some("billing")));
        let all = about("5 rows of route billing, key 4711");
        assert_eq!((all.message(), all.said_of("key"), all.route()), (None, Some("4711"), Some("billing")));
        assert!(about("billing").route().is_none());
        let odd = ParkedFilter {
            route: Some("eu:billing".into()),
            key: Some("tenant:42, or more".into()),
            id: Some(id),
            ..ParkedFilter::default()
        };
        let odd = about(&format!("1 rows of {odd}"));
        assert_eq!((odd.route(), odd.said_of("key")), (Some("eu:billing"), Some("tenant:42, or more")));
        assert_eq!(odd.message(), Some(id));
        let replay = AuditEntry { action: "replay".to_owned(), ..about("eu:billing#replay-1: key a:1, to rebuild") };
        assert_eq!((replay.said_of("key"), replay.said_of("to")), (Some("a:1"), Some("rebuild")));
    }

    #[test]
    fn an_entry_names_each_of_many_messages() {
        let ids: Vec<MessageId> = (0..=MESSAGES_PER_ENTRY).map(|_| MessageId::generate()).collect();
        let rows: Vec<(Arc<str>, MessageId)> = ids.iter().map(|id| ("billing".into(), *id)).collect();
        let filter = ParkedFilter {
            route: Some("billing".into()),
            key: Some("a, messages b".into()),
            ..ParkedFilter::default()
        };
        let subjects = filter.subjects(&rows);
        let entry = |subject: &String| AuditEntry {
            at: Timestamp::from_micros(0),
            actor: Actor::new("ada"),
            action: "discard".to_owned(),
            subject: subject.clone(),
        };
        let entries: Vec<AuditEntry> = subjects.iter().map(entry).collect();
        assert_eq!(entries.len(), 2, "no entry is longer than is said");
        for (number, id) in ids.iter().enumerate() {
            let named: Vec<bool> = entries.iter().map(|entry| entry.names(*id)).collect();
            assert_eq!(named, [number < MESSAGES_PER_ENTRY, number >= MESSAGES_PER_ENTRY], "{number}");
        }
        assert!(!entries[0].names(MessageId::generate()) && entries[0].names_messages());
        assert_eq!((entries[1].route(), entries[1].said_of("key")), (Some("billing"), Some("a, messages b")));
        assert_eq!(entries[1].in_short(), "1 rows of route billing, key a, messages b");
        assert_eq!(entries[1].message(), None);

        let one = ParkedFilter { id: Some(ids[0]), ..ParkedFilter::default() };
        assert_eq!(one.subjects(&rows[..1]), [format!("1 rows of route billing, message {}", ids[0])], "said once");
        assert!(entry(&one.subjects(&rows[..1])[0]).names(ids[0]));
        assert_eq!((one.subjects(&[]), filter.subjects(&[])), (Vec::<String>::new(), Vec::new()));
        let before = entry(&"5 rows of route billing, key a, messages b".to_owned());
        assert!(!before.names_messages() && before.in_short() == before.subject);
    }

    #[test]
    fn rows_of_several_routes_have_an_entry_for_each() {
        let id = MessageId::generate();
        let rows: [(Arc<str>, MessageId); 3] = ["audit", "billing", "billing"].map(|route| (route.into(), id));
        let all = ParkedFilter { state: Some(crate::parked::ParkedState::Dead), ..ParkedFilter::default() };
        let subjects = all.subjects(&rows);
        assert_eq!(subjects[0], format!("1 rows of state dead, route audit, messages {id}"));
        assert_eq!(subjects[1], format!("2 rows of state dead, route billing, messages {id} {id}"));
        assert_eq!(subjects.len(), 2);
    }
}
