//! Messages out on one channel, and what its confirms mean, taken together.
//!
//! The server returns a message that no queue takes, and then confirms it like any other. The client hands a returned message
//! out with whichever confirm of the channel it hears next, not with the message's own. So a channel carries one batch at a
//! time, and who was returned is known by id once all confirms are there: every return comes before its own confirm, so by
//! then each has come out with one of them.

use std::collections::HashSet;

use futures_util::{FutureExt, future::maybe_done, poll};
use lapin::{BasicProperties, Channel, Confirmation, options::BasicPublishOptions, types::ShortString};
use postrider_core::{parked::Cause, transport::Outcome};
use tokio::time::{Instant, timeout_at};

use crate::error::{self, Blame};

/// A message, ready to be sent.
pub(crate) struct Message<'a> {
    /// Its place in the batch.
    pub(crate) index: usize,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    /// What the properties have on the wire, about.
    pub(crate) properties_bytes: usize,
    pub(crate) payload: &'a [u8],
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    Told(Outcome),
    /// No queue takes it.
    Returned,
    /// The server has ended the channel because of this message, or of another one on it.
    Blamed(Blame),
}

/// What became of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Usable,
    ChannelLost,
    /// Nothing is wrong with the connection, but the server takes nothing from it at the moment: confirms are missing, and part
    /// of the messages may not even be written.
    Blocked,
    ConnectionLost,
}

/// What was heard of one message.
pub(crate) struct Answered {
    index: usize,
    /// Its `message-id`.
    id: Option<ShortString>,
    answer: Answer,
}

enum Answer {
    Confirmed {
        /// Whether every queue that it was for has it.
        taken: bool,
        /// The id of the message that came back with this confirm, which may be another one.
        returned: Option<ShortString>,
    },
    Lost(lapin::Error),
    Late,
}

/// Hands everything to the client before anything is awaited, then awaits the confirms, until the deadline at the latest.
pub(crate) async fn send(
    channel: &Channel,
    exchange: &str,
    messages: Vec<Message<'_>>,
    deadline: Instant,
) -> Vec<Answered> {
    let exchange: ShortString = exchange.into();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut sending = Vec::with_capacity(messages.len());
    for Message { index, routing_key, properties, payload, .. } in messages {
        let id = properties.message_id().clone();
        let publish = channel.basic_publish(exchange.clone(), routing_key, options, payload, properties);
        let mut publish = Box::pin(maybe_done(publish));
        // The first poll takes the message over as a whole; it is ready when the message has been written.
        let _: std::task::Poll<()> = poll!(publish.as_mut());
        sending.push((index, id, publish));
    }
    let mut answers: Vec<Answered> = Vec::with_capacity(sending.len());
    let mut late = Vec::new();
    for (index, id, mut publish) in sending {
        let answer = match timeout_at(deadline, publish.as_mut()).await {
            Ok(()) => match publish.as_mut().take_output() {
                Some(Ok(mut confirm)) => match timeout_at(deadline, &mut confirm).await {
                    Ok(confirmed) => confirmed.into(),
                    Err(_) => {
                        late.push((answers.len(), confirm));
                        Answer::Late
                    }
                },
                Some(Err(error)) => Answer::Lost(error),
                None => Answer::Late,
            },
            Err(_) => Answer::Late,
        };
        answers.push(Answered { index, id, answer });
    }
    // A confirm that came while others were awaited may have brought a returned message with it.
    for (place, confirm) in late {
        if let Some(confirmed) = confirm.now_or_never() {
            answers[place].answer = confirmed.into();
        }
    }
    answers
}

/// What the answers of one channel mean.
pub(crate) fn conclude(answers: Vec<Answered>, blocked: bool) -> (State, Vec<(usize, Verdict)>) {
    let returned: HashSet<ShortString> =
        answers.iter().filter_map(|answered| answered.answer.returned()).cloned().collect();
    let state = state(&answers, blocked);
    // With confirms missing, one that was returned may look like one that was not.
    let doubtful = state != State::Usable && !returned.is_empty();
    let blame = answers.iter().find_map(|answered| answered.answer.blame());
    let verdict = |Answered { index, id, answer }: Answered| {
        let verdict = match answer {
            Answer::Confirmed { .. } if id.is_some_and(|id| returned.contains(&id)) => Verdict::Returned,
            // If others go again because one is to blame, so does this one, and then it is known.
            Answer::Confirmed { .. } if doubtful => blame.clone().map_or_else(
                || unavailable("doubtful", "confirmed, but perhaps returned as well: other confirms are missing"),
                Verdict::Blamed,
            ),
            Answer::Confirmed { taken: true, .. } => Verdict::Told(Outcome::Durable),
            Answer::Confirmed { taken: false, .. } => {
                unavailable("nacked", "the queue refuses it: it is full, or failed")
            }
            Answer::Late if blocked => unavailable("blocked", "the server takes nothing: it is out of memory or disk"),
            // A server that is paused or half gone says nothing to anybody, and a queue that lacks its majority neither takes
            // nor refuses while others do. What is wrong with a message the server says; no message may pay for silence.
            Answer::Late => unavailable("timeout", "no confirm in time"),
            Answer::Lost(error) => match error::blame(&error) {
                Some(blame) => Verdict::Blamed(blame),
                None => Verdict::Told(error::unconfirmed(&error)),
            },
        };
        (index, verdict)
    };
    (state, answers.into_iter().map(verdict).collect())
}

fn state(answers: &[Answered], blocked: bool) -> State {
    let of_the_channel = |answer: &Answer| matches!(answer, Answer::Lost(error) if error.is_amqp_soft_error());
    let lost = |answer: &Answer| matches!(answer, Answer::Lost(_));
    if answers.iter().all(|answered| matches!(answered.answer, Answer::Confirmed { .. })) {
        State::Usable
    } else if answers.iter().any(|answered| of_the_channel(&answered.answer)) {
        State::ChannelLost
    } else if blocked && !answers.iter().any(|answered| lost(&answered.answer)) {
        State::Blocked
    } else {
        State::ConnectionLost
    }
}

fn unavailable(code: &str, detail: &str) -> Verdict {
    Verdict::Told(Outcome::Unavailable(Cause::new(code, detail)))
}

impl Answer {
    fn returned(&self) -> Option<&ShortString> {
        match self {
            Self::Confirmed { returned, .. } => returned.as_ref(),
            Self::Lost(_) | Self::Late => None,
        }
    }

    fn blame(&self) -> Option<Blame> {
        match self {
            Self::Lost(error) => error::blame(error),
            Self::Confirmed { .. } | Self::Late => None,
        }
    }
}

impl From<Result<Confirmation, lapin::Error>> for Answer {
    fn from(confirmed: Result<Confirmation, lapin::Error>) -> Self {
        confirmed.map_or_else(Self::Lost, Into::into)
    }
}

impl From<Confirmation> for Answer {
    fn from(confirmation: Confirmation) -> Self {
        let taken = confirmation.is_ack();
        let message = confirmation.take_message();
        Self::Confirmed { taken, returned: message.and_then(|m| m.delivery.properties.message_id().clone()) }
    }
}

#[cfg(test)]
mod tests {
    use lapin::{
        ErrorKind,
        message::{BasicReturnMessage, Delivery},
        protocol::{AMQPError, AMQPSoftError},
    };

    use super::*;

    fn returned(id: &str) -> BasicReturnMessage {
        let mut delivery = Delivery::mock(0, "e".into(), "k".into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(id.into());
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    fn answered(answers: Vec<Answer>) -> (State, Vec<Verdict>) {
        answered_while(false, answers)
    }

    fn answered_while(blocked: bool, answers: Vec<Answer>) -> (State, Vec<Verdict>) {
        let ids = ["a", "b", "c"];
        let answers = answers.into_iter().enumerate();
        let answers = answers.map(|(index, answer)| Answered { index, id: Some(ids[index].into()), answer }).collect();
        let (state, verdicts) = conclude(answers, blocked);
        (state, verdicts.into_iter().map(|(_, verdict)| verdict).collect())
    }

    fn acknowledged(with: Option<&str>) -> Answer {
        Confirmation::Ack(with.map(returned)).into()
    }

    const DURABLE: Verdict = Verdict::Told(Outcome::Durable);

    #[test]
    fn a_returned_message_is_known_by_its_id_and_not_by_the_confirm_it_came_with() {
        let (state, verdicts) = answered(vec![acknowledged(Some("c")), acknowledged(None), acknowledged(None)]);
        assert_eq!(verdicts, [DURABLE, DURABLE, Verdict::Returned]);
        assert_eq!(state, State::Usable);
    }

    /// The codes of the outages; nothing for what is none.
    fn outages(verdicts: &[Verdict]) -> Vec<String> {
        let code = |verdict: &Verdict| match verdict {
            Verdict::Told(Outcome::Unavailable(cause)) => cause.code().to_owned(),
            _ => String::new(),
        };
        verdicts.iter().map(code).collect()
    }

    #[test]
    fn with_confirms_missing_a_return_makes_all_confirms_doubtful() {
        let (state, verdicts) = answered(vec![acknowledged(Some("c")), acknowledged(None), Answer::Late]);
        assert_eq!(outages(&verdicts), ["doubtful", "doubtful", "timeout"]);
        assert_eq!(state, State::ConnectionLost);
        let (_, verdicts) = answered(vec![acknowledged(None), acknowledged(None), Answer::Late]);
        assert_eq!(verdicts[..2], [DURABLE, DURABLE], "without a return, what is confirmed is there");
    }

    #[test]
    fn what_is_doubtful_goes_again_with_those_that_do() {
        let refused = AMQPError::new(AMQPSoftError::ACCESSREFUSED.into(), "may not".into());
        let refused = Answer::Lost(ErrorKind::ProtocolError(refused).into());
        let (state, verdicts) = answered(vec![acknowledged(None), acknowledged(Some("b")), refused]);
        assert!(matches!(verdicts[0], Verdict::Blamed(Blame::RoutingKey(_))), "{verdicts:?}");
        assert_eq!(verdicts[1], Verdict::Returned);
        assert_eq!((state, &verdicts[2]), (State::ChannelLost, &verdicts[0]));
    }

    #[test]
    fn silence_is_an_outage_whether_others_are_answered_or_not() {
        for answers in [vec![Answer::Late], vec![Answer::Late, Answer::Late], vec![Answer::Late, acknowledged(None)]] {
            let (state, verdicts) = answered(answers);
            assert_eq!(outages(&verdicts)[0], "timeout");
            assert_eq!(state, State::ConnectionLost);
        }
    }

    #[test]
    fn a_server_that_takes_nothing_costs_neither_the_connection_nor_what_is_confirmed() {
        let (state, verdicts) = answered_while(true, vec![acknowledged(None), Answer::Late]);
        assert_eq!((state, &verdicts[0]), (State::Blocked, &DURABLE));
        assert_eq!(outages(&verdicts)[1], "blocked");
        let lost = Answer::Lost(ErrorKind::MissingHeartbeatError.into());
        assert_eq!(answered_while(true, vec![Answer::Late, lost]).0, State::ConnectionLost);
        assert_eq!(answered_while(true, vec![acknowledged(None)]).0, State::Usable);
    }

    #[test]
    fn a_refusal_of_the_queue_and_a_lost_connection_are_outages() {
        let lost = Answer::Lost(ErrorKind::MissingHeartbeatError.into());
        let (state, verdicts) = answered(vec![Confirmation::Nack(None).into(), lost]);
        assert!(matches!(&verdicts[0], Verdict::Told(Outcome::Unavailable(cause)) if cause.code() == "nacked"));
        assert!(matches!(&verdicts[1], Verdict::Told(Outcome::Unknown(cause)) if cause.code() == "connection-lost"));
        assert_eq!(state, State::ConnectionLost);
    }
}
