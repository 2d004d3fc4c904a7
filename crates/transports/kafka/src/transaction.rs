//! A batch as one transaction of Kafka, for those who ask for it.
//!
//! Readers that read only what is committed see all of a batch or nothing of it, and nothing of a publisher that was shut out
//! by a younger one. A message that is refused spoils the transaction: the rest goes again without it, with a new client,
//! whose first word aborts what the old one has left open. The same after any error whose end is not known, because a late
//! commit of the old transaction could hit the next one. Only a client that has not got through with that first word, and has begun
//! nothing, is kept: it goes on with it, which on a slow cluster may take longer than one attempt has time for.
//!
//! What was acknowledged in a transaction that is never committed has not arrived, and that is no doubt: it waits with what has
//! spoilt the transaction, and does not pay for it.

use std::sync::Arc;

use postrider_core::{log::RecordRef, parked::Cause, transport::Outcome};
use rdkafka::{
    error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code},
    producer::Producer,
};
use tokio::{sync::Mutex, task::spawn_blocking};

use crate::{
    connect::Live,
    error,
    publisher::{Answer, KafkaPublisher, open},
};

/// Why a transaction did not come to its end.
enum Failed {
    /// The client has not made itself known in time, and has begun nothing.
    Late(Cause),
    /// How it ended is not known.
    Open(Cause),
}

/// The transactions of one publisher, one at a time.
#[derive(Default)]
pub(crate) struct Transactions(Mutex<State>);

#[derive(Default)]
struct State {
    /// The client that has made itself known to the coordinator.
    ready: Option<Arc<Live>>,
    /// Whether a transaction was begun and has not ended.
    begun: bool,
}

impl Transactions {
    /// Publishes what has no outcome yet. If the future is dropped, its transaction stays open; the next call puts that client
    /// away, and its transaction is aborted by the one after it.
    ///
    /// # Errors
    /// Why nothing can be sent at all.
    pub(crate) async fn publish(
        &self,
        publisher: &KafkaPublisher,
        live: &Arc<Live>,
        batch: &[RecordRef],
        outcomes: &mut [Option<Outcome>],
    ) -> Result<(), Cause> {
        if open(outcomes).is_empty() {
            return Ok(());
        }
        let mut state = self.0.lock().await;
        if std::mem::replace(&mut state.begun, true) {
            *state = State::default();
            publisher.together.retire_all();
            return Err(Cause::new("transaction", "the one before was given up half-way; the next has a new client"));
        }
        let published = rounds(publisher, live, state.ready.take(), batch, outcomes).await;
        *state = State::default();
        match published {
            Ok(last) => {
                state.ready = last;
                Ok(())
            }
            Err(Failed::Late(cause)) => {
                publisher.alone.retire_all();
                Err(cause)
            }
            // Nothing more is said under its name.
            Err(Failed::Open(cause)) => {
                publisher.together.retire_all();
                publisher.alone.retire_all();
                Err(cause)
            }
        }
    }
}

/// Tries until what is left goes through as a whole; returns the client that may begin the next one.
async fn rounds(
    publisher: &KafkaPublisher,
    live: &Arc<Live>,
    mut ready: Option<Arc<Live>>,
    batch: &[RecordRef],
    outcomes: &mut [Option<Outcome>],
) -> Result<Option<Arc<Live>>, Failed> {
    let timeout = publisher.timeout();
    let (mut live, mut connection) = (Arc::clone(live), &publisher.together);
    // Ends with a commit, or with nothing left: every other round but one gives at least one message its outcome.
    loop {
        let left = open(outcomes);
        if !ready.is_some_and(|known| Arc::ptr_eq(&known, &live)) {
            // Also aborts what the client before has left open. Called again, it goes on where it was.
            let known = call(&live, move |live| live.producer().init_transactions(timeout)).await;
            known.map_err(|error| if is_late(&error) { Failed::Late(cause(&error)) } else { open_ended(&error) })?;
        }
        let begun = call(&live, |live| live.producer().begin_transaction()).await;
        begun.map_err(|error| open_ended(&error))?;
        let answers = publisher.exchange(&live, batch, &left).await;
        if answers.iter().all(|(_, answer)| matches!(answer, Answer::Acknowledged)) {
            let committed = call(&live, move |live| live.producer().commit_transaction(timeout)).await;
            committed.map_err(|error| open_ended(&error))?;
            publisher.conclude(&live, batch, answers, outcomes).await;
            if std::ptr::eq(connection, &publisher.together) {
                return Ok(Some(live));
            }
            // It has shut the other client out, and will be shut out by the next one.
            connection.retire(&live);
            return Ok(None);
        }
        connection.retire(&live);
        let together = std::ptr::eq(connection, &publisher.together);
        if together && answers.iter().any(|(_, answer)| answer.is_too_large()) {
            // A request was too large, and nobody knows for which of its messages.
            connection = &publisher.alone;
        } else {
            publisher.conclude(&live, batch, spoilt(publisher, batch, answers), outcomes).await;
        }
        if open(outcomes).is_empty() {
            return Ok(None);
        }
        (live, ready) = (connection.get().map_err(Failed::Open)?, None);
    }
}

/// What is known of a transaction that is spoilt: those that were refused. The others may go again, unless nobody was
/// refused; then nobody knows what would be different next time. What was acknowledged, or under way, is not among what is
/// committed, as if it had never been sent.
fn spoilt(publisher: &KafkaPublisher, batch: &[RecordRef], answers: Vec<(usize, Answer)>) -> Vec<(usize, Answer)> {
    let refused = |(index, answer): &(usize, Answer)| match answer {
        Answer::Acknowledged | Answer::Concluded => false,
        Answer::Unfit(_) => true,
        Answer::Failed(code) => {
            matches!(error::outcome(*code, &publisher.topic(&batch[*index])), Outcome::Rejected(_))
        }
    };
    let (guilty, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(refused);
    if !guilty.is_empty() {
        return guilty;
    }
    let aborted = |(index, answer)| match answer {
        Answer::Acknowledged | Answer::Concluded | Answer::Failed(Code::PurgeInflight) => {
            (index, Answer::Failed(Code::PurgeQueue))
        }
        other => (index, other),
    };
    others.into_iter().map(aborted).collect()
}

/// A blocking call of the client.
async fn call(live: &Arc<Live>, what: impl FnOnce(&Live) -> KafkaResult<()> + Send + 'static) -> KafkaResult<()> {
    let called = Arc::clone(live);
    spawn_blocking(move || what(&called)).await.unwrap_or(Err(KafkaError::Canceled))
}

/// Whether the call may be repeated, and goes on then.
fn is_late(error: &KafkaError) -> bool {
    matches!(error, KafkaError::Transaction(error) if error.is_retriable())
}

fn open_ended(error: &KafkaError) -> Failed {
    Failed::Open(cause(error))
}

fn cause(error: &KafkaError) -> Cause {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    Cause::new("transaction", format!("{}: {error}", error::numbered(code)))
}

#[cfg(test)]
mod tests {
    use postrider_core::envelope::Envelope;
    use postrider_testkit::transport::record;

    use super::*;
    use crate::access::Access;

    /// Four times unknown would count as an attempt, while it is known that nothing of it is committed.
    #[test]
    fn nobody_pays_for_an_outage_that_has_spoilt_the_transaction_of_all() {
        let publisher = KafkaPublisher::builder(Access::new("kafka://127.0.0.1:9").unwrap()).build().unwrap();
        let batch: Vec<RecordRef> = (0..3).map(|_| record(&Envelope::new("orders", "n", "x"))).collect();
        let spoilt = |answers: [Answer; 3]| -> Vec<String> {
            let answers = (0..).zip(answers).collect();
            let named = |(index, answer)| match answer {
                Answer::Failed(code) => format!("{index} {}", error::outcome(code, "orders").name()),
                Answer::Acknowledged | Answer::Concluded | Answer::Unfit(_) => format!("{index} goes on"),
            };
            spoilt(&publisher, &batch, answers).into_iter().map(named).collect()
        };
        let late = || Answer::Failed(Code::MessageTimedOut);
        let outage = spoilt([Answer::Acknowledged, late(), Answer::Failed(Code::PurgeInflight)]);
        assert_eq!(outage, ["0 unavailable", "1 unavailable", "2 unavailable"]);
        let refused = spoilt([Answer::Acknowledged, Answer::Failed(Code::InvalidRecord), late()]);
        assert_eq!(refused, ["1 rejected"], "the others go again without it");
    }
}
