//! What the database says of itself: the cluster and table, the last number drawn, snapshots, the next transaction id.
//!
//! The statements are few and each is asked for its exact meaning. `pg_sequence_last_value` reads under the sequence's
//! lock, where `SELECT last_value` may show numbers that are not drawn yet. `age` of a fixed id, asked by a transaction
//! that has none itself, tells the id that is handed out next without spending one.

use crate::{
    cursor::{Identity, Position},
    db::Db,
    error::Work,
    snapshot::Snapshot,
    values::FullXid,
};

/// The cluster's own number, and the log's.
pub(crate) const IDENTITY: &str = "
SELECT (SELECT system_identifier FROM pg_control_system()), '{log}'::regclass::oid, '{seq}'::regclass::oid";

/// Null: nothing was drawn so far.
pub(crate) const LAST: &str = "SELECT coalesce(pg_sequence_last_value('{seq}'::regclass), 0)";

pub(crate) const SNAPSHOT: &str = "SELECT pg_current_snapshot(), pg_is_in_recovery()";

/// A snapshot, and behind it the last number drawn: a statement takes its snapshot before it calls anything.
pub(crate) const LOOK: &str = "
SELECT pg_current_snapshot(), pg_is_in_recovery(), coalesce(pg_sequence_last_value('{seq}'::regclass), 0)";

/// 32 bits of it, as a signed number.
pub(crate) const NEXT: &str = "SELECT age('3'::xid)::bigint + 3";

pub(crate) async fn identity(db: &Db<'_>) -> Work<Identity> {
    let row = db.query_one(IDENTITY, &[]).await?;
    Ok(Identity { system: row.try_get::<_, i64>(0)?.cast_unsigned(), table: row.try_get(1)? })
}

pub(crate) async fn last(db: &Db<'_>) -> Work<i64> {
    Ok(db.query_one(LAST, &[]).await?.try_get(0)?)
}

pub(crate) async fn snapshot(db: &Db<'_>) -> Work<Snapshot> {
    Ok(db.query_one(SNAPSHOT, &[]).await?.try_get(0)?)
}

/// Where a reader begins that begins now: three statements in this order, each in a transaction of its own.
pub(crate) async fn begin_now(client: &mut deadpool_postgres::Object, dialect: &crate::Postgres) -> Work<Position> {
    let db = Db::begin(client, dialect).await?;
    let identity = identity(&db).await?;
    let last = last(&db).await?;
    db.commit().await?;
    let db = Db::begin(client, dialect).await?;
    let spent: FullXid = db.query_one("SELECT pg_current_xact_id()", &[]).await?.try_get(0)?;
    db.commit().await?;
    let db = Db::begin(client, dialect).await?;
    let base = snapshot(&db).await?;
    db.commit().await?;
    Ok(Position::now(identity, last, spent.0, base))
}
