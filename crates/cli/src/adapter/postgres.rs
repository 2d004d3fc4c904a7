//! `postgres://user:password@host:port/database`: the PostgreSQL store.
//!
//! Tables are in the configured schema, `postrider` if none is, with the configured prefix. The schema is only made by whoever
//! migrates.

use std::sync::Arc;

use postrider::{
    Envelope, Error, ErrorKind, Outbox, Result,
    core::{BoxFuture, admin::Actor, migration::Standing},
    postgres::{self, Postgres, PostgresStore, SCHEMA, migrations},
};

use crate::registry::{OpenStore, Place, Roles, StoreAdapter, at_server};

pub(crate) struct Adapter;

impl StoreAdapter for Adapter {
    fn check(&self, place: &Place) -> Result<()> {
        PostgresStore::builder(&url(place)).schema(schema(place)).prefix(prefix(place)).check()
    }

    fn open<'a>(&'a self, place: &'a Place, migrate: bool) -> BoxFuture<'a, Result<OpenStore>> {
        Box::pin(async move {
            if migrate {
                refuse_second(place).await?;
            }
            let mut builder =
                PostgresStore::builder(&url(place)).schema(schema(place)).prefix(prefix(place)).migrate(migrate);
            if let Some(connections) = place.connections {
                builder = builder.connections_max(connections as usize);
            }
            let store = Arc::new(builder.open().await.map_err(|error| at_server(place, no_database(error)))?);
            Ok(OpenStore { log: Arc::clone(&store) as _, admin: store })
        })
    }

    fn enqueue(&self, place: &Place, transactions: Vec<Vec<Envelope>>) -> Result<()> {
        let outbox = Outbox::new(dialect(place)?);
        wait(place, async {
            let mut client = postgres::connect(&url(place)).await?;
            let failed = |error| postgres::error(error, "enqueue");
            for envelopes in transactions {
                let mut transaction = client.transaction().await.map_err(failed)?;
                outbox.enqueue_raw(&mut transaction, envelopes).await?;
                transaction.commit().await.map_err(failed)?;
            }
            Ok(())
        })
    }

    fn migrations(&self, place: &Place) -> Result<Vec<Standing>> {
        wait(place, async { migrations::status(&url(place), &dialect(place)?).await })
    }

    fn migrate(&self, place: &Place, new_store: bool, actor: &Actor) -> Result<Vec<Standing>> {
        wait(place, async {
            if !new_store {
                refuse_second(place).await?;
            }
            migrations::up(&url(place), &dialect(place)?, actor).await
        })
    }

    fn migration_script(&self, place: &Place) -> Result<String> {
        Ok(migrations::sql(&dialect(place)?))
    }

    fn role_script(&self, place: &Place, roles: &Roles<'_>) -> Result<String> {
        let Roles { app, relay, viewer, migrate } = *roles;
        migrations::roles(&dialect(place)?, &migrations::Roles { app, relay, viewer, migrate })
    }
}

/// A prefix that was mistyped must not become an empty store beside the one that is meant, in which everything looks fine.
async fn refuse_second(place: &Place) -> Result<()> {
    let beside = migrations::beside(&url(place), &dialect(place)?).await.map_err(no_database)?;
    if beside.is_empty() {
        return Ok(());
    }
    let shown = |prefix: &str| if prefix.is_empty() { "none".to_owned() } else { format!("`{prefix}`") };
    let prefixes: Vec<String> = beside.iter().map(|prefix| shown(prefix)).collect();
    let message = "the schema has a store already, under another table prefix; correct `table_prefix`, or make a second \
                   store with `postrider migrate up --new-store`";
    Err(Error::new(ErrorKind::Schema, message)
        .with("schema", schema(place))
        .with("prefix", shown(prefix(place)))
        .with("there", prefixes.join(", ")))
}

/// That the server has no such database is no different from a file that is not there.
fn no_database(error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    Error::new(ErrorKind::Unavailable, "there is no such database on the server; make it, or correct the URL")
        .caused_by(error)
}

/// The registry has cut the scheme off.
fn url(place: &Place) -> String {
    format!("postgres:{}", place.path)
}

fn prefix(place: &Place) -> &str {
    place.table_prefix.as_deref().unwrap_or_default()
}

fn schema(place: &Place) -> &str {
    place.schema.as_deref().unwrap_or(SCHEMA)
}

fn dialect(place: &Place) -> Result<Postgres> {
    Postgres::new(schema(place), prefix(place))
}

/// These commands run outside of any runtime.
fn wait<T>(place: &Place, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::new(ErrorKind::Other, "start the runtime").caused_by(e))?;
    runtime.block_on(work).map_err(|error| at_server(place, no_database(error)))
}
