//! Options of the store, and how it is opened.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use deadpool_postgres::{Pool, Runtime};
use postrider_core::{Error, ErrorKind, Result};

use crate::{
    Inner, PostgresStore,
    access::Access,
    admin::Answers,
    dialect::{Postgres, SCHEMA},
    error::{Fault, Work},
    lanes::Lanes,
    locked::Waiter,
    migrations,
    planted::Plant,
    purge::Emptied,
    set_back::Noticed,
    together::Together,
    wake::Waker,
};

/// Connections of the pool unless told otherwise.
const CONNECTIONS_MAX: usize = 8;

/// How long to wait for a connection of the pool.
const CONNECTION_WAIT: Duration = Duration::from_secs(10);

/// Options of a store. Made by [`PostgresStore::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    url: String,
    schema: String,
    prefix: String,
    migrate: bool,
    block_bits: u32,
    connections_max: usize,
    raise: bool,
    plant: Plant,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            schema: SCHEMA.to_owned(),
            prefix: String::new(),
            migrate: true,
            block_bits: migrations::BLOCK_BITS,
            connections_max: CONNECTIONS_MAX,
            raise: true,
            plant: Plant::None,
        }
    }

    /// The schema of all tables. Default `postrider`. Made when migrating, if there is none.
    pub fn schema(mut self, schema: &str) -> Self {
        schema.clone_into(&mut self.schema);
        self
    }

    /// What the names of all tables begin with. Default nothing. Two prefixes are two stores in one schema.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Whether to bring the schema up to date when opening. Default yes. Without it, opening fails with
    /// [`ErrorKind::Schema`] while the schema is missing or older; see [`migrations`].
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Numbers per block of the ring, as a power of two. Default 20: retention works in steps of about a million records.
    /// From 2 to 40. It counts when the tables are made and never again.
    pub fn block_bits(mut self, bits: u32) -> Self {
        self.block_bits = bits;
        self
    }

    /// Connections for everything but reading the log: settling, leases, operators. Default 8, at least 1. One more reads
    /// the log, one listens, and for a moment there is another one whenever the one that reads is made. Too few, and lanes wait
    /// for each other when they settle.
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// Whether to look, twice a second, which of the transactions that have been open for long have not written to the log.
    /// Default yes. Without it nothing is lost or held up, but retention waits for every such transaction, and its end costs
    /// a scan of all that was written since it began. It relies on how PostgreSQL releases locks, so it can be switched off.
    pub fn watch_long_transactions(mut self, watch: bool) -> Self {
        self.raise = watch;
        self
    }

    /// Makes a mistake, for a test that must find it.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.plant = plant;
        self
    }

    /// Whether the options can be right, as far as that shows without a server: the URL, the certificates that it names,
    /// schema and prefix.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming what is wrong; never the URL, which may hold a password.
    pub fn check(&self) -> Result<()> {
        Postgres::new(&self.schema, &self.prefix)?;
        migrations::check_block_bits(self.block_bits)?;
        Access::parse(&self.url).map(|_| ())
    }

    /// Opens the store. Dropping the future leaves the schema migrated or not, never half.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the schema is newer or was altered (or, without migration, missing or older),
    /// [`ErrorKind::Unavailable`] if the server cannot be reached, or if somebody keeps a table locked,
    /// [`ErrorKind::Denied`] if it refuses,
    /// [`ErrorKind::Invalid`] if an option is wrong.
    pub async fn open(self) -> Result<PostgresStore> {
        let dialect = Postgres::new(&self.schema, &self.prefix)?;
        migrations::check_block_bits(self.block_bits)?;
        let access = Access::parse(&self.url)?;
        let pool = self.pool(&access)?;
        let waiter = Waiter::default();
        let prepared = waiter.tells(&access, "open the store", self.prepare(&pool, &dialect, &waiter)).await;
        let block_bits = prepared.map_err(|fault| fault.into_error("open the store"))?;
        Ok(PostgresStore(Arc::new(Inner {
            pool,
            access,
            dialect,
            block_bits,
            raise: self.raise,
            plant: self.plant,
            opened_at: Instant::now(),
            session: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            lanes: Lanes::default(),
            due_looks: Together::default(),
            next_due_looks: Lanes::default(),
            floors: Lanes::default(),
            catching_up: tokio::sync::Mutex::default(),
            answers: Answers::default(),
            emptied: Emptied::default(),
            set_back: Noticed::default(),
            waker: Waker::new(),
        })))
    }

    fn pool(&self, access: &Access) -> Result<Pool> {
        Pool::builder(access.manager())
            .max_size(self.connections_max)
            .wait_timeout(Some(CONNECTION_WAIT))
            .create_timeout(Some(CONNECTION_WAIT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|e| Error::new(ErrorKind::Invalid, "build the pool of connections").caused_by(e))
    }

    async fn prepare(&self, pool: &Pool, dialect: &Postgres, waiter: &Waiter) -> Work<u32> {
        let mut client = pool.get().await.map_err(Fault::from)?;
        if self.migrate {
            migrations::apply(&mut client, dialect, self.block_bits, None, waiter).await?;
        } else {
            migrations::check(&mut client, dialect, waiter).await?;
        }
        migrations::block_bits(&mut client, dialect, waiter).await
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("schema", &self.schema)
            .field("prefix", &self.prefix)
            .field("migrate", &self.migrate)
            .finish_non_exhaustive()
    }
}
