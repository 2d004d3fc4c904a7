//! Where the transaction ids in the log count.
//!
//! A row of the log carries the id of its transaction. After a dump and restore that id is another cluster's, and no
//! snapshot of this one says anything about it. The tables remember in which cluster, and as which table, they were made; if
//! that is not where they are, all numbers drawn so far may belong to restored rows, and that is remembered in turn. Readers
//! that begin with everything then begin with a rebase round, which asks no snapshot about such rows. (Cursors know by
//! themselves where they count; see [`crate::cursor`].)

use std::collections::HashMap;

use crate::{
    cursor::{Identity, Position},
    db::Db,
    error::Work,
    observe,
};

const KNOWN: &str = "SELECT name, value FROM {setting} WHERE name LIKE 'origin_%'";

const SAVE: &str = "
INSERT INTO {setting} (name, value)
VALUES ('origin_system', $1), ('origin_table', $2), ('origin_restored', $3)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";

/// What is known of the log's rows.
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    /// Some of the rows may carry ids of another cluster.
    pub(crate) restored: bool,
}

impl Origin {
    /// Looks, and remembers if the log has moved. Under the lock on readers.
    pub(crate) async fn of(db: &Db<'_>) -> Work<Self> {
        let identity = observe::identity(db).await?;
        let (system, table) = (identity.system.cast_signed(), i64::from(identity.table));
        let mut known: HashMap<String, i64> = HashMap::new();
        for row in db.query(KNOWN, &[]).await? {
            known.insert(row.try_get(0)?, row.try_get(1)?);
        }
        if known.get("origin_system") == Some(&system) && known.get("origin_table") == Some(&table) {
            return Ok(Self { identity, restored: known.get("origin_restored").is_some_and(|last| *last > 0) });
        }
        let last = observe::last(db).await?;
        db.execute(SAVE, &[&system, &table, &last]).await?;
        Ok(Self { identity, restored: last > 0 })
    }

    /// Where a reader begins that begins with everything.
    pub(crate) fn oldest(&self) -> Position {
        Position::oldest(if self.restored { Identity::NOWHERE } else { self.identity })
    }
}
