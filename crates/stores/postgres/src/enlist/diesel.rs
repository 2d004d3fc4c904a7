//! Enqueue with diesel, inside of `connection.transaction(|connection| …)`.
//!
//! Diesel hands its closure the connection and has no type for a transaction. [`DieselTransaction`] is that type: it can
//! only be made of a connection whose transaction manager says that a transaction is open, and while it lives nobody can
//! end the transaction. It takes any connection of diesel to PostgreSQL, also a pooled one, and needs no libpq itself.

use std::fmt;

use diesel::{
    RunQueryDsl,
    connection::{Connection, TransactionManager, TransactionManagerStatus},
    data_types::PgTimestamp,
    pg::Pg,
    query_builder::BoxedSqlQuery,
    query_builder::SqlQuery,
    result::{DatabaseErrorKind, Error as DieselError},
    sql_types::{self, BigInt, Bytea, Nullable, Text, Timestamptz, Uuid},
};
use postrider_core::{
    Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
};

use super::{Array, Layout};
use crate::{dialect::Postgres, values};

/// A connection of diesel with an open transaction: what an outbox can join.
///
/// ```no_run
/// use diesel::{Connection, pg::Pg};
/// use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_postgres::{Postgres, enlist::DieselTransaction};
///
/// fn place<C: Connection<Backend = Pg>>(connection: &mut C) -> Result<(), Box<dyn std::error::Error>> {
///     connection.transaction(|connection| {
///         // ... the application's own statements ...
///         let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
///         DieselTransaction::of(connection)?.append(&Postgres::default(), batch)?;
///         Ok(())
///     })
/// }
/// ```
pub struct DieselTransaction<'c, C>(&'c mut C);

impl<'c, C: Connection<Backend = Pg>> DieselTransaction<'c, C> {
    /// Joins the transaction that is open on a connection. A nested one is a savepoint.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if diesel knows of none (also if it was begun with a `BEGIN` of your own, behind diesel's
    /// back), or if the transaction is broken.
    pub fn of(connection: &'c mut C) -> Result<Self> {
        check(C::TransactionManager::transaction_manager_status_mut(connection))?;
        Ok(Self(connection))
    }

    pub(super) fn connection(&mut self) -> &mut C {
        self.0
    }
}

impl<C> fmt::Debug for DieselTransaction<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DieselTransaction").finish_non_exhaustive()
    }
}

impl<C: Connection<Backend = Pg>> Enlist<Postgres> for DieselTransaction<'_, C> {
    type Appended<'a>
        = Result<()>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> Result<()> {
        append(self.connection(), store, batch)
    }
}

pub(super) fn append(
    connection: &mut impl Connection<Backend = Pg>,
    layout: &impl Layout,
    batch: Result<Batch>,
) -> Result<()> {
    let batch = batch?;
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    bound(layout, &batch)?.execute(connection).map_err(translate)?;
    Ok(())
}

/// Whether a transaction is open, by what diesel itself has counted.
pub(super) fn check(status: &TransactionManagerStatus) -> Result<()> {
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Error::invalid(
            "there is no open transaction on this diesel connection; enqueue inside of `connection.transaction(…)`",
        )),
        Err(error) => {
            Err(Error::invalid("the transaction on this diesel connection is broken; roll it back").caused_by(error))
        }
    }
}

/// The statement with its arrays.
pub(super) fn bound<'e>(layout: &'e impl Layout, batch: &'e Batch) -> Result<BoxedSqlQuery<'e, Pg, SqlQuery>> {
    let mut query = diesel::sql_query(layout.insert()).into_boxed();
    for array in layout.arrays(batch.envelopes())? {
        query = match array {
            Array::Ids(ids) => query.bind::<sql_types::Array<Uuid>, _>(ids),
            Array::Texts(texts) => query.bind::<sql_types::Array<Nullable<Text>>, _>(texts),
            Array::OwnedTexts(texts) => query.bind::<sql_types::Array<Nullable<Text>>, _>(texts),
            Array::Instants(instants) => {
                let instant = |at: Option<_>| at.map(|at| PgTimestamp(values::micros(at)));
                let instants: Vec<_> = instants.into_iter().map(instant).collect();
                query.bind::<sql_types::Array<Nullable<Timestamptz>>, _>(instants)
            }
            Array::Numbers(numbers) => query.bind::<sql_types::Array<Nullable<BigInt>>, _>(numbers),
            Array::Bytes(bytes) => query.bind::<sql_types::Array<Nullable<Bytea>>, _>(bytes),
        };
    }
    Ok(query)
}

/// Diesel keeps the SQLSTATE to itself and tells only these kinds. What it does not name is transient.
pub(super) fn translate(error: DieselError) -> Error {
    let kind = match &error {
        DieselError::DatabaseError(kind, _) => match kind {
            DatabaseErrorKind::UniqueViolation | DatabaseErrorKind::SerializationFailure => ErrorKind::Conflict,
            DatabaseErrorKind::NotNullViolation
            | DatabaseErrorKind::CheckViolation
            | DatabaseErrorKind::ForeignKeyViolation
            | DatabaseErrorKind::RestrictViolation
            | DatabaseErrorKind::ExclusionViolation => ErrorKind::Invalid,
            DatabaseErrorKind::ReadOnlyTransaction => ErrorKind::Denied,
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => ErrorKind::Unavailable,
            _ => ErrorKind::Other,
        },
        DieselError::InvalidCString(_) | DieselError::QueryBuilderError(_) | DieselError::SerializationError(_) => {
            ErrorKind::Invalid
        }
        _ => ErrorKind::Other,
    };
    Error::new(kind, "enqueue").caused_by(error)
}
