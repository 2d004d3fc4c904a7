//! Options of the store, and how it is opened.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
    time::Duration,
};

use mongodb::{
    Client,
    options::{ClientOptions, ConnectionString, HostInfo, ServerAddress, Tls, TlsOptions},
};
use postrider_core::{Error, ErrorKind, Result};

use crate::{
    Inner, MongoStore,
    ahead::Ahead,
    db::Db,
    dialect::{Mongo, PREFIX},
    error::{Work, from_mongo},
    late::Late,
    migrations,
    planted::Plant,
    quiet::Quiet,
    seen::Seen,
    server,
    shared::Shared,
};

/// Connections of the pool unless told otherwise.
const CONNECTIONS_MAX: u32 = 16;

/// How long to look for a primary, unless the URL says it.
const SELECTION_PATIENCE: Duration = Duration::from_secs(10);

/// What a transaction may take from its first insert to its commit, unless told otherwise: ten times what a server allows by
/// default, because that limit can be lowered while transactions are open.
const OVERLAP_MIN: Duration = Duration::from_mins(10);

/// So many times what the server allows a transaction, where that is more. `doctor` asks for as much.
pub(crate) const OVERLAP_LIFES: u32 = 3;

/// A cursor that is further behind than this is moved although nothing was read, so that the server still remembers where it
/// is.
const IDLE_SECONDS: u64 = 30;

/// Options of a store. Made by [`MongoStore::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    url: String,
    database: Option<String>,
    prefix: String,
    migrate: bool,
    connections_max: u32,
    overlap: Option<Duration>,
    plant: Plant,
    forget_every: u32,
    idle_seconds: u64,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            database: None,
            prefix: PREFIX.to_owned(),
            migrate: true,
            connections_max: CONNECTIONS_MAX,
            overlap: None,
            plant: Plant::None,
            forget_every: 0,
            idle_seconds: IDLE_SECONDS,
        }
    }

    /// The database, if it is not the one that the URL names behind the host.
    pub fn database(mut self, database: &str) -> Self {
        self.database = Some(database.to_owned());
        self
    }

    /// What the names of all collections begin with. Default `postrider_`. Two prefixes are two stores in one database.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Whether to make the collections and indexes when opening. Default yes. Without it, opening fails with
    /// [`ErrorKind::Schema`] while they are missing or older; see [`migrations`].
    pub fn migrate(mut self, migrate: bool) -> Self {
        self.migrate = migrate;
        self
    }

    /// Connections for all that the store does. Default 16, at least 2. Too few, and lanes wait for each other.
    pub fn connections_max(mut self, connections: u32) -> Self {
        self.connections_max = connections.max(2);
        self
    }

    /// How long a transaction may be open between its first message and its commit. Default 10 minutes, or three times what the
    /// server allowed when the store was opened (`transactionLifetimeLimitSeconds`), if it says so and that is more. It matters
    /// only where the collection is scanned, as when the server has forgotten where a lane was: messages of transactions that
    /// were open for longer would then be missed, and everything enqueued within this time before the lane's cursor comes twice.
    pub fn overlap(mut self, overlap: Duration) -> Self {
        self.overlap = Some(overlap);
        self
    }

    /// Makes a mistake, for a test that must find it.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.plant = plant;
        self
    }

    /// Lets every so many-th read find its history lost, for a test.
    #[cfg(feature = "planted")]
    pub fn forget_every(mut self, reads: u32) -> Self {
        self.forget_every = reads;
        self
    }

    /// Moves a cursor that has nothing to read after so many seconds, for a test that has no time to wait.
    #[cfg(feature = "planted")]
    pub fn idle_seconds(mut self, seconds: u64) -> Self {
        self.idle_seconds = seconds;
        self
    }

    /// Whether the options can be right, as far as that shows without a server.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming what is wrong; never the URL, which may hold a password.
    pub fn check(&self) -> Result<()> {
        self.dialect().map(drop)
    }

    /// Where the collections are, as far as that shows without a server.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn dialect(&self) -> Result<Mongo> {
        self.names(parse(&self.url)?.default_database.as_deref())
    }

    pub(crate) fn names(&self, from_url: Option<&str>) -> Result<Mongo> {
        let database = self.database.as_deref().or(from_url).filter(|name| !name.is_empty()).ok_or_else(|| {
            Error::invalid("the URL does not say which database; write it behind the host, as in mongodb://host/shop")
        })?;
        Mongo::with_prefix(database, &self.prefix)
    }

    /// Opens the store. Dropping the future leaves the collections made, or to be made by the next opening.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the server is standalone, sharded or too old, [`ErrorKind::Schema`] if the collections are
    /// newer or were altered (or, without migration, missing or older), [`ErrorKind::Unavailable`] if it cannot be reached,
    /// [`ErrorKind::Denied`] if it refuses, [`ErrorKind::Invalid`] if an option is wrong.
    pub async fn open(self) -> Result<MongoStore> {
        let mut options = client_options(&self.url).await?;
        let dialect = self.names(options.default_database.as_deref())?;
        options.max_pool_size = Some(self.connections_max);
        let shared = Shared::of(&options, &dialect);
        let client = Client::with_options(options).map_err(|error| from_mongo(&error, "open the store"))?;
        self.prepare(&client, &dialect, &shared.seen).await.map_err(|fault| fault.into_error("open the store"))?;
        let overlap = match self.overlap {
            Some(overlap) => overlap,
            None => server::transaction_life(&client)
                .await
                .map_or(OVERLAP_MIN, |life| OVERLAP_MIN.max(life.saturating_mul(OVERLAP_LIFES))),
        };
        Ok(MongoStore(Arc::new(Inner {
            client,
            dialect,
            shared,
            overlap: if self.plant == Plant::NoOverlap { Duration::ZERO } else { overlap },
            plant: self.plant,
            forget_every: self.forget_every,
            idle_seconds: self.idle_seconds,
            ahead: Ahead::default(),
            late: Late::default(),
            quiet: Quiet::default(),
            reads: AtomicU32::new(0),
            recoveries: AtomicU64::new(0),
        })))
    }

    async fn prepare(&self, client: &Client, dialect: &Mongo, seen: &Arc<Seen>) -> Work<()> {
        server::check(&server::hello(client).await?)?;
        let mut db = Db::alone(client, dialect, seen).await?;
        if self.migrate { migrations::apply(&mut db, None).await.map(drop) } else { migrations::check(&mut db).await }
    }
}

/// A URL: `mongodb://user:password@host:port/database`.
fn parse(url: &str) -> Result<ConnectionString> {
    // Without the driver's own words: some of them repeat parts of the URL.
    let what = "this is no URL of MongoDB: mongodb://user:password@host:port/database";
    ConnectionString::parse(url).map_err(|_| Error::new(ErrorKind::Invalid, what))
}

pub(crate) async fn client_options(url: &str) -> Result<ClientOptions> {
    let parsed = parse(url)?;
    let hosts = match &parsed.host_info {
        HostInfo::HostIdentifiers(hosts) => hosts.clone(),
        _ => Vec::new(),
    };
    let far = hosts.iter().any(|host| !is_this_machine(host));
    let undecided = parsed.tls.is_none() && far;
    let mut options = ClientOptions::parse(parsed).await.map_err(|error| from_mongo(&error, "read the URL"))?;
    // A host that is not this machine is spoken to in clear text only if the URL says so: `tls=false`.
    if undecided {
        options.tls = Some(Tls::Enabled(TlsOptions::default()));
    }
    options.app_name.get_or_insert_with(|| "postrider".to_owned());
    options.server_selection_timeout.get_or_insert(SELECTION_PATIENCE);
    Ok(options)
}

fn is_this_machine(host: &ServerAddress) -> bool {
    match host {
        ServerAddress::Tcp { host, .. } => {
            let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
        // A socket in the file system.
        _ => true,
    }
}

/// A client as the store itself makes them: for an application that has none.
///
/// # Errors
/// [`ErrorKind::Invalid`] if this is no URL of MongoDB, otherwise what the driver answers; never the URL.
pub async fn connect(url: &str) -> Result<Client> {
    Client::with_options(client_options(url).await?).map_err(|error| from_mongo(&error, "connect"))
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("prefix", &self.prefix).field("migrate", &self.migrate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_far_host_needs_tls_unless_the_url_says_no() {
        for (url, encrypted) in [
            ("mongodb://db.example/shop", true),
            ("mongodb://10.0.0.1,127.0.0.1/shop", true),
            ("mongodb://db.example/shop?tls=false", false),
            ("mongodb://127.0.0.1/shop", false),
            ("mongodb://localhost/shop", false),
        ] {
            let options = client_options(url).await.unwrap();
            assert_eq!(matches!(options.tls, Some(Tls::Enabled(_))), encrypted, "{url}");
        }
    }

    #[test]
    fn a_url_must_name_a_database_and_is_never_repeated() {
        Builder::new("mongodb://u:secret@h:27017/shop").check().unwrap();
        Builder::new("mongodb://u:secret@h:27017").database("shop").check().unwrap();
        for bad in ["mongodb://u:secret@h", "postgres://u:secret@h/shop", "u:secret", "mongodb://u:secret@h/a$b"] {
            let refused = Builder::new(bad).check().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!refused.chain().contains("secret"), "{}", refused.chain());
        }
    }
}
