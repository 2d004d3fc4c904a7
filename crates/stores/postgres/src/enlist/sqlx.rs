//! Enqueue with sqlx: `Transaction<'_, sqlx::Postgres>`.

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    enlist::{Batch, Enlist},
    envelope::Envelope,
    key::OrderingKey,
    time::Timestamp,
};
use sqlx::{
    AssertSqlSafe, Encode, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo},
};

use super::{Array, Layout, Shape, headers_or_null};
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
            match (Shape::of(batch.envelopes()), batch.envelopes()) {
                (Some(shape), [envelope]) => append_one(self, store, shape, envelope).await,
                _ => append(self, store, Ok(batch)).await,
            }
        })
    }
}

pub(super) async fn append(
    transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    layout: &impl Layout,
    batch: Result<Batch>,
) -> Result<()> {
    let batch = batch?;
    if batch.envelopes().is_empty() {
        return Ok(());
    }
    // Safe: the text is ours, and the names in it are quoted.
    let mut query = sqlx::query(AssertSqlSafe(layout.insert().to_owned()));
    for array in layout.arrays(batch.envelopes())? {
        query = match array {
            Array::Ids(ids) => query.bind(ids),
            Array::Texts(texts) => query.bind(texts),
            Array::OwnedTexts(texts) => query.bind(texts),
            Array::Instants(instants) => query.bind(instants.into_iter().map(|at| at.map(Instant)).collect::<Vec<_>>()),
            Array::Numbers(numbers) => query.bind(numbers),
            Array::Bytes(bytes) => query.bind(bytes),
        };
    }
    query.execute(&mut **transaction).await.map_err(translate)?;
    Ok(())
}

/// As above for a single message, by the plain insert.
async fn append_one(
    transaction: &mut sqlx::Transaction<'_, sqlx::Postgres>,
    store: &Postgres,
    shape: Shape,
    envelope: &Envelope,
) -> Result<()> {
    let mut query = sqlx::query(AssertSqlSafe(store.insert_of(shape).to_owned()))
        .bind(envelope.id.0)
        .bind(&*envelope.topic)
        .bind(&*envelope.name)
        .bind(envelope.key.as_ref().map(OrderingKey::as_str));
    if shape == Shape::One {
        query = query
            .bind(envelope.deliver_at.map(Instant))
            .bind(envelope.expires_at.map(Instant))
            .bind(envelope.attempts_max.map(i64::from));
    }
    query
        .bind(headers_or_null(&envelope.headers))
        .bind(envelope.payload.as_ref())
        .execute(&mut **transaction)
        .await
        .map_err(translate)?;
    Ok(())
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
