//! A connection of the pool at work: one transaction, or statements that are transactions of their own.
//!
//! No statement is waited for for ever: a server whose machine has vanished never answers, and nobody else says so.

use std::{io, time::Duration};

use mysql_async::{
    Conn, Params, Row, Value,
    prelude::{FromValue, Queryable},
};
use postrider_core::{Error, ErrorKind, enlist::Batch, lease::Lease, time::Timestamp};

use crate::{
    config::{IMPATIENT, PATIENT},
    dialect::Mysql,
    enlist::mysql_async::insert,
    error::{Work, corrupt},
    identity::{self, Identity},
    pool::Lent,
};

/// The server's clock in UTC, as microseconds since 1970, when the statement began.
const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The same, with the last place, who answers, and whether commits go to a binary log on the disk first.
const STANDING: &str = "
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), value, {name}, @@log_bin AND @@sync_binlog = 1
  FROM {p}counter
 WHERE name = 'place'";

/// How long an answer may take: longer than a statement waits for any lock (see [`crate::config`]), and shorter than others
/// wait for the connection.
const ANSWER_PATIENCE: Duration = Duration::from_secs(90);

/// Begins a look at one consistent state.
pub(crate) const LOOK: [&str; 2] =
    ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT"];

/// What a statement binds, in the order of its question marks.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$(mysql_async::Value::from($value)),*]
    };
}
pub(crate) use values;

/// What whoever relies on a place asks first.
pub(crate) struct Standing {
    pub(crate) now: Timestamp,
    /// The last place that was ever given.
    pub(crate) last: i64,
    /// Whether a commit is on the disk before anybody sees it; see [`crate::durable`].
    pub(crate) is_durable: bool,
}

/// A connection with the tables' names. A transaction that is dropped without [`Self::commit`] is rolled back.
pub(crate) struct Db {
    /// Gone when it is dropped.
    connection: Option<Lent>,
    state: State,
    /// Whether its session waits for locks as an operator does.
    impatient: bool,
    pub(crate) dialect: Mysql,
}

/// What would happen to the next statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is a transaction of its own.
    Alone,
    /// It is part of the transaction.
    Transaction,
    /// Nobody knows: one is under way, or broke off.
    Doubtful,
}

impl Db {
    pub(crate) fn alone(connection: Lent, dialect: &Mysql) -> Self {
        Self { connection: Some(connection), state: State::Alone, impatient: false, dialect: dialect.clone() }
    }

    /// Begins a transaction by these statements.
    pub(crate) async fn begin(connection: Lent, dialect: &Mysql, statements: &[&str]) -> Work<Self> {
        let mut db = Self::alone(connection, dialect);
        for sql in statements {
            db.state = State::Doubtful;
            answered(db.connection().query_drop(*sql)).await?;
        }
        db.state = State::Transaction;
        Ok(db)
    }

    /// Begins a transaction that waits for locks only as long as an operator does.
    pub(crate) async fn begin_impatiently(connection: Lent, dialect: &Mysql) -> Work<Self> {
        let mut db = Self::begin(connection, dialect, &[IMPATIENT, "START TRANSACTION"]).await?;
        db.impatient = true;
        Ok(db)
    }

    pub(crate) async fn commit(mut self) -> Work<()> {
        if self.state != State::Transaction {
            // A statement of it broke off, and the server rolls back what it had.
            return Err(Error::new(ErrorKind::Unavailable, "a transaction broke off before its commit").into());
        }
        self.end("COMMIT").await
    }

    /// At once, and not when the server finds out that the connection is closed.
    pub(crate) async fn roll_back(mut self) {
        // What cannot be rolled back ends with its connection.
        let _ = self.end("ROLLBACK").await;
    }

    async fn end(&mut self, sql: &str) -> Work<()> {
        if self.state == State::Transaction {
            self.state = State::Doubtful;
            answered(self.connection().query_drop(sql)).await?;
            if std::mem::take(&mut self.impatient) {
                // What is done is done; a session that stays impatient is not used again.
                if answered(self.connection().query_drop(PATIENT)).await.is_err() {
                    return Ok(());
                }
            }
            self.state = State::Alone;
        }
        Ok(())
    }

    fn connection(&mut self) -> &mut Conn {
        self.lent_mut()
    }

    fn lent_mut(&mut self) -> &mut Lent {
        self.connection.as_mut().expect("it is there until this is dropped")
    }

    fn lent(&self) -> &Lent {
        self.connection.as_ref().expect("it is there until this is dropped")
    }

    /// Where it leads, as far as is known.
    pub(crate) fn server(&self) -> &Identity {
        &self.lent().server
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.lent().is_mariadb
    }

    /// Notes that the lease was taken here.
    pub(crate) fn taken(&self, lease: &Lease) {
        self.lent().leases.note(lease, &self.lent().server);
    }

    /// The lease is over.
    pub(crate) fn given_back(&self, lease: &Lease) {
        self.lent().leases.forget(lease);
    }

    /// Fails if this is not the server where the lease was taken; see [`identity`]. Nobody uses the connection again then:
    /// perhaps it is the one that leads to where nobody is any more.
    pub(crate) fn is_of(&mut self, lease: &Lease) -> Work<()> {
        let checked = self.lent().leases.check(lease, &self.lent().server);
        if checked.is_err() {
            self.state = State::Doubtful;
        }
        Ok(checked?)
    }

    /// Before a statement: if it breaks off, the connection is not used again.
    fn send(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Doubtful)
    }

    /// After it: what the server refuses leaves everything as it was.
    fn answer<T>(&mut self, before: State, answer: mysql_async::Result<T>) -> Work<T> {
        if matches!(answer, Ok(_) | Err(mysql_async::Error::Server(_))) {
            self.state = before;
        }
        Ok(answer?)
    }

    /// Appends to the log, as an application does.
    pub(crate) async fn append(&mut self, batch: &Batch) -> Work<()> {
        if self.state != State::Transaction {
            return Err(Error::invalid("messages are enqueued in a transaction").into());
        }
        let (before, dialect) = (self.send(), self.dialect.clone());
        let answer = answered(insert(self.connection(), &dialect, batch.envelopes())).await;
        self.answer(before, answer)
    }

    /// Runs a prepared statement and returns its rows.
    pub(crate) async fn query(&mut self, sql: &str, values: Vec<Value>) -> Work<Vec<Row>> {
        let (sql, values) = (self.dialect.render(sql), Params::from(values));
        let before = self.send();
        let answer = answered(self.connection().exec(sql, values)).await;
        self.answer(before, answer)
    }

    pub(crate) async fn query_opt(&mut self, sql: &str, values: Vec<Value>) -> Work<Option<Row>> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }

    pub(crate) async fn query_one(&mut self, sql: &str, values: Vec<Value>) -> Work<Row> {
        Ok(self.query_opt(sql, values).await?.ok_or_else(|| corrupt("a row that must be there is not"))?)
    }

    /// Runs a prepared statement and answers how many rows it met: all that match, changed or not.
    pub(crate) async fn execute(&mut self, sql: &str, values: Vec<Value>) -> Work<u64> {
        let (sql, values) = (self.dialect.render(sql), Params::from(values));
        let before = self.send();
        let answer = answered(self.connection().exec_drop(sql, values)).await;
        self.answer(before, answer)?;
        Ok(self.connection().affected_rows())
    }

    /// A statement whose text is different each time, such as one with a list of numbers in it: not prepared.
    pub(crate) async fn query_text(&mut self, sql: &str) -> Work<Vec<Row>> {
        let sql = self.dialect.render(sql);
        let before = self.send();
        let answer = answered(self.connection().query(sql)).await;
        self.answer(before, answer)
    }

    /// As [`Self::query_text`], for a statement that writes: how many rows it met.
    pub(crate) async fn execute_text(&mut self, sql: &str) -> Work<u64> {
        let sql = self.dialect.render(sql);
        let before = self.send();
        let answer = answered(self.connection().query_drop(sql)).await;
        self.answer(before, answer)?;
        Ok(self.connection().affected_rows())
    }

    /// Deletes rows by their primary key, each by a look-up of its own, and answers how many there were. The server may take an
    /// `IN (…)` or a range for a reason to scan the table, also when told which index to use, and a scan waits for the rows of
    /// open transactions. A join that begins with the list cannot.
    pub(crate) async fn delete(&mut self, table: &str, key: &str, numbers: impl IntoIterator<Item = i64>) -> Work<u64> {
        let sql = format!(
            "DELETE gone
               FROM JSON_TABLE(?, '$[*]' COLUMNS (number BIGINT PATH '$')) AS list
              STRAIGHT_JOIN {{p}}{table} AS gone FORCE INDEX (PRIMARY)
              WHERE gone.{key} = list.number"
        );
        let numbers = format!("[{}]", list(numbers));
        self.execute(&sql, values![numbers]).await
    }

    /// The instant by the database's clock. The one door through which time enters this crate. Ask it behind the locks.
    pub(crate) async fn now(&mut self) -> Work<Timestamp> {
        Ok(Timestamp::from_micros(get(&self.query_one(NOW, Vec::new()).await?, 0)?))
    }

    /// How things stand; and that whoever answers is whom the connection was made to.
    pub(crate) async fn standing(&mut self) -> Work<Standing> {
        let sql = STANDING.replace("{name}", identity::NAME);
        let row = self.query_one(&sql, Vec::new()).await?;
        if get::<String>(&row, 2)? != self.lent().server.name {
            // Nothing more is done through it.
            self.state = State::Doubtful;
            return Err(
                Error::new(ErrorKind::Unavailable, "this connection leads to another server than before").into()
            );
        }
        Ok(Standing { now: Timestamp::from_micros(get(&row, 0)?), last: get(&row, 1)?, is_durable: get(&row, 3)? })
    }

    /// Draws numbers that nobody else gets, and returns the last of them. Whoever draws next waits for this transaction.
    pub(crate) async fn draw(&mut self, name: &'static str, count: i64) -> Work<i64> {
        self.execute("UPDATE {p}counter SET value = value + ? WHERE name = ?", values![count, name]).await?;
        self.counter(name).await
    }

    pub(crate) async fn counter(&mut self, name: &'static str) -> Work<i64> {
        get(&self.query_one("SELECT value FROM {p}counter WHERE name = ?", values![name]).await?, 0)
    }

    /// Waits until nobody else has this row of the counters, and returns its value.
    pub(crate) async fn lock(&mut self, name: &'static str) -> Work<i64> {
        get(&self.query_one("SELECT value FROM {p}counter WHERE name = ? FOR UPDATE", values![name]).await?, 0)
    }

    /// Waits until whoever writes this row of the counters has committed. What was committed before is then seen by the next
    /// statement, whole.
    pub(crate) async fn wait_for(&mut self, name: &'static str) -> Work<()> {
        self.query_one("SELECT value FROM {p}counter WHERE name = ? LOCK IN SHARE MODE", values![name]).await?;
        Ok(())
    }

    /// A fresh epoch: greater than any before, also when a fail-over has lost the last of them.
    pub(crate) async fn draw_epoch(&mut self) -> Work<i64> {
        let sql = "
UPDATE {p}counter
   SET value = GREATEST(value + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
 WHERE name = 'epoch'";
        self.execute(sql, Vec::new()).await?;
        self.counter("epoch").await
    }

    /// Everything that changes a route's parked rows or lanes does so under this lock, so that the head of a line, which is
    /// marked, is found by one transaction at a time.
    pub(crate) async fn lock_route(&mut self, route: &str) -> Work<()> {
        self.query("SELECT 1 FROM {p}route WHERE name = ? FOR UPDATE", values![route]).await?;
        Ok(())
    }
}

/// An answer, or the error that none came in time.
async fn answered<T>(answer: impl Future<Output = mysql_async::Result<T>>) -> mysql_async::Result<T> {
    match tokio::time::timeout(ANSWER_PATIENCE, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer").into()),
    }
}

/// What is not clean is closed, and the server rolls back what it began.
impl Drop for Db {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.state != State::Alone) {
            drop(Lent::take(connection));
        }
    }
}

/// A column of a row.
pub(crate) fn get<T: FromValue>(row: &Row, column: usize) -> Work<T> {
    match row.get_opt(column) {
        Some(Ok(value)) => Ok(value),
        _ => Err(corrupt("a column does not hold what was written").into()),
    }
}

/// The bytes of a column, where nothing may be stored.
pub(crate) fn bytes(row: &Row, column: usize) -> Option<&[u8]> {
    match row.as_ref(column) {
        Some(Value::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

/// Numbers as the list of an `IN (…)`.
pub(crate) fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    let texts: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    texts.join(", ")
}
