//! Enqueue: appending envelopes to the log inside the application's own transaction.
//!
//! A whole batch is one statement and one round trip, whatever its length: every column is bound as one array. Transaction
//! id, number and time are filled in by the database.
//!
//! A service in any language enqueues with plain SQL (see [`migrations`](crate::migrations)):
//!
//! ```sql
//! SELECT postrider.enqueue(topic => 'orders', name => 'order.placed', key => 'o-4711', payload => '{}');
//! INSERT INTO postrider.log (id, topic, name, payload) VALUES (gen_random_uuid(), 'orders', 'order.placed', '{}');
//! ```
//!
//! Take the lock that orders the key before: what is enqueued without it has no order among its like.

#[cfg(feature = "sqlx")]
mod sqlx;
mod tokio_postgres;

use postrider_core::{envelope::Envelope, headers::Headers};

/// The rows come in the order of the arrays, and draw their numbers in it.
pub(crate) const INSERT: &str = "
INSERT INTO {log} (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
SELECT *
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::bigint[],
              $8::bytea[], $9::bytea[])";

/// One array a column.
fn column<'e, T>(batch: &'e [Envelope], value: impl Fn(&'e Envelope) -> T) -> Vec<T> {
    batch.iter().map(value).collect()
}

/// No headers are no bytes.
fn headers_or_null(headers: &Headers) -> Option<&[u8]> {
    (!headers.is_empty()).then(|| headers.encoded().as_ref())
}
