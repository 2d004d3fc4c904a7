//! Enqueue with diesel-async, inside of `connection.transaction(async |connection| …)`.
//!
//! As with [diesel](super::DieselTransaction): the connection becomes a transaction only where one is open.

use std::fmt;

use diesel::pg::Pg;
use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};
use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist},
};

use super::{
    Layout,
    diesel::{bound, check, translate},
};
use crate::dialect::Postgres;

/// A connection of diesel-async with an open transaction: what an outbox can join.
///
/// ```no_run
/// use diesel_async::{AsyncConnection, AsyncPgConnection};
/// use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_postgres::{Postgres, enlist::DieselAsyncTransaction};
///
/// # type Failed = Box<dyn std::error::Error + Send + Sync>;
/// async fn place(connection: &mut AsyncPgConnection) -> Result<(), Failed> {
///     connection.transaction(async |connection| {
///         // ... the application's own statements ...
///         let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
///         DieselAsyncTransaction::of(connection)?.append(&Postgres::default(), batch).await?;
///         Ok::<_, Failed>(())
///     }).await
/// }
/// ```
pub struct DieselAsyncTransaction<'c, C>(&'c mut C);

impl<'c, C: AsyncConnection<Backend = Pg>> DieselAsyncTransaction<'c, C> {
    /// Joins the transaction that is open on a connection. A nested one is a savepoint.
    ///
    /// # Errors
    /// [`Invalid`](postrider_core::ErrorKind::Invalid) if diesel-async knows of none (also if it was begun with a `BEGIN`
    /// of your own, behind its back), or if the transaction is broken.
    pub fn of(connection: &'c mut C) -> Result<Self> {
        check(C::TransactionManager::transaction_manager_status_mut(connection))?;
        Ok(Self(connection))
    }

    pub(super) fn connection(&mut self) -> &mut C {
        self.0
    }
}

impl<C> fmt::Debug for DieselAsyncTransaction<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DieselAsyncTransaction").finish_non_exhaustive()
    }
}

/// If the future is dropped half-way, the transaction holds all or none of the batch: roll it back.
impl<C: AsyncConnection<Backend = Pg>> Enlist<Postgres> for DieselAsyncTransaction<'_, C> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self.connection(), store, batch))
    }
}

pub(super) async fn append(
    connection: &mut impl AsyncConnection<Backend = Pg>,
    layout: &impl Layout,
    batch: Result<Batch>,
) -> Result<()> {
    let batch = batch?;
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    bound(layout, &batch)?.execute(connection).await.map_err(translate)?;
    Ok(())
}
