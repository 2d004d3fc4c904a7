//! Where the transaction ids in the log count.
//!
//! A row of the log carries the id of its transaction. After a dump and restore that id is another cluster's, and no
//! snapshot of this one says anything about it. The tables remember in which cluster, and as which table, they were made; if
//! that is not where they are, there may be such rows. Readers that begin with everything then begin with a rebase round,
//! which asks no snapshot about them. (Cursors know by themselves where they count; see [`crate::cursor`].)

use std::collections::HashMap;

use tokio_postgres::{Client, Row};

use crate::{
    cursor::{Identity, Position},
    db::Db,
    dialect::Postgres,
    error::Work,
    observe,
};

const KNOWN: &str = "SELECT name, value FROM {setting} WHERE name LIKE 'origin_%'";

/// What is known of the log's rows.
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    /// Some of the rows may carry ids of another cluster.
    pub(crate) restored: bool,
}

impl Origin {
    /// Looks, and changes nothing.
    pub(crate) async fn of(db: &Db<'_>) -> Work<Self> {
        let identity = observe::identity(db).await?;
        let is_here = is_here(identity, &db.query(KNOWN, &[]).await?)?;
        Ok(Self { identity, restored: !is_here && observe::last(db).await? > 0 })
    }

    /// The same on a connection of its own.
    pub(crate) async fn seen_by(client: &Client, dialect: &Postgres) -> Work<Self> {
        let row = client.query_one(&dialect.render(observe::IDENTITY), &[]).await?;
        let identity = Identity { system: row.try_get::<_, i64>(0)?.cast_unsigned(), table: row.try_get(1)? };
        let is_here = is_here(identity, &client.query(&dialect.render(KNOWN), &[]).await?)?;
        let last: i64 = client.query_one(&dialect.render(observe::LAST), &[]).await?.try_get(0)?;
        Ok(Self { identity, restored: !is_here && last > 0 })
    }

    /// Where a reader begins that begins with everything.
    pub(crate) fn oldest(&self) -> Position {
        Position::oldest(if self.restored { Identity::NOWHERE } else { self.identity })
    }
}

/// Whether the tables are where they say that they were made.
fn is_here(identity: Identity, known: &[Row]) -> Work<bool> {
    let (system, table) = (identity.system.cast_signed(), i64::from(identity.table));
    let mut origin: HashMap<String, i64> = HashMap::new();
    for row in known {
        origin.insert(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(origin.get("origin_system") == Some(&system) && origin.get("origin_table") == Some(&table))
}
