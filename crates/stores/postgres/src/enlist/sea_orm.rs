//! Enqueue with SeaORM: `DatabaseTransaction`.
//!
//! SeaORM binds arrays, but no null inside of one. So the values carry marks, and the statement takes them off again; see
//! [`Kind::unmarked`](super::layout::Kind). A connection is not a transaction:
//!
//! ```compile_fail,E0277
//! # use postrider_core::enlist::Enlist;
//! # use postrider_store_postgres::Postgres;
//! fn joins<T: Enlist<Postgres>>() {}
//! joins::<sea_orm::DatabaseTransaction>();
//! joins::<sea_orm::DatabaseConnection>(); // not a transaction that the outbox of `Postgres` can join
//! ```

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    time::Timestamp,
};
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, Statement, Value, sea_query::ArrayType,
};

use super::{Array, Layout, layout::NO_NUMBER};
use crate::{dialect::Postgres, error::from_code, values};

/// Asynchronous, as SeaORM is. If the future is dropped half-way, the transaction holds all or none of the batch: roll it
/// back. A transaction on another database than PostgreSQL is refused.
impl Enlist<Postgres> for DatabaseTransaction {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(append(self, store, batch))
    }
}

pub(super) async fn append(
    transaction: &DatabaseTransaction,
    layout: &impl Layout,
    batch: Result<Batch>,
) -> Result<()> {
    let batch = batch?;
    let backend = transaction.get_database_backend();
    if backend != DbBackend::Postgres {
        return Err(Error::invalid("this outbox is in PostgreSQL, and the transaction is not")
            .with("backend", format!("{backend:?}")));
    }
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    let arrays = layout.arrays(batch.envelopes())?.into_iter().map(marked);
    let statement = Statement::from_sql_and_values(backend, layout.insert_marked(), arrays);
    transaction.execute_raw(statement).await.map_err(translate)?;
    Ok(())
}

fn marked(array: Array<'_>) -> Value {
    fn array_of<T>(ty: ArrayType, values: Vec<T>, value: impl Fn(T) -> Value) -> Value {
        Value::Array(ty, Some(Box::new(values.into_iter().map(value).collect())))
    }
    match array {
        Array::Ids(ids) => array_of(ArrayType::Uuid, ids, |id| Value::Uuid(Some(id))),
        Array::Texts(texts) => array_of(ArrayType::String, texts, |text| {
            Value::String(Some(text.map_or_else(String::new, |text| format!("={text}"))))
        }),
        Array::OwnedTexts(texts) => array_of(ArrayType::String, texts, |text| {
            Value::String(Some(text.map_or_else(String::new, |text| format!("={text}"))))
        }),
        Array::Bytes(bytes) => array_of(ArrayType::Bytes, bytes, |bytes| {
            Value::Bytes(Some(bytes.map_or_else(Vec::new, |bytes| [b"=", bytes].concat())))
        }),
        Array::Numbers(numbers) => array_of(ArrayType::BigInt, numbers, number_or_mark),
        Array::Instants(instants) => {
            array_of(ArrayType::BigInt, instants, |at: Option<Timestamp>| number_or_mark(at.map(values::micros)))
        }
    }
}

fn number_or_mark(number: Option<i64>) -> Value {
    Value::BigInt(Some(number.unwrap_or(NO_NUMBER)))
}

fn translate(error: DbErr) -> Error {
    let sqlx = match &error {
        DbErr::Conn(RuntimeErr::SqlxError(sqlx))
        | DbErr::Exec(RuntimeErr::SqlxError(sqlx))
        | DbErr::Query(RuntimeErr::SqlxError(sqlx)) => Some(sqlx),
        _ => None,
    };
    let code = sqlx.and_then(|error| error.as_database_error()?.code()).map(std::borrow::Cow::into_owned);
    match code {
        Some(code) => from_code(&code, "enqueue").caused_by(error),
        None => Error::new(ErrorKind::Unavailable, "enqueue").caused_by(error),
    }
}
