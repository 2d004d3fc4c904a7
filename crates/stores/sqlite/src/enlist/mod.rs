//! Enqueue: appending envelopes to the log inside the application's own transaction.
//!
//! Many rows go in few statements. The statements have one of three sizes, so that a client's cache of prepared statements
//! holds them all: 100 rows, 10, and 1. A row binds ten values, so the largest statement binds a thousand, far below
//! SQLite's limit of 32 766.
//!
//! A service in any language enqueues with plain SQL; the rest of the columns have defaults (see
//! [`migrations`](crate::migrations)):
//!
//! ```sql
//! INSERT INTO postrider_log (id, topic, name, payload) VALUES (?, ?, ?, ?);       -- id: a UUID as 16 bytes
//! ```

pub(crate) mod rusqlite;
#[cfg(feature = "sqlx")]
mod sqlx;

/// Rows of the statements, largest first.
const SIZES: [usize; 3] = [100, 10, 1];

/// Columns that an enqueue binds, in this order.
const COLUMNS: &str = "id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload";

/// The insert statements of one prefix, rendered once.
pub(crate) struct Inserts([std::sync::Arc<str>; 3]);

impl Inserts {
    pub(crate) fn new(prefix: &str) -> Self {
        Self(SIZES.map(|rows| {
            let row = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
            let rows = vec![row; rows].join(", ");
            format!("INSERT INTO {prefix}log ({COLUMNS}) VALUES {rows}").into()
        }))
    }
}

/// Cuts a batch into runs of the sizes that have a statement, in order.
fn runs<'a, T>(
    inserts: &'a Inserts,
    mut rest: &'a [T],
) -> impl Iterator<Item = (&'a std::sync::Arc<str>, &'a [T])> + use<'a, T> {
    std::iter::from_fn(move || {
        let (size, sql) = SIZES.into_iter().zip(&inserts.0).find(|(size, _)| *size <= rest.len())?;
        let (run, behind) = rest.split_at(size);
        rest = behind;
        Some((sql, run))
    })
}

/// `attempts_max` and others as SQLite keeps them.
fn headers_or_null(headers: &postrider_core::headers::Headers) -> Option<&[u8]> {
    (!headers.is_empty()).then(|| headers.encoded().as_ref())
}

/// An insert outside of the transaction would commit alone.
fn already_rolled_back() -> postrider_core::Error {
    postrider_core::Error::invalid("enqueue: SQLite has already rolled this transaction back")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_into_few_statements_and_keeps_its_order() {
        let inserts = Inserts::new("p_");
        let batch: Vec<u32> = (0..10_123).collect();
        let cut: Vec<_> = runs(&inserts, &batch).collect();
        assert_eq!(cut.len(), 101 + 2 + 3);
        assert_eq!(cut.iter().flat_map(|(_, run)| run.iter().copied()).collect::<Vec<_>>(), batch);
        assert!(cut.iter().all(|(sql, run)| sql.matches('?').count() == run.len() * 10));
        assert_eq!(runs(&inserts, &Vec::<u32>::new()).count(), 0);
    }
}
