//! The words and contracts of Postrider. No I/O happens here.
//!
//! One message, followed from the transaction that made it to the one that handles it:
//!
//! 1. The application has a typed [`Message`](message::Message) and an open transaction. The outbox encodes the message
//!    into an [`Envelope`](envelope::Envelope), checks the [`Limits`](limits::Limits) and appends it through
//!    [`Enlist`](enlist::Enlist), which is implemented for transaction types only.
//! 2. Once committed, the envelope is a [`Record`](log::Record) of the append-only log. A relay that holds a
//!    [`Lease`](lease::Lease) on a lane of a route [reads](log::Log::read) pages of records in commit-safe order.
//! 3. The relay hands records to a [`Publisher`](transport::Publisher), in order per key, and learns an
//!    [`Outcome`](transport::Outcome) for each.
//! 4. It [settles](log::Log::settle): the cursor moves over what is done, and what could not simply go on is
//!    [`Parked`](parked::Parked) with its cause, in one transaction that is fenced by the lease's epoch.
//! 5. On the other side of the broker a [`Subscriber`](transport::Subscriber) receives the envelope as a
//!    [`Delivery`](transport::Delivery), to acknowledge or to reject.
//!
//! Contracts are cut by who calls them: [`enlist`] by the application, [`log`] by the relay, [`transport`] by relay and
//! consumer, [`admin`] by the operator. Every "must" in their documentation has a test in `postrider-testkit`.

pub mod message;

pub mod envelope;
pub mod headers;
pub mod key;
pub mod limits;
pub mod topic;
pub mod trace;

pub mod enlist;

pub mod log;

pub mod asked;
pub mod lease;
pub mod left;
pub mod standstill;

pub mod due;
pub mod parked;

pub mod missing;
pub mod transport;

pub mod cloudevents;
pub mod percent;

pub mod admin;
pub mod browse;
pub mod capture;
pub mod doctor;
pub mod migration;

pub mod capability;
pub mod error;
pub mod retry;
pub mod text;
pub mod time;

use std::pin::Pin;

pub use error::{Error, ErrorKind, Result};

/// A boxed future, as the object-safe contracts return it. Every such call works on a batch, so that the box costs
/// nothing that matters.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
