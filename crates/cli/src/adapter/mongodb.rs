//! `mongodb://user:password@host:port/database`, and `mongodb+srv://…`: the store for MongoDB.
//!
//! Collections are in the database of the URL, with the configured prefix. They are only made by whoever migrates.

use std::sync::Arc;

use postrider::{
    Envelope, Error, ErrorKind, Outbox, Result,
    core::{BoxFuture, admin::Actor, migration::Standing},
    mongodb::{self, Builder, Mongo, MongoStore, PREFIX, UnitOfWork, migrations},
};

use crate::registry::{OpenStore, Place, Roles, StoreAdapter};

/// With the scheme, which the registry cuts off.
pub(crate) struct Adapter(pub(crate) &'static str);

impl Adapter {
    fn url(&self, place: &Place) -> String {
        format!("{}:{}", self.0, place.path)
    }

    fn builder(&self, place: &Place) -> Result<Builder> {
        if place.schema.is_some() {
            return Err(Error::invalid("MongoDB has no schemas inside of a database; leave `schema` out"));
        }
        Ok(MongoStore::builder(&self.url(place)).prefix(place.table_prefix.as_deref().unwrap_or(PREFIX)))
    }

    fn names(&self, place: &Place) -> Result<Mongo> {
        self.builder(place)?.dialect()
    }

    /// A prefix that was mistyped must not become an empty store beside the one that is meant, in which everything looks fine.
    async fn refuse_second(&self, place: &Place) -> Result<()> {
        let names = self.names(place)?;
        let beside = migrations::beside(&self.url(place), &names).await?;
        if beside.is_empty() {
            return Ok(());
        }
        let message = "the database has a store already, under another prefix; correct `table_prefix`, or make a second store \
                       with `postrider migrate up --new-store`";
        let prefixes: Vec<String> = beside.iter().map(|prefix| format!("`{prefix}`")).collect();
        Err(Error::new(ErrorKind::Schema, message)
            .with("prefix", format!("`{}`", names.prefix()))
            .with("there", prefixes.join(", ")))
    }
}

impl StoreAdapter for Adapter {
    fn check(&self, place: &Place) -> Result<()> {
        self.builder(place)?.check()
    }

    fn open<'a>(&'a self, place: &'a Place, migrate: bool) -> BoxFuture<'a, Result<OpenStore>> {
        Box::pin(async move {
            if migrate {
                self.refuse_second(place).await?;
            }
            let mut builder = self.builder(place)?.migrate(migrate);
            if let Some(connections) = place.connections {
                builder = builder.connections_max(connections);
            }
            let store = Arc::new(builder.open().await?);
            Ok(OpenStore { log: Arc::clone(&store) as _, admin: store })
        })
    }

    fn enqueue(&self, place: &Place, transactions: Vec<Vec<Envelope>>) -> Result<()> {
        let names = self.names(place)?;
        let outbox = &Outbox::new(names.clone());
        wait(async {
            let work = UnitOfWork::new(&mongodb::connect(&self.url(place)).await?, &names);
            for envelopes in &transactions {
                let enqueued = work.run(|mut tx| async move {
                    outbox.enqueue_raw(&mut tx, envelopes.clone()).await?;
                    Ok(())
                });
                enqueued.await.map_err(mongodb::work::Failure::into_error)?;
            }
            Ok(())
        })
    }

    fn migrations(&self, place: &Place) -> Result<Vec<Standing>> {
        wait(async { migrations::status(&self.url(place), &self.names(place)?).await })
    }

    fn migrate(&self, place: &Place, new_store: bool, actor: &Actor) -> Result<Vec<Standing>> {
        wait(async {
            if !new_store {
                self.refuse_second(place).await?;
            }
            migrations::up(&self.url(place), &self.names(place)?, actor).await
        })
    }

    fn migration_script(&self, place: &Place) -> Result<String> {
        Ok(migrations::script(&self.names(place)?))
    }

    fn role_script(&self, _place: &Place, _roles: &Roles<'_>) -> Result<String> {
        let message = "roles are printed for PostgreSQL alone; docs/operate/mongodb.md says what each user needs";
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

/// These commands run outside of any runtime.
fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::new(ErrorKind::Other, "start the runtime").caused_by(e))?;
    runtime.block_on(work)
}
