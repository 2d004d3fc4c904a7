//! Options of a collector, and how it is opened.

use std::{fmt, time::Duration};

use mongodb::{
    Client, Collection, IndexModel,
    bson::{Document, doc},
    options::IndexOptions,
};
use postrider_core::{Error, Result, limits::Limits};

use super::{Collector, Embedded, collector::Source, ownership::Ownership};
use crate::{
    config::{self, client_options},
    dialect::PREFIX,
    error::from_mongo,
    planted::Plant,
    server,
    value::uuid,
};

/// How long a collector may be silent before another takes over, unless told otherwise.
const LEASE_LIFE: Duration = Duration::from_secs(15);

/// By which mail is found.
const INDEX: &str = "postrider_mail";

/// Options of a collector. Made by [`Collector::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    url: String,
    database: Option<String>,
    prefix: String,
    collections: Vec<String>,
    outbox: Embedded,
    make_indexes: bool,
    lease_life: Duration,
    store: Option<String>,
    limits: Limits,
    plant: Plant,
}

impl Builder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            database: None,
            prefix: PREFIX.to_owned(),
            collections: Vec::new(),
            outbox: Embedded::default(),
            make_indexes: true,
            lease_life: LEASE_LIFE,
            store: None,
            limits: Limits::default(),
            plant: Plant::None,
        }
    }

    /// The collections whose documents carry mail.
    pub fn collections(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.collections = names.into_iter().map(Into::into).collect();
        self
    }

    /// The database, if it is not the one that the URL names behind the host.
    pub fn database(mut self, database: &str) -> Self {
        self.database = Some(database.to_owned());
        self
    }

    /// What the name of the collector's own collection begins with. Default `postrider_`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Where the mail is in a document. Default [`FIELD`](super::FIELD).
    pub fn outbox(mut self, outbox: &Embedded) -> Self {
        self.outbox = outbox.clone();
        self
    }

    /// Whether to make the index by which mail is found. Default yes. Without it and without the index, each round reads
    /// every document.
    pub fn make_indexes(mut self, make: bool) -> Self {
        self.make_indexes = make;
        self
    }

    /// How long the collector may be silent before another takes over. Default 15 seconds.
    pub fn lease_life(mut self, life: Duration) -> Self {
        self.lease_life = life;
        self
    }

    /// What tells the store that the mail is carried into from any other: a text that stays with it, and that no other store has.
    /// The lease keeps it, and whoever would carry the mail of the same collection into another store is refused: what the
    /// first one has collected and not delivered would come after what is newer, or never. Default none, which is refused as well
    /// where a collector before it had one; without it nobody notices.
    pub fn store_identity(mut self, identity: &str) -> Self {
        self.store = Some(identity.to_owned());
        self
    }

    /// Makes a mistake, for a test that must find it.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.plant = plant;
        self
    }

    /// What a message may be. Default as for an outbox.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the options can be right, as far as that shows without a server.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming what is wrong; never the URL, which may hold a password.
    ///
    /// [`ErrorKind::Invalid`]: postrider_core::ErrorKind::Invalid
    pub fn check(&self) -> Result<()> {
        if self.collections.is_empty() {
            return Err(Error::invalid("say in which collections mail is collected, such as `orders`"));
        }
        let bad = |name: &&String| name.is_empty() || name.starts_with('$') || name.contains('\0');
        if let Some(name) = self.collections.iter().find(bad) {
            return Err(Error::invalid("a collection has a name that does not begin with `$`")
                .with("collection", name.escape_debug()));
        }
        self.place().check()
    }

    /// Where it is, as a store says it.
    fn place(&self) -> config::Builder {
        let place = config::Builder::new(&self.url).prefix(&self.prefix);
        match &self.database {
            Some(database) => place.database(database),
            None => place,
        }
    }

    /// Opens it: a standalone server will do, and a replica set as well.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the server is sharded or too old, [`ErrorKind::Unavailable`] if it cannot be reached,
    /// [`ErrorKind::Denied`] if it refuses, [`ErrorKind::Conflict`] if the mail goes into another store,
    /// [`ErrorKind::Invalid`] if an option is wrong.
    ///
    /// [`ErrorKind::Conflict`]: postrider_core::ErrorKind::Conflict
    /// [`ErrorKind::Unsupported`]: postrider_core::ErrorKind::Unsupported
    /// [`ErrorKind::Unavailable`]: postrider_core::ErrorKind::Unavailable
    /// [`ErrorKind::Denied`]: postrider_core::ErrorKind::Denied
    /// [`ErrorKind::Invalid`]: postrider_core::ErrorKind::Invalid
    pub async fn open(self) -> Result<Collector> {
        self.check()?;
        let options = client_options(&self.url).await?;
        let names = self.place().names(options.default_database.as_deref())?;
        let client = Client::with_options(options).map_err(|error| from_mongo(&error, "open the collector"))?;
        let hello = server::hello(&client).await.map_err(|fault| fault.into_error("open the collector"))?;
        server::check_embedded(&hello)?;
        let database = client.database(names.database());
        let mut sources = Vec::new();
        for name in &self.collections {
            let collection = database.collection(name);
            if self.make_indexes {
                index(&collection, &self.outbox).await.map_err(|error| from_mongo(&error, "make an index"))?;
            }
            may_pull(&collection, &self.outbox)
                .await
                .map_err(|error| from_mongo(&error, "ask for the right to update"))?;
            let subject = format!("{} in {name}", self.outbox.field());
            let (leases, store) = (names.name("collector"), self.store.clone());
            let ownership = Ownership::new(&database, &leases, subject, self.lease_life, store);
            ownership.check_store().await.map_err(|fault| fault.into_error("look whose mail it is"))?;
            sources.push(Source { collection, ownership });
        }
        let found_by = self.make_indexes.then_some(INDEX);
        Ok(Collector::new(database, sources, self.outbox, self.limits, found_by, self.plant))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("collections", &self.collections).finish_non_exhaustive()
    }
}

/// Documents without mail are not in it. Those are whose messages have a topic and no id.
async fn index(collection: &Collection<Document>, outbox: &Embedded) -> mongodb::error::Result<()> {
    let options = IndexOptions::builder().name(INDEX.to_owned()).sparse(true).build();
    let field = outbox.field();
    let keys = doc! { format!("{field}.id"): 1, format!("{field}.topic"): 1 };
    collection.create_index(IndexModel::builder().keys(keys).options(options).build()).await?;
    Ok(())
}

/// A collector that may read and not pull would send everything, and be able to take nothing away. So it is asked before: by an
/// update that meets no document.
async fn may_pull(collection: &Collection<Document>, outbox: &Embedded) -> mongodb::error::Result<()> {
    let nobody = doc! { "_id": uuid(::uuid::Uuid::now_v7()) };
    let pull = doc! { "$pull": { outbox.field(): { "id": { "$in": [] } } } };
    collection.update_one(nobody, pull).await?;
    Ok(())
}
