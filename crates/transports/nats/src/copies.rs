//! Copies that the server sends of what this subscriber has already.
//!
//! Pure, but for the clock. The clock of `ack_wait` runs from the moment at which the server sends a message, so also while the
//! message waits in the buffer for a handler that is slow. When it is over, the server sends a copy into the same buffer, behind
//! the message itself. Handed out, the copies would never end: each takes the time in which the next one comes to be. So what
//! was handed out is remembered for a while, and a copy of it is left out:
//!
//! | the message | its copy |
//! |---|---|
//! | is out with the caller, for less than `ack_wait`, more or less | left out; if it stays unanswered, another one comes |
//! | is out for longer | handed out: who has it may have lost it |
//! | is acknowledged, or rejected for good | left out, and acknowledged again: the server may have forgotten that |
//! | is rejected for later | left out until then |
//!
//! The server sends no copies of what was acknowledged, except for those that are on their way already. They are no more than
//! are fetched ahead, so what is remembered has a bound.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use async_nats::datetime::DateTime;
use tokio::time::Instant;

/// A message of a stream: its number, and when it was stored. The number alone is used again in a stream that was deleted and
/// made anew.
pub(crate) type Stored = (u64, DateTime);

/// What is to be done with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is new here, or it is wanted again.
    HandOut,
    /// It is here already, and will come again if it is needed.
    LeaveOut,
    /// It is done with.
    AcknowledgeAgain,
}

/// What was handed out, and what has become of it.
#[derive(Debug)]
pub(crate) struct Copies {
    /// How long a message may be out before a copy is wanted: a little less than `ack_wait`, because the server began to count
    /// a little earlier, and who waits for the next copy waits for the whole of it once more.
    patience: Duration,
    /// For so many deliveries a message is remembered.
    remembered: u64,
    /// How many deliveries there were.
    deliveries: u64,
    by_message: HashMap<Stored, Noted>,
    /// When each was noted, the oldest first. What was noted again is in it again.
    order: VecDeque<(u64, Stored)>,
}

#[derive(Clone, Copy, Debug)]
struct Noted {
    /// After how many deliveries.
    after: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    OutSince(Instant),
    Done,
    LaterAt(Instant),
}

impl Copies {
    /// Remembers a message for so many deliveries: more than can be on their way at the same time.
    pub(crate) fn new(ack_wait: Duration, remembered: u64) -> Self {
        Self {
            patience: ack_wait - ack_wait / 10,
            remembered,
            deliveries: 0,
            by_message: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// What to do with a delivery. One that is to be handed out is noted as out.
    pub(crate) fn arrives(&mut self, message: Stored) -> Arrival {
        self.deliveries += 1;
        self.forget_the_old();
        let now = Instant::now();
        match self.by_message.get(&message).map(|noted| noted.state) {
            Some(State::Done) => Arrival::AcknowledgeAgain,
            Some(State::OutSince(since)) if now.duration_since(since) < self.patience => Arrival::LeaveOut,
            Some(State::LaterAt(at)) if now < at => Arrival::LeaveOut,
            _ => {
                self.note(message, State::OutSince(now));
                Arrival::HandOut
            }
        }
    }

    /// The server knows that it is done with.
    pub(crate) fn done(&mut self, message: Stored) {
        self.note(message, State::Done);
    }

    /// The server is told to send it again after this time.
    pub(crate) fn later(&mut self, message: Stored, wait: Duration) {
        // No time is so far off, but for a wait that means never; then it counts as out.
        let at = Instant::now().checked_add(wait);
        self.note(message, at.map_or_else(|| State::OutSince(Instant::now()), State::LaterAt));
    }

    /// The server may not know what was said of it, and a copy is welcome.
    pub(crate) fn doubt(&mut self, message: Stored) {
        self.by_message.remove(&message);
    }

    /// The numbers of those that the server sends again only later.
    pub(crate) fn put_off(&self) -> impl Iterator<Item = u64> {
        let now = Instant::now();
        let is_put_off = move |noted: &Noted| matches!(noted.state, State::LaterAt(at) if now < at);
        self.by_message.iter().filter(move |(_, noted)| is_put_off(noted)).map(|((number, _), _)| *number)
    }

    fn note(&mut self, message: Stored, state: State) {
        let after = self.deliveries;
        self.by_message.insert(message, Noted { after, state });
        self.order.push_back((after, message));
    }

    fn forget_the_old(&mut self) {
        while let Some((after, message)) = self.order.front().copied()
            && self.deliveries - after > self.remembered
        {
            self.order.pop_front();
            // What was noted again since is remembered for longer.
            if self.by_message.get(&message).is_some_and(|noted| noted.after == after) {
                self.by_message.remove(&message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_nats::datetime::from_nanos;

    use super::*;

    const ACK_WAIT: Duration = Duration::from_secs(30);

    fn stored(number: u64, at: i128) -> Stored {
        (number, from_nanos(at).unwrap())
    }

    fn first() -> Stored {
        stored(1, 1_000)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_out_comes_again_only_when_its_time_is_over() {
        let mut copies = Copies::new(ACK_WAIT, 10);
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        tokio::time::advance(ACK_WAIT / 2).await;
        assert_eq!(copies.arrives(first()), Arrival::LeaveOut, "its time is counted from when it was handed out");
        tokio::time::advance(ACK_WAIT / 2).await;
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        assert_eq!(copies.arrives(first()), Arrival::LeaveOut, "and is counted anew");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_done_does_not_come_again_unless_it_is_another_message_of_that_number() {
        let mut copies = Copies::new(ACK_WAIT, 10);
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        copies.done(first());
        tokio::time::advance(2 * ACK_WAIT).await;
        assert_eq!(copies.arrives(first()), Arrival::AcknowledgeAgain);
        assert_eq!(copies.arrives(stored(1, 2_000)), Arrival::HandOut, "of a stream that was made anew");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_rejected_comes_in_its_time_and_what_is_doubtful_at_once() {
        let mut copies = Copies::new(ACK_WAIT, 10);
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        copies.later(first(), Duration::from_secs(5));
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(copies.arrives(first()), Arrival::LeaveOut);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        copies.doubt(first());
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_has_a_bound_and_counts_from_when_it_was_last_noted() {
        let mut copies = Copies::new(ACK_WAIT, 10);
        assert_eq!(copies.arrives(first()), Arrival::HandOut);
        for number in 2..=8 {
            assert_eq!(copies.arrives(stored(number, 0)), Arrival::HandOut);
        }
        copies.done(first());
        for number in 9..=18 {
            assert_eq!(copies.arrives(stored(number, 0)), Arrival::HandOut);
        }
        assert_eq!(copies.arrives(first()), Arrival::HandOut, "ten others have come since");
        for number in 19..1_000 {
            assert_eq!(copies.arrives(stored(number, 0)), Arrival::HandOut);
        }
        assert!(copies.by_message.len() <= 11 && copies.order.len() <= 11, "{copies:?}");
    }
}
