//! Enqueue: appending envelopes to the log inside the application's own transaction.
//!
//! The session must be in a transaction: one that is not is refused, for the messages would be committed alone. The server
//! gives each message its point in the time of the cluster (`at`) as it is inserted; no client can. That point knows seconds
//! alone, so the message also says the instant by the client's clock, which counts as far as it lies within that second.
//!
//! A service in any language enqueues with a plain insert; the rest of the fields may be left out:
//!
//! ```js
//! session.getDatabase("shop").postrider_log.insertOne({
//!   at: Timestamp(0, 0), topic: "orders", name: "order.placed", key: "o-4711", payload: "{}"
//! })
//! ```
//!
//! `at: Timestamp(0, 0)` is filled in by the server, in an insert and in nothing else: an update would leave it as it is, and
//! is refused by the collection's validator. Touch the document that orders the key before you enqueue: what is enqueued
//! without that has no order among its like.

use mongodb::{
    ClientSession,
    bson::{
        DateTime, RawArrayBuf, RawBinaryRef, RawDocumentBuf, Timestamp, oid::ObjectId, raw::cstr, spec::BinarySubtype,
    },
    error::ErrorKind as Mongodb,
    options::WriteConcern,
};
use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
};

use crate::{
    db::refused,
    dialect::Mongo,
    error::{Fault, Work},
    value::long,
};

/// Bytes of one command, unless a single message is larger: well below what a server takes.
const COMMAND_BYTES_MAX: usize = 4 << 20;

/// Messages of one command.
const COMMAND_MESSAGES_MAX: usize = 1_000;

/// Bytes of one message with its key, headers and names. A document of MongoDB holds 16 MiB; a parked row is the message and a
/// little more, and so is its event in the change stream. The collection's validator refuses what other languages write.
const MESSAGE_BYTES_MAX: usize = (16 << 20) - (64 << 10);

/// Asynchronous, as the driver is. If the future is dropped half-way, the transaction holds all, some or none of the batch:
/// abort it.
impl Enlist<Mongo> for ClientSession {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Mongo, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let batch = batch?;
            enqueue(self, store, &batch).await.map_err(|fault| fault.into_error("enqueue"))
        })
    }
}

/// As an application does, with the fault as it came: who runs transactions again has to know which.
pub(crate) async fn enqueue(session: &mut ClientSession, store: &Mongo, batch: &Batch) -> Work<()> {
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    batch.envelopes().iter().try_for_each(fits)?;
    must_be_in_transaction(session).await?;
    append(session, store, batch.envelopes()).await
}

/// A message that could not be parked would stop its lane, so it does not get in.
fn fits(envelope: &Envelope) -> Result<()> {
    // The names of the fields, their lengths, and what the server adds.
    let bytes = envelope.weight() + envelope.topic.len() + envelope.name.len() + 512;
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Limit,
        "enqueue: the message does not fit into a document of MongoDB, which holds 16 MiB",
    )
    .with("message_id", envelope.id)
    .with("size", bytes)
    .with("message_bytes_max", MESSAGE_BYTES_MAX))
}

/// What the driver says to a session that is in one. It has no code for it; whatever else it says is a refusal.
const IN_TRANSACTION: &str = "transaction already in progress";

/// The driver does not tell, but it refuses to begin a second one, without asking the server.
async fn must_be_in_transaction(session: &mut ClientSession) -> Result<()> {
    let majority = WriteConcern::majority();
    match session.start_transaction().write_concern(majority).await {
        Err(error) if matches!(&*error.kind, Mongodb::Transaction { message, .. } if message == IN_TRANSACTION) => {
            Ok(())
        }
        begun => {
            if begun.is_ok() {
                // Nothing was sent yet, so nothing is sent now.
                let _ = session.abort_transaction().await;
            }
            Err(Error::invalid(
                "enqueue: the session is not in a transaction, so the message would be committed alone; call \
                 start_transaction on it first, or use a UnitOfWork",
            ))
        }
    }
}

async fn append(session: &mut ClientSession, store: &Mongo, envelopes: &[Envelope]) -> Work<()> {
    let database = session.client().database(store.database());
    for run in runs(envelopes) {
        let mut documents = RawArrayBuf::new();
        run.iter().for_each(|envelope| documents.push(document(envelope)));
        let mut command = RawDocumentBuf::new();
        command.append(cstr!("insert"), store.log());
        command.append(cstr!("ordered"), true);
        command.append(cstr!("documents"), documents);
        let answer = database.run_raw_command(command).session(&mut *session).await?;
        refused(&answer)?;
        if usize::try_from(long(&answer, "n")?) != Ok(run.len()) {
            return Err(Fault::Ours(crate::error::corrupt("the server has not inserted every message")));
        }
    }
    Ok(())
}

/// As it is inserted: a timestamp of zero is filled in by the server. Written straight into its bytes, for every producer
/// pays for it; it has the fields of [`fields`](crate::records::fields).
fn document(envelope: &Envelope) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), ObjectId::new());
    document.append(cstr!("at"), Timestamp { time: 0, increment: 0 });
    document.append(cstr!("enqueued_at"), DateTime::now());
    document.append(cstr!("id"), RawBinaryRef { subtype: BinarySubtype::Uuid, bytes: envelope.id.0.as_bytes() });
    document.append(cstr!("topic"), &*envelope.topic);
    document.append(cstr!("name"), &*envelope.name);
    if let Some(key) = &envelope.key {
        document.append(cstr!("key"), key.as_str());
    }
    if let Some(at) = envelope.deliver_at {
        document.append(cstr!("deliver_at"), at.as_micros());
    }
    if let Some(at) = envelope.expires_at {
        document.append(cstr!("expires_at"), at.as_micros());
    }
    if let Some(attempts) = envelope.attempts_max {
        document.append(cstr!("attempts_max"), i64::from(attempts));
    }
    if !envelope.headers.is_empty() {
        document.append(cstr!("headers"), generic(envelope.headers.encoded()));
    }
    document.append(cstr!("payload"), generic(&envelope.payload));
    document
}

fn generic(bytes: &[u8]) -> RawBinaryRef<'_> {
    RawBinaryRef { subtype: BinarySubtype::Generic, bytes }
}

/// Cuts a batch into commands, in order.
fn runs(mut rest: &[Envelope]) -> impl Iterator<Item = &[Envelope]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |envelope: &&Envelope| {
            bytes += envelope.weight();
            bytes <= COMMAND_BYTES_MAX
        };
        let count = rest.iter().take(COMMAND_MESSAGES_MAX).take_while(fits).count().max(1).min(rest.len());
        let (run, behind) = rest.split_at(count);
        rest = behind;
        (!run.is_empty()).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use mongodb::bson::Document;
    use postrider_core::{headers::Headers, time::Timestamp as Instant};

    use super::*;
    use crate::records::fields;

    #[test]
    fn what_is_inserted_has_the_fields_of_an_envelope() {
        let plain = Envelope::new("t", "n", vec![0, 255]);
        let full = Envelope {
            headers: Headers::new([("tenant", "größe")]).unwrap(),
            deliver_at: Some(Instant::from_micros(7)),
            expires_at: Some(Instant::from_micros(i64::MAX)),
            attempts_max: Some(u32::MAX),
            ..Envelope::new("t", "n", "{}").with_key("k")
        };
        for envelope in [plain, full] {
            let inserted = Document::try_from(document(&envelope)).unwrap();
            assert_eq!(inserted.get_timestamp("at").unwrap(), Timestamp { time: 0, increment: 0 });
            let rest: Document = inserted.into_iter().skip(3).collect();
            assert_eq!(rest, fields(&envelope));
        }
    }

    #[test]
    fn a_batch_is_cut_into_few_commands_and_keeps_its_order() {
        let batch: Vec<Envelope> = (0..2_500).map(|_| Envelope::new("t", "n", "")).collect();
        let lengths: Vec<usize> = runs(&batch).map(<[_]>::len).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
        let ids: Vec<_> = runs(&batch).flatten().map(|envelope| envelope.id).collect();
        assert_eq!(ids, batch.iter().map(|envelope| envelope.id).collect::<Vec<_>>());
        let heavy: Vec<Envelope> = (0..3).map(|_| Envelope::new("t", "n", vec![0; 5 << 20])).collect();
        assert_eq!(runs(&heavy).map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
