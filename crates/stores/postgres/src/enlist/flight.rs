//! A transaction whose statements leave together with its `COMMIT`: one round trip for all of them.

use std::{fmt, mem, pin::Pin, task::Poll};

use futures_util::{
    FutureExt,
    future::{MaybeDone, join_all, maybe_done},
};
use postrider_core::{
    BoxFuture, Result,
    enlist::{Batch, Enlist},
};
use tokio_postgres::{Client, Statement, Transaction, types::ToSql};

use super::{
    Prepared,
    tokio_postgres::{Texts, append},
};
use crate::{dialect::Postgres, error::from_postgres};

/// A transaction that gathers its statements and sends them together with its `COMMIT`. Where a usual transaction needs a
/// round trip for each, this one needs one for `BEGIN` and one for everything else.
///
/// For transactions that only write: no statement sees the answer of another. Statements run in the order in which they
/// were gathered. If one fails, the database does nothing of what follows, the `COMMIT` rolls back, and the first error is
/// the answer. If one cannot even be sent (a value of the wrong type, say), a `ROLLBACK` is sent instead of the `COMMIT`.
/// `BEGIN` is waited for: were it sent along and cancelled on its way, what follows would be committed piece by piece.
///
/// Dropped before [`Self::commit`], it is rolled back. If the future of `commit` is dropped, the transaction is committed or
/// not, as a whole.
///
/// ```no_run
/// use postrider_core::{enlist::Enlist, envelope::Envelope, limits::Limits};
/// use postrider_store_postgres::{Postgres, enlist::Flight};
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let insert = client.prepare("INSERT INTO orders (number) VALUES ($1)").await?;
///
/// let mut flight = Flight::begin(client).await?;
/// flight.execute(&insert, &[&4711_i64]);
/// let batch = Limits::default().check(vec![Envelope::new("orders", "order.placed", "{}")]);
/// flight.append(&Postgres::default(), batch)?;
/// flight.commit().await?;
/// # Ok(())
/// # }
/// ```
pub struct Flight<'a> {
    transaction: Transaction<'a>,
    prepared: Option<&'a Prepared>,
    gathered: Vec<Gathered<'a>>,
}

enum Gathered<'a> {
    Execute(&'a Statement, Vec<&'a (dyn ToSql + Sync)>),
    Append(Postgres, Batch),
}

impl<'a> Flight<'a> {
    /// Begins a transaction: one round trip.
    ///
    /// # Errors
    /// Whatever the database says.
    pub async fn begin(client: &'a mut Client) -> Result<Self> {
        let transaction = client.transaction().await.map_err(|e| from_postgres(e, "begin"))?;
        Ok(Self { transaction, prepared: None, gathered: Vec::new() })
    }

    /// With statements of the enqueue that are prepared on this connection.
    #[must_use]
    pub fn with(mut self, prepared: &'a Prepared) -> Self {
        self.prepared = Some(prepared);
        self
    }

    /// Adds a statement that was prepared on this connection. Nothing is sent so far.
    pub fn execute(&mut self, statement: &'a Statement, parameters: &[&'a (dyn ToSql + Sync)]) -> &mut Self {
        self.gathered.push(Gathered::Execute(statement, parameters.to_vec()));
        self
    }

    /// Sends everything and the `COMMIT`, each in its order, and waits for the answers. Returns how many rows each statement of
    /// [`Self::execute`] wrote.
    ///
    /// # Errors
    /// The first one; then nothing is committed. Unless it is an error of the connection, with which a commit may be lost
    /// on its way back, as with every client.
    pub async fn commit(self) -> Result<Vec<u64>> {
        let Self { transaction, prepared, gathered } = self;
        let mut answers: Vec<MaybeDone<BoxFuture<'_, Result<Option<u64>>>>> =
            gathered.iter().map(|gathered| maybe_done(send(&transaction, prepared, gathered).boxed())).collect();
        // Sends them in their order. One that is done without any answer could not be sent.
        poll_once(&mut answers).await;
        if answers.iter().any(|answer| matches!(answer, MaybeDone::Done(Err(_)))) {
            let failed = answers.iter_mut().find_map(|answer| Pin::new(answer).take_output()?.err());
            drop(answers);
            transaction.rollback().await.map_err(|e| from_postgres(e, "roll back"))?;
            return Err(failed.expect("one of them has failed"));
        }
        let commit = async {
            let committed = transaction.client().batch_execute("COMMIT").await;
            committed.map(|()| None).map_err(|e| from_postgres(e, "commit"))
        };
        answers.push(maybe_done(commit.boxed()));
        join_all(&mut answers).await;
        let written: Vec<Result<Option<u64>>> =
            answers.iter_mut().filter_map(|answer| Pin::new(answer).take_output()).collect();
        drop(answers);
        // It has ended one way or the other; dropped, it would send a ROLLBACK that the server complains of. It owns nothing
        // else.
        mem::forget(transaction);
        written.into_iter().filter_map(Result::transpose).collect()
    }
}

/// Polls each once, in their order.
async fn poll_once(futures: &mut [impl Future<Output = ()> + Unpin]) {
    std::future::poll_fn(|context| {
        for future in &mut *futures {
            let _ = Pin::new(future).poll(context);
        }
        Poll::Ready(())
    })
    .await;
}

/// Sends one statement when first polled.
async fn send(
    transaction: &Transaction<'_>,
    prepared: Option<&Prepared>,
    gathered: &Gathered<'_>,
) -> Result<Option<u64>> {
    match gathered {
        Gathered::Execute(statement, parameters) => {
            let written = transaction.execute(*statement, parameters).await;
            written.map(Some).map_err(|e| from_postgres(e, "execute"))
        }
        Gathered::Append(store, batch) => {
            match prepared {
                Some(prepared) => append(transaction, store, prepared, batch).await?,
                None => append(transaction, store, Texts, batch).await?,
            }
            Ok(None)
        }
    }
}

/// Gathers; nothing is sent before the commit. An envelope that breaks a limit is refused at once.
impl Enlist<Postgres> for Flight<'_> {
    type Appended<'a>
        = Result<()>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> Result<()> {
        self.gathered.push(Gathered::Append(store.clone(), batch?));
        Ok(())
    }
}

impl fmt::Debug for Flight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("statements", &self.gathered.len()).finish_non_exhaustive()
    }
}
