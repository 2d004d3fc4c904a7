//! A batch as one transaction of Kafka, for those who ask for it.
//!
//! Readers that read only what is committed see all of a batch or nothing of it, and nothing of a publisher that was shut out
//! by a younger one. A message that is refused spoils the transaction: the rest goes again without it, with a new client,
//! whose first word aborts what the old one has left open. The same after any error whose end is not known, because a late
//! commit of the old transaction could hit the next one.

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
        match &published {
            Ok(last) => *state = State { ready: last.clone(), begun: false },
            // How it ended is not known, so nothing more is said under its name.
            Err(_) => {
                *state = State::default();
                publisher.together.retire_all();
                publisher.alone.retire_all();
            }
        }
        published.map(drop)
    }
}

/// Tries until what is left goes through as a whole; returns the client that may begin the next one.
async fn rounds(
    publisher: &KafkaPublisher,
    live: &Arc<Live>,
    mut ready: Option<Arc<Live>>,
    batch: &[RecordRef],
    outcomes: &mut [Option<Outcome>],
) -> Result<Option<Arc<Live>>, Cause> {
    let timeout = publisher.timeout();
    let (mut live, mut connection) = (Arc::clone(live), &publisher.together);
    // Ends with a commit, or with nothing left: every other round but one gives at least one message its outcome.
    loop {
        let left = open(outcomes);
        if !ready.is_some_and(|known| Arc::ptr_eq(&known, &live)) {
            // Also aborts what the client before has left open.
            call(&live, move |live| live.producer().init_transactions(timeout)).await?;
        }
        call(&live, |live| live.producer().begin_transaction()).await?;
        let answers = publisher.exchange(&live, batch, &left).await;
        if answers.iter().all(|(_, answer)| matches!(answer, Answer::Acknowledged)) {
            call(&live, move |live| live.producer().commit_transaction(timeout)).await?;
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
        (live, ready) = (connection.get()?, None);
    }
}

/// What is known of a transaction that is spoilt: those that were refused. The others may go again, unless nobody was
/// refused; then nobody knows what would be different next time.
fn spoilt(publisher: &KafkaPublisher, batch: &[RecordRef], answers: Vec<(usize, Answer)>) -> Vec<(usize, Answer)> {
    let refused = |(index, answer): &(usize, Answer)| match answer {
        Answer::Acknowledged => false,
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
        Answer::Acknowledged => (index, Answer::Failed(Code::PurgeInflight)),
        other => (index, other),
    };
    others.into_iter().map(aborted).collect()
}

/// A blocking call of the client.
async fn call(live: &Arc<Live>, what: impl FnOnce(&Live) -> KafkaResult<()> + Send + 'static) -> Result<(), Cause> {
    let called = Arc::clone(live);
    let error = match spawn_blocking(move || what(&called)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => KafkaError::Canceled,
    };
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    Err(Cause::new("transaction", format!("{}: {error}", error::numbered(code))))
}
