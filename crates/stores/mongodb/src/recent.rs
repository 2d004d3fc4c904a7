//! What the one open stream of the process has had lately, for all lanes together.
//!
//! Every stream makes the server go through its history, so lanes that are at the end of the log do not open one each. The
//! stream that wakes them ([`crate::wake`]) leaves here what it had, and a lane whose cursor lies inside of that reads from
//! memory. A lane that is further behind, or begins, catches up with a stream or a scan of its own, and is then inside.
//!
//! - *Without a gap*: everything that was committed behind `begin` and up to `end` is here, in the order of the stream. Answers
//!   are joined by their tokens, whose order is that of the stream; where two cannot be compared, everything is dropped.
//! - *To its end*: the open stream may lag. So where nothing is left to read, the server is asked what came behind `end`, by
//!   one for all who wait ([`Recent::catch_up`]). A page that has something may end before the log does; what comes later
//!   wakes whoever waits for it.
//! - *Nothing here is the only copy of anything*: what is too much or too old is dropped ([`EVENTS_MAX`], [`BYTES_MAX`],
//!   [`KEPT_FOR`]), and all of it when the stream breaks, or the collection itself ends. Whose cursor is not inside any more
//!   asks for itself, and is told what there is to be told.

use std::{
    cmp::Ordering,
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    cursor::Onward,
    db::Db,
    error::Work,
    stream::{self, Answer, Event, Events, Question, order, time_of, weight},
};

/// Events that are kept.
const EVENTS_MAX: usize = 10_000;

/// Bytes that they may have together. A message that is larger is kept by nobody.
const BYTES_MAX: usize = 32 << 20;

/// Who has not come for an event in so long is not at the end of the log.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// The recent events of a store.
#[derive(Default)]
pub(crate) struct Recent {
    state: Mutex<State>,
    /// Held while somebody asks for all, with the instant at which the last answer was asked for.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Default)]
struct State {
    /// Which stream it is. Whoever has another one in hand has nothing to add.
    number: u64,
    kept: Option<Kept>,
}

/// Everything behind one token and up to another.
struct Kept {
    begin: String,
    end: String,
    events: VecDeque<(Event, Instant)>,
    bytes: usize,
}

impl Recent {
    /// A stream is opened: what another one has left does not count any more.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.lock();
        state.kept = None;
        state.number += 1;
        state.number
    }

    /// What the open stream has had since its last answer, and where it is now. `false`: what it has is not joined to the rest,
    /// and another stream has to be opened.
    pub(crate) fn add(&self, number: u64, events: Vec<Event>, token: Option<String>) -> bool {
        let mut state = self.lock();
        if state.number == number && state.kept.is_none() {
            // It begins where the stream is known to have been before it had anything.
            let begin = token.filter(|_| events.is_empty());
            state.kept = begin.map(Kept::behind_token);
            return true;
        }
        state.join(number, events, token)
    }

    /// The stream has ended, one way or another.
    pub(crate) fn end(&self, number: u64) {
        let mut state = self.lock();
        if state.number == number {
            state.kept = None;
            state.number += 1;
        }
    }

    /// What is here behind a place in the stream. `None`: it is not inside of what is kept.
    pub(crate) fn behind(&self, from: &Onward, events_max: usize) -> Option<Events> {
        self.lock().kept.as_ref()?.behind(from, events_max)
    }

    /// Asks the server what came behind what is kept. Of many who ask at the same time one or two do; what they find is for
    /// all, and nobody takes an answer for its own that was asked for before it came.
    pub(crate) async fn catch_up(&self, db: &mut Db) -> Work<()> {
        let came = Instant::now();
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked >= came) {
            return Ok(());
        }
        let place = |state: &State| Some((state.number, state.kept.as_ref()?.end.clone()));
        let Some((number, end)) = place(&self.lock()) else { return Ok(()) };
        let now = Instant::now();
        let from = Onward::Token(end);
        let question = Question { from, events_max: EVENTS_MAX / 2, late: None, after: None, until: None };
        match stream::ask(db, question).await? {
            Answer::Events(Events { events, token, more }) => {
                // Where there is more, the token may be behind it.
                self.lock().join(number, events, token.filter(|_| !more));
                *asked = Some(now);
            }
            Answer::Lost | Answer::Ended(_) => self.end(number),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join(&mut self, number: u64, events: Vec<Event>, token: Option<String>) -> bool {
        let Some(kept) = self.kept.as_mut().filter(|_| self.number == number) else { return false };
        let joined = kept.add(events, token, Instant::now());
        if joined {
            kept.drop_surplus(KEPT_FOR);
        } else {
            self.kept = None;
        }
        joined
    }
}

impl Kept {
    fn behind_token(token: String) -> Self {
        Self { begin: token.clone(), end: token, events: VecDeque::new(), bytes: 0 }
    }

    /// Adds what is not here yet. `false`: it cannot be told what is.
    fn add(&mut self, events: Vec<Event>, token: Option<String>, now: Instant) -> bool {
        for event in events {
            match order(&event.token, &self.end) {
                Some(Ordering::Greater) => {
                    self.bytes += weight(&event.document);
                    self.end.clone_from(&event.token);
                    self.events.push_back((event, now));
                }
                // It came the other way.
                Some(_) => {}
                None => return false,
            }
        }
        let Some(token) = token else { return true };
        match order(&token, &self.end) {
            Some(Ordering::Greater) => self.end = token,
            Some(_) => {}
            None => return false,
        }
        true
    }

    fn drop_surplus(&mut self, older_than: Duration) {
        while let Some((oldest, since)) = self.events.front() {
            let is_surplus = self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX || since.elapsed() > older_than;
            if !is_surplus {
                return;
            }
            self.bytes -= weight(&oldest.document);
            self.begin.clone_from(&oldest.token);
            self.events.pop_front();
        }
    }

    fn behind(&self, from: &Onward, events_max: usize) -> Option<Events> {
        let first = match from {
            Onward::Time(time) if time_of(&self.begin)? < *time => self.first_at(*time),
            Onward::Time(_) => return None,
            Onward::Token(token) => {
                if order(token, &self.begin)? == Ordering::Less {
                    return None;
                }
                let mut first = self.first_at(time_of(token)?);
                // Events of one transaction have one time.
                while let Some((event, _)) = self.events.get(first) {
                    match order(&event.token, token)? {
                        Ordering::Greater => break,
                        Ordering::Less | Ordering::Equal => first += 1,
                    }
                }
                first
            }
        };
        let events: Vec<Event> = self.events.range(first..).take(events_max).map(|(event, _)| event.clone()).collect();
        let more = first + events.len() < self.events.len();
        // Who asks may be further than the open stream is.
        let token = match from {
            Onward::Token(token) if order(&self.end, token)? != Ordering::Greater => Some(token.clone()),
            Onward::Time(time) if time_of(&self.end)? < *time => None,
            _ => Some(self.end.clone()),
        };
        Some(Events { events, token, more })
    }

    /// The first event that was committed at this time or later.
    fn first_at(&self, time: u64) -> usize {
        self.events.partition_point(|(event, _)| event.committed < time)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mongodb::bson::doc;

    use super::*;

    /// Where a stream is that has nothing at this time.
    fn mark(time: u64) -> String {
        format!("82{time:016X}29296E04")
    }

    fn token(time: u64, index: u8) -> String {
        format!("82{time:016X}2B022C0100296E{index:02X}04")
    }

    fn event(time: u64, index: u8) -> Event {
        let document = Arc::new(doc! { "payload": format!("{time}-{index}") });
        Event { document, token: token(time, index), committed: time }
    }

    fn recent(begin: &str) -> (Recent, u64) {
        let recent = Recent::default();
        let number = recent.number();
        assert!(recent.add(number, Vec::new(), Some(begin.to_owned())));
        (recent, number)
    }

    fn found(recent: &Recent, from: &Onward) -> Option<Vec<String>> {
        let events = recent.behind(from, 100)?.events;
        Some(events.iter().map(|event| event.document.get_str("payload").unwrap().to_owned()).collect())
    }

    fn behind(recent: &Recent, token: &str) -> Option<Vec<String>> {
        found(recent, &Onward::Token(token.to_owned()))
    }

    #[test]
    fn a_lane_reads_on_behind_its_own_place() {
        let (recent, number) = recent(&mark(10));
        assert!(recent.add(number, vec![event(11, 0), event(11, 1), event(13, 0)], Some(mark(14))));
        assert_eq!(behind(&recent, &mark(9)), None, "what came before is not known");
        assert_eq!(behind(&recent, &mark(10)).unwrap(), ["11-0", "11-1", "13-0"]);
        assert_eq!(behind(&recent, &token(11, 0)).unwrap(), ["11-1", "13-0"], "in the middle of a transaction");
        assert_eq!(behind(&recent, &mark(12)).unwrap(), ["13-0"]);
        assert_eq!(behind(&recent, &token(13, 0)).unwrap(), [""; 0]);
        assert_eq!(found(&recent, &Onward::Time(10)), None, "something of that time may have come before");
        assert_eq!(found(&recent, &Onward::Time(12)).unwrap(), ["13-0"]);
    }

    #[test]
    fn answers_that_overlap_are_joined_and_nothing_comes_twice() {
        let (recent, number) = recent(&mark(10));
        assert!(recent.add(number, vec![event(11, 0), event(11, 1)], None));
        assert!(recent.add(number, vec![event(11, 0), event(11, 1), event(11, 2)], Some(token(11, 2))));
        assert!(recent.add(number, vec![event(11, 2), event(12, 0)], Some(mark(12))));
        assert_eq!(behind(&recent, &mark(10)).unwrap(), ["11-0", "11-1", "11-2", "12-0"]);
    }

    #[test]
    fn only_the_stream_that_is_open_adds_something() {
        let (recent, old) = recent(&mark(10));
        let new = recent.number();
        assert!(!recent.add(old, vec![event(11, 0)], None));
        assert!(recent.add(new, vec![event(21, 0)], Some(token(21, 0))), "it is not known where that began");
        assert_eq!(behind(&recent, &mark(20)), None);
        assert!(recent.add(new, Vec::new(), Some(mark(22))));
        assert_eq!(behind(&recent, &mark(22)).unwrap(), [""; 0]);
        recent.end(new);
        assert_eq!(behind(&recent, &mark(22)), None);
    }

    #[test]
    fn who_is_further_than_the_stream_stays_there() {
        let (recent, number) = recent(&mark(10));
        assert!(recent.add(number, vec![event(11, 0)], None));
        let ahead = recent.behind(&Onward::Token(token(15, 0)), 100).unwrap();
        assert_eq!((ahead.events.len(), ahead.token), (0, Some(token(15, 0))));
        let ahead = recent.behind(&Onward::Time(15), 100).unwrap();
        assert_eq!((ahead.events.len(), ahead.token), (0, None));
    }

    #[test]
    fn a_page_takes_no_more_than_it_holds() {
        let (recent, number) = recent(&mark(10));
        assert!(recent.add(number, (0..10).map(|index| event(11, index)).collect(), Some(mark(12))));
        let some = recent.behind(&Onward::Token(mark(10)), 4).unwrap();
        assert!(some.events.len() == 4 && some.more);
        assert!(!recent.behind(&Onward::Token(token(11, 3)), 6).unwrap().more);
    }

    #[test]
    fn what_is_too_much_or_too_old_is_dropped_from_its_beginning() {
        let (recent, number) = recent(&mark(10));
        let many = (0..EVENTS_MAX as u64 + 5).map(|time| event(11 + time, 0)).collect();
        assert!(recent.add(number, many, None));
        assert_eq!(behind(&recent, &token(14, 0)), None);
        let rest = recent.behind(&Onward::Token(token(15, 0)), usize::MAX).unwrap();
        assert_eq!(rest.events.len(), EVENTS_MAX);
        let mut state = recent.lock();
        let kept = state.kept.as_mut().unwrap();
        kept.drop_surplus(Duration::ZERO);
        assert!(kept.events.is_empty() && kept.bytes == 0 && kept.begin == kept.end);
    }

    #[test]
    fn tokens_that_cannot_be_compared_end_it() {
        let newer = |time: u64| format!("82{time:016X}2B042C0100296E0004");
        let (recent, number) = recent(&mark(10));
        assert!(recent.add(number, vec![event(11, 0)], None));
        assert_eq!(behind(&recent, &newer(11)), None, "another way to write the same");
        let other = Event { token: newer(11), ..event(11, 0) };
        assert!(!recent.add(number, vec![other], None));
        assert_eq!(behind(&recent, &token(11, 0)), None);
    }
}
