//! Why a lane that has an owner does not move, in its owner's words.
//!
//! A store knows cursors, leases and parked rows. It does not know that a destination refuses connections, or that one
//! message has been without an answer for a minute: that is in the memory of the node that owns the lane. So a node says
//! it with every heartbeat, and whoever asks why a message waits finds the answer in the store, without a way to the node.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{envelope::MessageId, lease::LaneId, parked::Cause};

/// A lane that has had no progress for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standstill {
    /// The lane.
    pub lane: LaneId,
    /// For how long, when the node said so.
    pub seconds: u64,
    /// Why.
    #[serde(flatten)]
    pub reason: Reason,
}

impl Standstill {
    /// For a store to keep with the heartbeat.
    ///
    /// # Panics
    /// Never: everything in it is JSON.
    #[must_use]
    pub fn encode(standstills: &[Self]) -> String {
        serde_json::to_string(standstills).expect("text and numbers are JSON")
    }

    /// What [`encode`](Self::encode) wrote. A reason that only a newer version knows is left out: nobody should lose the
    /// whole overview for it.
    #[must_use]
    pub fn decode(text: &str) -> Vec<Self> {
        let values: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
        values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect()
    }
}

/// What a lane waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The destination takes nothing: the breaker is open, and no attempts are counted.
    Unavailable {
        /// What it said.
        cause: Cause,
        /// If it has not said so: how many messages were sent without anything being known of them, while nothing else went
        /// through. Perhaps the destination takes others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failing: Option<u64>,
        /// How long it was until the next try when the node said so; `None`: one is under way, or nobody knows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds_left: Option<u64>,
    },
    /// The destination asked for a pause.
    Throttled {
        /// How much of it was left when the node said so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds_left: Option<u64>,
    },
    /// Its route is paused, and nothing of it is in flight.
    Rests,
    /// The store fails whatever the lane asks of it, so that nothing can be read or settled. It is asked again and again.
    Store {
        /// What fails: `resume`, `read`, `due`, `settle` or `finish`.
        operation: String,
        /// What it says, with its causes.
        error: String,
    },
    /// A named limit keeps the cursor from passing a message.
    Limit {
        /// The limit.
        limit: String,
        /// The message.
        message: MessageId,
    },
    /// The cursor waits for one message.
    Message {
        /// The message.
        message: MessageId,
        /// What the message waits for.
        state: MessageState,
        /// Attempts made.
        attempts: u32,
        /// Why the last attempt failed, if one has.
        cause: Option<Cause>,
    },
}

/// What the first message of a lane waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageState {
    /// The answer of the destination.
    Answer,
    /// Its next attempt.
    Retry,
    /// Its turn: those before it on the same key, or the route's rate.
    Turn,
    /// The store, which has not confirmed the commit that passes it.
    Commit,
}

impl fmt::Display for MessageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "has no answer from the destination yet",
            Self::Retry => "was refused and will be tried again",
            Self::Turn => "waits for its turn",
            Self::Commit => "waits for the store to confirm",
        })
    }
}

/// A sentence without its full stop: `the destination takes nothing (refused: connection refused)`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { cause, failing: None, .. } => write!(f, "the destination takes nothing ({cause})"),
            Self::Unavailable { cause, failing: Some(messages), .. } => {
                let (these, they) = if *messages == 1 { ("message", "it does") } else { ("messages", "they do") };
                write!(
                    f,
                    "{messages} {these} cannot be delivered and nothing else went through meanwhile: the destination fails, or \
                     only {they} ({cause})"
                )
            }
            Self::Throttled { .. } => f.write_str("the destination asked for a pause"),
            Self::Store { operation, error } => write!(f, "the store fails the lane ({operation}: {error})"),
            Self::Rests => f.write_str("its route is paused and nothing of it is in flight"),
            Self::Limit { limit, message } => write!(f, "the limit `{limit}` keeps message {message} where it is"),
            Self::Message { message, state, attempts, cause } => {
                write!(f, "message {message} {state}")?;
                if *attempts > 0 {
                    write!(f, "; attempts {attempts}")?;
                }
                cause.as_ref().map_or(Ok(()), |cause| write!(f, " ({cause})"))
            }
        }
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} has stood still for {} s: {}", self.lane, self.seconds, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> LaneId {
        LaneId { route: "billing".into(), number: 0 }
    }

    #[test]
    fn what_a_node_says_comes_back_word_by_word() {
        let message = MessageId::generate();
        let cause = Cause::new("refused", "connection refused");
        let reasons = [
            Reason::Unavailable { cause: cause.clone(), failing: None, seconds_left: Some(30) },
            Reason::Unavailable { cause: cause.clone(), failing: Some(2), seconds_left: None },
            Reason::Throttled { seconds_left: Some(3600) },
            Reason::Rests,
            Reason::Store { operation: "read".to_owned(), error: "the log was dropped".to_owned() },
            Reason::Limit { limit: "held_rows_max".to_owned(), message },
            Reason::Message { message, state: MessageState::Retry, attempts: 3, cause: Some(cause) },
        ];
        let said = reasons.map(|reason| Standstill { lane: lane(), seconds: 7, reason });
        assert_eq!(Standstill::decode(&Standstill::encode(&said)), said);
    }

    #[test]
    fn what_a_newer_node_says_is_left_out_and_the_rest_is_read() {
        let text = r#"[{"lane":{"route":"billing","number":0},"seconds":1,"reason":"moon-phase","moon":"full"},
                       {"lane":{"route":"billing","number":0},"seconds":2,"reason":"throttled"}]"#;
        let reason = Reason::Throttled { seconds_left: None };
        assert_eq!(Standstill::decode(text), [Standstill { lane: lane(), seconds: 2, reason }]);
        assert_eq!(Standstill::decode("not JSON"), []);
    }

    #[test]
    fn a_person_can_read_it() {
        let cause = || Cause::new("refused", "connection refused");
        let reason = Reason::Unavailable { cause: cause(), failing: None, seconds_left: None };
        assert_eq!(
            Standstill { lane: lane(), seconds: 61, reason }.to_string(),
            "lane billing/0 has stood still for 61 s: the destination takes nothing (refused: connection refused)"
        );
        assert_eq!(
            Reason::Unavailable { cause: cause(), failing: Some(1), seconds_left: None }.to_string(),
            "1 message cannot be delivered and nothing else went through meanwhile: the destination fails, or only it does \
             (refused: connection refused)"
        );
    }
}
