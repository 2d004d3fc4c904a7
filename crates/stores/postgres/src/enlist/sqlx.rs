//! Enqueue with sqlx: `Transaction<'_, sqlx::Postgres>`.

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    key::OrderingKey,
    time::Timestamp,
};
use sqlx::{
    AssertSqlSafe, Encode, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo},
};

use super::{column, headers_or_null};
use crate::{dialect::Postgres, error::from_code, values};

/// Asynchronous, as sqlx is. If the future is dropped half-way, the transaction holds all or none of the batch: roll it
/// back.
impl Enlist<Postgres> for sqlx::Transaction<'_, sqlx::Postgres> {
    type Appended<'a>
        = BoxFuture<'a, Result<()>>
    where
        Self: 'a;

    fn append<'a>(&'a mut self, store: &'a Postgres, batch: Result<Batch>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let batch = batch?;
            let batch = batch.envelopes();
            if batch.is_empty() {
                return Ok(());
            }
            // Safe: the text is ours, and the names in it were checked to be identifiers.
            sqlx::query(AssertSqlSafe(store.insert().to_owned()))
                .bind(column(batch, |envelope| envelope.id.0))
                .bind(column(batch, |envelope| &*envelope.topic))
                .bind(column(batch, |envelope| &*envelope.name))
                .bind(column(batch, |envelope| envelope.key.as_ref().map(OrderingKey::as_str)))
                .bind(column(batch, |envelope| envelope.deliver_at.map(Instant)))
                .bind(column(batch, |envelope| envelope.expires_at.map(Instant)))
                .bind(column(batch, |envelope| envelope.attempts_max.map(i64::from)))
                .bind(column(batch, |envelope| headers_or_null(&envelope.headers)))
                .bind(column(batch, |envelope| envelope.payload.as_ref()))
                .execute(&mut **self)
                .await
                .map_err(translate)?;
            Ok(())
        })
    }
}

/// An instant as sqlx binds it: the same bytes as for tokio-postgres.
struct Instant(Timestamp);

impl Type<sqlx::Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for Instant {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("_timestamptz")
    }
}

impl Encode<'_, sqlx::Postgres> for Instant {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&values::micros(self.0).to_be_bytes());
        Ok(IsNull::No)
    }
}

fn translate(error: sqlx::Error) -> Error {
    let code = match &error {
        sqlx::Error::Database(database) => database.code().map(std::borrow::Cow::into_owned),
        _ => None,
    };
    match code {
        Some(code) => from_code(&code, "enqueue").caused_by(error),
        None => Error::new(ErrorKind::Unavailable, "enqueue").caused_by(error),
    }
}
