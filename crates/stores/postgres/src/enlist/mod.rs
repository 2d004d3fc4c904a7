//! Enqueue: appending envelopes to the log inside the application's own transaction.
//!
//! A whole batch is one statement and one round trip, whatever its length. A single message is a plain insert; of several,
//! every column is bound as one array. Transaction id, number and time are filled in by the database.
//!
//! | transaction | statement | round trips |
//! |---|---|---|
//! | `tokio_postgres::Transaction` | parsed each time, so that a transaction pooler may stand between | one; none of its own through [`EnlistShared`](postrider_core::enlist::EnlistShared) |
//! | the same, with a [`Prepared`] | prepared once per connection: dearer to keep, a good deal cheaper to run | as above |
//! | `deadpool_postgres::Transaction` | prepared once per connection, in the pool's own cache | as above |
//! | [`Flight`] | either | what was gathered and its `COMMIT`: one in all |
//! | `sqlx::Transaction` | prepared once per connection by sqlx | one |
//!
//! A service in any language enqueues with plain SQL (see [`migrations`](crate::migrations)):
//!
//! ```sql
//! SELECT postrider.enqueue(topic => 'orders', name => 'order.placed', key => 'o-4711', payload => '{}');
//! INSERT INTO postrider.log (id, topic, name, payload) VALUES (gen_random_uuid(), 'orders', 'order.placed', '{}');
//! ```
//!
//! Take the lock that orders the key before: what is enqueued without it has no order among its like.

mod columns;
mod debezium;
#[cfg(feature = "diesel")]
mod diesel;
#[cfg(feature = "diesel-async")]
mod diesel_async;
mod flight;
mod layout;
mod prepared;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(feature = "sqlx")]
mod sqlx;
mod tokio_postgres;

use postrider_core::{Result, envelope::Envelope, key::OrderingKey};

pub(crate) use self::columns::Shape;
use self::columns::{column, headers_or_null};

#[cfg(feature = "diesel")]
pub use self::diesel::DieselTransaction;
#[cfg(feature = "diesel-async")]
pub use self::diesel_async::DieselAsyncTransaction;
pub(crate) use self::layout::{Array, Column, Kind, Layout, insert};
pub use self::{
    flight::Flight,
    prepared::{On, Prepared},
};
use crate::dialect::Postgres;

/// One row with nothing but what every message has. Each parameter costs the server a look into its catalogue, and most
/// messages have neither a time nor limits of their own.
pub(crate) const INSERT_PLAIN: &str = "
INSERT INTO {log} (id, topic, name, key, headers, payload) VALUES ($1, $2, $3, $4, $5, $6)";

/// One row. Parsed and planned in half the time of [`INSERT`], and run in less.
pub(crate) const INSERT_ONE: &str = "
INSERT INTO {log} (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

/// The rows come in the order of the arrays, and draw their numbers in it.
pub(crate) const INSERT: &str = "
INSERT INTO {log} (id, topic, name, key, deliver_at, expires_at, attempts_max, headers, payload)
SELECT *
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::bigint[],
              $8::bytea[], $9::bytea[])";

/// Our own log, for the clients that bind any [`Layout`].
impl Layout for Postgres {
    fn insert(&self) -> &str {
        self.insert()
    }

    fn insert_marked(&self) -> &str {
        self.insert_marked()
    }

    fn arrays<'e>(&'e self, batch: &'e [Envelope]) -> Result<Vec<Array<'e>>> {
        Ok(vec![
            Array::Ids(column(batch, |envelope| envelope.id.0)),
            Array::Texts(column(batch, |envelope| Some(&*envelope.topic))),
            Array::Texts(column(batch, |envelope| Some(&*envelope.name))),
            Array::Texts(column(batch, |envelope| envelope.key.as_ref().map(OrderingKey::as_str))),
            Array::Instants(column(batch, |envelope| envelope.deliver_at)),
            Array::Instants(column(batch, |envelope| envelope.expires_at)),
            Array::Numbers(column(batch, |envelope| envelope.attempts_max.map(i64::from))),
            Array::Bytes(column(batch, |envelope| headers_or_null(&envelope.headers))),
            Array::Bytes(column(batch, |envelope| Some(envelope.payload.as_ref()))),
        ])
    }
}

/// [`INSERT`] for a client that cannot bind a null inside of an array.
pub(crate) fn insert_marked(log: &str) -> String {
    let columns = [
        ("id", Kind::Id),
        ("topic", Kind::Text),
        ("name", Kind::Text),
        ("key", Kind::Text),
        ("deliver_at", Kind::Instant),
        ("expires_at", Kind::Instant),
        ("attempts_max", Kind::Number),
        ("headers", Kind::Bytes),
        ("payload", Kind::Bytes),
    ];
    insert(log, &columns.map(|(name, kind)| Column { name: name.to_owned(), kind, conversion: "$" }), true)
}
