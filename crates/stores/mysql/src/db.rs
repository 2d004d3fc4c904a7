//! A connection of the pool at work: one transaction, or statements that are transactions of their own.

use mysql_async::{
    Conn, Params, Row, Transaction, Value,
    prelude::{FromValue, Queryable},
};
use postrider_core::{
    Error,
    enlist::{Batch, Enlist},
    time::Timestamp,
};

use crate::{
    dialect::Mysql,
    error::{Work, corrupt},
};

/// The server's clock in UTC, as microseconds since 1970, when the statement began.
const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// What a statement binds, in the order of its question marks.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        vec![$(mysql_async::Value::from($value)),*]
    };
}
pub(crate) use values;

/// A connection with the tables' names. A transaction that is dropped without [`Self::commit`] is rolled back.
pub(crate) struct Db {
    link: Link,
    pub(crate) dialect: Mysql,
}

enum Link {
    Alone(Conn),
    Transaction(Transaction<'static>),
}

impl Db {
    pub(crate) fn alone(connection: Conn, dialect: &Mysql) -> Self {
        Self { link: Link::Alone(connection), dialect: dialect.clone() }
    }

    pub(crate) fn transaction(transaction: Transaction<'static>, dialect: &Mysql) -> Self {
        Self { link: Link::Transaction(transaction), dialect: dialect.clone() }
    }

    pub(crate) async fn commit(self) -> Work<()> {
        match self.link {
            Link::Alone(_) => Ok(()),
            Link::Transaction(transaction) => Ok(transaction.commit().await?),
        }
    }

    /// At once, and not when somebody cleans the connection.
    pub(crate) async fn roll_back(self) {
        if let Link::Transaction(transaction) = self.link {
            // What cannot be rolled back has ended with its connection.
            let _ = transaction.rollback().await;
        }
    }

    /// Appends to the log, as an application does.
    pub(crate) async fn append(&mut self, batch: &Batch) -> Work<()> {
        match &mut self.link {
            Link::Transaction(transaction) => Ok(transaction.append(&self.dialect, Ok(batch.clone())).await?),
            Link::Alone(_) => Err(Error::invalid("messages are enqueued in a transaction").into()),
        }
    }

    /// Runs a prepared statement and returns its rows.
    pub(crate) async fn query(&mut self, sql: &str, values: Vec<Value>) -> Work<Vec<Row>> {
        let (sql, values) = (self.dialect.render(sql), Params::from(values));
        Ok(match &mut self.link {
            Link::Alone(connection) => connection.exec(sql, values).await?,
            Link::Transaction(transaction) => transaction.exec(sql, values).await?,
        })
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
        Ok(match &mut self.link {
            Link::Alone(connection) => {
                connection.exec_drop(sql, values).await?;
                connection.affected_rows()
            }
            Link::Transaction(transaction) => {
                transaction.exec_drop(sql, values).await?;
                transaction.affected_rows()
            }
        })
    }

    /// A statement whose text is different each time, such as one with a list of numbers in it: not prepared.
    pub(crate) async fn query_text(&mut self, sql: &str) -> Work<Vec<Row>> {
        let sql = self.dialect.render(sql);
        Ok(match &mut self.link {
            Link::Alone(connection) => connection.query(sql).await?,
            Link::Transaction(transaction) => transaction.query(sql).await?,
        })
    }

    /// As [`Self::query_text`], for a statement that writes: how many rows it met.
    pub(crate) async fn execute_text(&mut self, sql: &str) -> Work<u64> {
        let sql = self.dialect.render(sql);
        Ok(match &mut self.link {
            Link::Alone(connection) => {
                connection.query_drop(sql).await?;
                connection.affected_rows()
            }
            Link::Transaction(transaction) => {
                transaction.query_drop(sql).await?;
                transaction.affected_rows()
            }
        })
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
