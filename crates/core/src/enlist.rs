//! The application's side of a store: joining the caller's own transaction.
//!
//! [`Enlist`] is implemented *for transaction types*, in the crate of the store that they belong to, and for nothing else.
//! A pool or a bare connection does not compile: there is no way to enqueue beside the transaction by accident.

use crate::{envelope::Envelope, error::Result};

/// Envelopes that passed the [`Limits`](crate::limits::Limits), to be appended in one statement where the client can.
#[derive(Clone, Debug)]
pub struct Batch(Vec<Envelope>);

impl Batch {
    pub(crate) fn checked(envelopes: Vec<Envelope>) -> Self {
        Self(envelopes)
    }

    /// The envelopes, in the order in which they must stand in the log.
    #[must_use]
    pub fn envelopes(&self) -> &[Envelope] {
        &self.0
    }

    /// For the audit record: `message …` if it is one alone, or how many; and the topics.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut topics: Vec<&str> = self.0.iter().map(|envelope| &*envelope.topic).collect();
        topics.sort_unstable();
        topics.dedup();
        let what = match &self.0[..] {
            [one] => format!("message {}", one.id),
            many => format!("{} messages", many.len()),
        };
        format!("{what}, topic {}", topics.join(" and "))
    }
}

/// A transaction that the outbox of `S` can join.
///
/// `S` is small: names and dialect, no pool. One outbox value serves every client library of its database.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that the outbox of `{S}` can join",
    label = "pass `&mut` of an open transaction, not a pool or a connection",
    note = "a message that is enqueued outside of the caller's transaction could be delivered although the caller rolls back",
    note = "transactions of other clients come with features of `postrider`: `sqlx-sqlite`, `sqlx-postgres`, `sqlx-mysql`, \
            `diesel`, `diesel-async` and `sea-orm`"
)]
pub trait Enlist<S> {
    /// `Result<()>` for a synchronous client, a future of it for an asynchronous one.
    type Appended<'a>
    where
        Self: 'a,
        S: 'a;

    /// Appends the batch to the log of `S` inside this transaction.
    ///
    /// `batch` is an error if a limit was broken or a message could not be encoded; an adapter hands it on before it
    /// touches the database. Afterwards all envelopes are part of the transaction, in the order given: they become
    /// visible when it commits and vanish when it (or the savepoint) is rolled back.
    ///
    /// If a returned future is dropped half-way, the transaction holds all, some or none of the batch: roll it back.
    fn append<'a>(&'a mut self, store: &'a S, batch: Result<Batch>) -> Self::Appended<'a>;
}

/// A transaction of a client library that sends statements through a shared reference, so that several can be under way at
/// the same time: the append then rides with the caller's own statements and costs no round trip.
pub trait EnlistShared<S>: Enlist<S> {
    /// As [`Enlist::append`], but the transaction stays free for other statements meanwhile. What is sent first runs first.
    ///
    /// If one of the statements that are under way fails, the transaction is lost: the database refuses everything that
    /// follows, and the caller rolls back. (A `COMMIT` would roll back as well.)
    fn append_shared<'a>(&'a self, store: &'a S, batch: Result<Batch>) -> Self::Appended<'a>;
}
