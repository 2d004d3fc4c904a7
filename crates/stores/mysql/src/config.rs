//! Options of the store, and how it is opened.

use std::{fmt, sync::Arc, time::Duration};

use mysql_async::{Opts, OptsBuilder};
use postrider_core::{Error, ErrorKind, Result};

use crate::{
    Inner, MysqlStore,
    db::Db,
    dialect::{Mysql, PREFIX},
    durable::Durable,
    error::{Fault, Work, from_mysql},
    locked, migrations,
    order::Ahead,
    planted::Plant,
    pool::{Lent, Pool, pool},
    server::{self, Settings, TriggerWatch},
    wake::Waker,
};

/// Connections of the pool unless told otherwise.
const CONNECTIONS_MAX: usize = 8;

/// How often it is looked whether new messages are still noted.
const TRIGGER_EVERY: Duration = Duration::from_secs(60);

/// Prepared statements that a connection keeps: all of ours.
const STATEMENTS_KEPT: usize = 128;

/// How soon a connection is asked by the system whether its other end still lives.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// What every session of ours begins with, whatever the server's default is. At READ COMMITTED a reader takes no locks between
/// rows, so that no insert of a producer ever waits for it. Strict, so that nothing is cut to fit. A statement outside a
/// transaction is one by itself, and a commit begins no other: what is answered is done, and keeps no lock.
const SESSION: [&str; 3] = [
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET NAMES utf8mb4",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1, completion_type = 'NO_CHAIN'",
];

/// What the store's own sessions have besides. None waits for a lock for longer than all others together have patience; and
/// one whose process stands still or has vanished keeps its locks no longer than this, for every other relay waits for them.
/// An idle connection that ends by it is replaced when it is needed. (The comment is one for MySQL and not for MariaDB.) The
/// server tells when transactions began by the time of its machine, so that is the time that they are compared with.
pub(crate) const OWN_SESSION: &str = "SET SESSION lock_wait_timeout = 50, innodb_lock_wait_timeout = 50, time_zone = 'SYSTEM', \
     wait_timeout = 60 /*M!100300 , idle_transaction_timeout = 20 */";

/// For an operator's change, which tells its operator who keeps a lock instead of waiting for it like a relay; and what the
/// session has again afterwards.
pub(crate) const IMPATIENT: &str = "SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10";
pub(crate) const PATIENT: &str = "SET SESSION lock_wait_timeout = 50, innodb_lock_wait_timeout = 50";

/// Options of a store. Made by [`MysqlStore::builder`].
#[derive(Clone)]
#[must_use]
pub struct Builder {
    url: String,
    prefix: String,
    migrate: bool,
    connections_max: usize,
    trigger_every: Duration,
    plant: Plant,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: PREFIX.to_owned(),
            migrate: true,
            connections_max: CONNECTIONS_MAX,
            trigger_every: TRIGGER_EVERY,
            plant: Plant::None,
        }
    }

    /// What the names of all tables begin with. Default `postrider_`. Two prefixes are two stores in one database.
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

    /// Connections for all that the store does. Default 8, at least 1. Too few, and lanes wait for each other.
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// How often, at most, a relay that reads looks whether the trigger that notes new messages is still there. Default one
    /// minute. While it is gone, every read fails with [`ErrorKind::Schema`].
    pub fn trigger_every(mut self, every: Duration) -> Self {
        self.trigger_every = every;
        self
    }

    /// Makes a mistake, for a test that must find it.
    #[cfg(feature = "planted")]
    pub fn plant(mut self, plant: Plant) -> Self {
        self.plant = plant;
        self
    }

    /// Whether the options can be right, as far as that shows without a server.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming what is wrong; never the URL, which may hold a password.
    pub fn check(&self) -> Result<()> {
        Mysql::with_prefix(&self.prefix)?;
        options(&self.url).map(|_| ())
    }

    /// Opens the store. Dropping the future leaves the schema migrated, or to be migrated on by the next opening.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if the schema is newer or was altered (or, without migration, missing or older),
    /// [`ErrorKind::Unsupported`] if the server is too old or set so that it loses commits, [`ErrorKind::Unavailable`] if it
    /// cannot be reached, [`ErrorKind::Denied`] if it refuses, [`ErrorKind::Invalid`] if an option is wrong.
    pub async fn open(self) -> Result<MysqlStore> {
        let dialect = Mysql::with_prefix(&self.prefix)?;
        let pool = pool(own_options(&self.url)?, self.connections_max)?;
        self.prepare(&pool, &dialect).await.map_err(|fault| fault.into_error("open the store"))?;
        Ok(MysqlStore(Arc::new(Inner {
            pool,
            dialect,
            plant: self.plant,
            waker: Waker::new(),
            ahead: Ahead::default(),
            durable: Durable::default(),
            trigger: TriggerWatch::new(self.trigger_every),
        })))
    }

    async fn prepare(&self, pool: &Pool, dialect: &Mysql) -> Work<()> {
        let mut db = Db::alone(pool.get().await?, dialect);
        Settings::of(&mut db).await?.check()?;
        if self.migrate {
            let connect = || async move { Ok(Db::alone(pool.get().await?, dialect)) };
            locked::told("migrate", connect, migrations::apply(&mut db, None)).await?;
        } else {
            migrations::check(&mut db).await?;
        }
        server::check_tables(&mut db).await
    }
}

/// Parses a URL: `mysql://user:password@host:port/database`.
pub(crate) fn options(url: &str) -> Result<OptsBuilder> {
    // The client knows one spelling.
    let url = url.strip_prefix("mariadb:").map_or_else(|| url.to_owned(), |rest| format!("mysql:{rest}"));
    let options = Opts::from_url(&url).map_err(|error| {
        Error::new(ErrorKind::Invalid, "this is no URL of a database: mysql://user:password@host:port/database")
            .caused_by(error)
    })?;
    if options.db_name().is_none_or(str::is_empty) {
        return Err(Error::invalid(
            "the URL does not say which database; write it behind the host, as in mysql://host/shop",
        ));
    }
    let far = !is_this_machine(options.ip_or_hostname()) && options.socket().is_none();
    let undecided = far && options.ssl_opts().is_none() && !url.contains("require_ssl=");
    let builder = OptsBuilder::from_opts(options);
    let builder = if undecided { encrypted(builder)? } else { builder };
    Ok(builder
        // A fence counts the rows that match, whether or not they change.
        .client_found_rows(true)
        .prefer_socket(false)
        .tcp_keepalive(Some(KEEPALIVE))
        .stmt_cache_size(STATEMENTS_KEPT)
        .setup(SESSION.to_vec()))
}

/// The same, for connections that nobody but the store uses.
fn own_options(url: &str) -> Result<OptsBuilder> {
    Ok(options(url)?.setup([&SESSION[..], &[OWN_SESSION]].concat()))
}

fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A host that is not this machine is spoken to in clear text only if the URL says so: `require_ssl=false`.
#[cfg(feature = "tls")]
fn encrypted(builder: OptsBuilder) -> Result<OptsBuilder> {
    Ok(builder.ssl_opts(mysql_async::SslOpts::default()))
}

#[cfg(not(feature = "tls"))]
fn encrypted(_: OptsBuilder) -> Result<OptsBuilder> {
    Err(Error::invalid(
        "a server on another machine needs TLS: build with the feature `tls`, or write require_ssl=false",
    ))
}

/// One connection to a database, as the store itself makes them: for an application that has none.
///
/// # Errors
/// [`ErrorKind::Invalid`] if this is no URL of a database, otherwise what the server answers; never the URL.
pub async fn connect(url: &str) -> Result<mysql_async::Conn> {
    mysql_async::Conn::new(options(url)?).await.map_err(|error| from_mysql(error, "connect"))
}

/// The same, for a piece of work of ours.
pub(crate) async fn lend(url: &str) -> Result<Lent> {
    pool(own_options(url)?, 1)?.get().await.map_err(|error| Fault::from(error).into_error("connect"))
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

    #[test]
    #[cfg(feature = "tls")]
    fn a_far_host_needs_tls_unless_the_url_says_no() {
        let encrypted = |url| Opts::from(options(url).unwrap()).ssl_opts().is_some();
        assert!(encrypted("mysql://db.example/shop") && encrypted("mysql://10.0.0.1/shop?require_ssl=true"));
        assert!(!encrypted("mysql://db.example/shop?require_ssl=false"));
        assert!(!encrypted("mysql://127.0.0.1/shop") && !encrypted("mysql://localhost/shop"));
    }

    #[test]
    fn a_url_must_name_a_database_and_is_never_repeated() {
        for good in ["mysql://u:secret@h:3306/shop", "mariadb://h/shop"] {
            Builder::new(good).check().unwrap();
        }
        for bad in ["mysql://u:secret@h", "postgres://u:secret@h/shop", "u:secret"] {
            let refused = Builder::new(bad).check().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(!refused.chain().contains("secret"), "{}", refused.chain());
        }
    }
}
