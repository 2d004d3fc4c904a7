//! Enqueue: appending envelopes to the log inside the application's own transaction.
//!
//! Many rows go in few statements. The statements have one of three sizes, so that a client's cache of prepared statements
//! holds them all: 100 rows, 10, and 1; heavy rows go in the smaller ones, for the server limits the size of a statement.
//!
//! A service in any language enqueues with plain SQL; the rest of the columns have defaults (see
//! [`migrations`](crate::migrations)):
//!
//! ```sql
//! INSERT INTO postrider_log (topic, name, `key`, headers, payload)
//! VALUES ('orders', 'order.placed', 'o-4711', '{"tenant": "acme"}', '{}');
//! ```
//!
//! Headers are one JSON object of texts, in UTF-8, or NULL.
//!
//! Take the lock that orders the key before: what is enqueued without it has no order among its like.

pub(crate) mod mysql_async;
#[cfg(feature = "sqlx")]
mod sqlx;

use std::sync::Arc;

use postrider_core::{Error, envelope::Envelope, headers::Headers};

/// Rows of the statements, largest first.
const SIZES: [usize; 3] = [100, 10, 1];

/// Bytes of one statement, unless a single message is larger: well below what a server takes by default (16 MiB).
const STATEMENT_BYTES_MAX: usize = 4 << 20;

/// Columns that an enqueue binds, in this order.
const COLUMNS: &str = "id, topic, name, `key`, deliver_at, expires_at, attempts_max, headers, payload";

/// Outside of a transaction the second of the two is an error, and the first is nothing.
const IS_OPEN: [&str; 2] = ["SAVEPOINT postrider_is_open", "RELEASE SAVEPOINT postrider_is_open"];

/// The insert statements of one prefix, rendered once.
pub(crate) struct Inserts([Arc<str>; 3]);

impl Inserts {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(SIZES.map(|rows| {
            let rows = vec!["(?, ?, ?, ?, ?, ?, ?, ?, ?)"; rows].join(", ");
            format!("INSERT INTO {prefix}log ({COLUMNS}) VALUES {rows}").into()
        }))
    }
}

/// Cuts a batch into runs of the sizes that have a statement, in order.
fn runs<'a>(inserts: &'a Inserts, mut rest: &'a [Envelope]) -> impl Iterator<Item = (&'a Arc<str>, &'a [Envelope])> {
    std::iter::from_fn(move || {
        let fits = |size: usize| {
            size <= rest.len()
                && (size == 1 || rest[..size].iter().map(Envelope::weight).sum::<usize>() <= STATEMENT_BYTES_MAX)
        };
        let (size, sql) = SIZES.into_iter().zip(&inserts.0).find(|(size, _)| fits(*size))?;
        let (run, behind) = rest.split_at(size);
        rest = behind;
        Some((sql, run))
    })
}

fn headers_or_null(headers: &Headers) -> Option<&[u8]> {
    (!headers.is_empty()).then(|| headers.encoded().as_ref())
}

/// The server rolls a transaction back by itself when two wait for each other, and statements like DDL commit it. An insert
/// after that would commit alone: exactly what must never happen.
fn already_ended() -> Error {
    Error::invalid("enqueue: the server has already ended this transaction, by a deadlock or a statement that commits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_into_few_statements_and_keeps_its_order() {
        let inserts = Inserts::new("p_");
        let batch: Vec<Envelope> = (0..1_123).map(|_| Envelope::new("t", "n", "")).collect();
        let cut: Vec<_> = runs(&inserts, &batch).collect();
        assert_eq!(cut.len(), 11 + 2 + 3);
        let ids = |envelopes: &[Envelope]| envelopes.iter().map(|envelope| envelope.id).collect::<Vec<_>>();
        assert_eq!(cut.iter().flat_map(|(_, run)| ids(run)).collect::<Vec<_>>(), ids(&batch));
        assert!(cut.iter().all(|(sql, run)| sql.matches('?').count() == run.len() * 9));
    }

    #[test]
    fn heavy_messages_go_alone() {
        let inserts = Inserts::new("p_");
        let batch: Vec<Envelope> = (0..12).map(|_| Envelope::new("t", "n", vec![0; 1 << 20])).collect();
        assert_eq!(runs(&inserts, &batch).count(), 12);
    }
}
