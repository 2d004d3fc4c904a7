//! `sqlite:path`: the SQLite store.
//!
//! The path may be a SQLite URI (`sqlite:file:app.db?mode=ro`). A file that is not there is only made by whoever migrates:
//! a mistyped path must not become an empty database in which everything looks fine.

use std::{path::Path, sync::Arc, time::Duration};

use postrider::{
    Envelope, Error, ErrorKind, Outbox, Result,
    core::{BoxFuture, admin::Actor, migration::Standing},
    sqlite::{self, PREFIX, Sqlite, SqliteStore, migrations},
};
use rusqlite::{Connection, TransactionBehavior};

use crate::registry::{OpenStore, Place, Roles, StoreAdapter};

/// How long an enqueue waits for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Adapter;

impl StoreAdapter for Adapter {
    fn check(&self, place: &Place) -> Result<()> {
        dialect(place).map(|_| ())
    }

    fn is_missing(&self, place: &Place) -> bool {
        !file(place).exists()
    }

    fn open<'a>(&'a self, place: &'a Place, migrate: bool) -> BoxFuture<'a, Result<OpenStore>> {
        Box::pin(async move {
            refuse_server_settings(place)?;
            if migrate {
                must_have_a_folder(place)?;
            } else {
                must_exist(place)?;
            }
            let builder = SqliteStore::builder(&place.path).prefix(prefix(place)).migrate(migrate);
            let store = Arc::new(builder.open().await?);
            Ok(OpenStore { log: Arc::clone(&store) as _, admin: store })
        })
    }

    fn enqueue(&self, place: &Place, transactions: Vec<Vec<Envelope>>) -> Result<()> {
        must_exist(place)?;
        let outbox = Outbox::new(dialect(place)?);
        let failed = |error| sqlite::error(error, "enqueue").with("file", &place.path);
        let mut connection = Connection::open(&place.path).map_err(failed)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        for envelopes in transactions {
            let mut transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
            outbox.enqueue_raw(&mut transaction, envelopes)?;
            transaction.commit().map_err(failed)?;
        }
        Ok(())
    }

    fn migrations(&self, place: &Place) -> Result<Vec<Standing>> {
        migrations::status(&place.path, &dialect(place)?)
    }

    fn migrate(&self, place: &Place, _new_store: bool, actor: &Actor) -> Result<Vec<Standing>> {
        must_have_a_folder(place)?;
        migrations::up(&place.path, &dialect(place)?, actor)
    }

    fn migration_script(&self, place: &Place) -> Result<String> {
        Ok(migrations::sql(&dialect(place)?))
    }

    fn role_script(&self, _place: &Place, _roles: &Roles<'_>) -> Result<String> {
        let message = "SQLite has no roles; the permissions of the file say who may do what";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

fn prefix(place: &Place) -> &str {
    place.table_prefix.as_deref().unwrap_or(PREFIX)
}

fn dialect(place: &Place) -> Result<Sqlite> {
    refuse_server_settings(place)?;
    Ok(Sqlite::with_prefix(prefix(place))?.in_file(&place.path))
}

fn must_exist(place: &Place) -> Result<()> {
    if file(place).exists() {
        return Ok(());
    }
    let message = "there is no such database; `postrider migrate up` makes one";
    Err(Error::new(ErrorKind::Unavailable, message).with("file", &place.path))
}

/// A file is made, the folder around it is not: that is where a mistyped path shows.
fn must_have_a_folder(place: &Place) -> Result<()> {
    match file(place).parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            let message = "there is no such folder to make the database in; make it, or correct the path";
            Err(Error::new(ErrorKind::Unavailable, message).with("folder", folder.display()).with("file", &place.path))
        }
        _ => Ok(()),
    }
}

/// The file that a path or a URI means.
fn file(place: &Place) -> &Path {
    let plain = place.path.strip_prefix("file:").map_or(&*place.path, |uri| uri.split('?').next().unwrap_or(uri));
    Path::new(plain)
}

/// What only a database server has.
fn refuse_server_settings(place: &Place) -> Result<()> {
    if place.schema.is_some() {
        return Err(Error::invalid("SQLite has no schemas; leave `schema` out and use a table prefix"));
    }
    if place.connections.is_some() {
        return Err(Error::invalid("SQLite has one writer; leave `connections` out"));
    }
    Ok(())
}
