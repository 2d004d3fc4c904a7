//! Access: from a URL to connections, each of them to the right server and encrypted where it has to be.
//!
//! One rule for the pool, the reader, the listener, the notifier and the command line alike: **a host that is neither
//! loopback nor a Unix socket needs TLS whose certificate is verified, chain and host name**, unless the URL says
//! `sslmode=disable`. There is nothing in between: encryption without verification protects from nobody who can sit in the
//! middle, and falling back to clear text is decided by that same person.
//!
//! | `sslmode` | Means |
//! |---|---|
//! | not given | verified TLS for a remote host; clear text for loopback and Unix sockets |
//! | `disable` | clear text |
//! | `require`, `verify-ca`, `verify-full` | verified TLS, always in full: chain and host name |
//! | `prefer`, `allow` | refused: both fall back to clear text without a word |
//!
//! `sslrootcert` names a PEM file with the authorities to trust instead of the system's (`system` is those). `sslcert` and
//! `sslkey` name the certificate and the key that this client shows. Any of the three asks for TLS by itself.
//!
//! Of several hosts the one that accepts writes is taken: a standby cannot serve a relay.
//!
//! A machine that vanishes sends nothing, so nobody would ever learn of it from the connection alone. Unless the URL says
//! otherwise, connecting takes no longer than [`CONNECT_TIMEOUT`], what was sent must be acknowledged within
//! [`UNACKNOWLEDGED_MAX`], and a connection on which nothing is said is probed from [`KEEPALIVE_IDLE`] on.

mod tls;
mod url;

use std::{net::IpAddr, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, RecyclingMethod};
use postrider_core::{Error, Result};
use tokio::task::AbortHandle;
use tokio_postgres::{
    CancelToken, Client, Config, Connection, Socket,
    config::{Host, SslMode, TargetSessionAttrs},
};

pub(crate) use self::tls::trouble;
use self::{tls::Tls, url::Url};
use crate::{db::in_time, error::Work};

/// How long it may take to reach one address, unless the URL says `connect_timeout`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the other machine may leave unacknowledged what was sent, unless the URL says `tcp_user_timeout`. It is the
/// machine that acknowledges and not the server, so this bounds no statement.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);

/// How long a connection may be quiet until the other machine is asked whether it is there, unless the URL says
/// `keepalives_idle`.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

/// How long it is between two such questions, unless the URL says `keepalives_interval`.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// How long a server that was reached may take to let us in.
const GREETING_PATIENCE: Duration = Duration::from_secs(20);

/// What a URL comes down to. Cheap enough to clone for each connection.
#[derive(Clone)]
pub(crate) struct Access {
    config: Config,
    tls: Tls,
}

/// Ends a connection when it is dropped, also one on which an answer is owed: a client that is dropped waits for those.
pub(crate) struct Driven(AbortHandle);

impl Driven {
    pub(crate) fn end(&self) {
        self.0.abort();
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens one connection by the rules of this store (see the crate's documentation on TLS), for whoever enqueues without
/// opening the store. Must be called on a tokio runtime; the connection is driven by a task that ends with the client.
///
/// # Errors
/// [`ErrorKind::Invalid`](postrider_core::ErrorKind::Invalid) if the URL is wrong, `Denied` if the server refuses or is not
/// who it should be, `Unavailable` if it cannot be reached. None of them repeats the URL, which may hold a password.
pub async fn connect(url: &str) -> Result<Client> {
    let access = Access::parse(url)?;
    access.client().await.map_err(|fault| fault.into_error("connect"))
}

impl Access {
    /// Reads a URL, and the certificates that it names.
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let url = Url::split(url)?;
        let mut config: Config = url.rest.parse().map_err(|_| malformed())?;
        notice_silence(&mut config, &url);
        if config.get_application_name().is_none() {
            config.application_name("postrider");
        }
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let wanted = url.ssl.is_wanted()?.unwrap_or_else(|| leaves_this_machine(&config));
        let tls = if wanted { Tls::verified(&url.ssl)? } else { Tls::Off };
        config.ssl_mode(if wanted { SslMode::Require } else { SslMode::Disable });
        Ok(Self { config, tls })
    }

    /// A connection and what drives it. It ends in bounded time, also if the server is reached and says nothing.
    pub(crate) async fn connect(&self) -> Work<(Client, Connection<Socket, tls::Stream>)> {
        let addresses = self.config.get_hosts().len().max(self.config.get_hostaddrs().len()).max(1);
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let patience = each.saturating_mul(u32::try_from(addresses).unwrap_or(u32::MAX)) + GREETING_PATIENCE;
        in_time(Some(patience), async { Ok(self.config.connect(self.tls.clone()).await?) }).await
    }

    /// A connection that a task drives until the client is dropped or the server is gone.
    pub(crate) async fn client(&self) -> Work<Client> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// The same, until it is ended at the latest.
    pub(crate) async fn driven(&self) -> Work<(Client, Driven)> {
        let (client, connection) = self.connect().await?;
        Ok((client, Driven(tokio::spawn(connection).abort_handle())))
    }

    /// Asks the server to give up what a connection is waiting for, if it can be asked.
    pub(crate) async fn cancel(&self, token: CancelToken) {
        let _ = in_time(Some(GREETING_PATIENCE), async { Ok(token.cancel_query(self.tls.clone()).await?) }).await;
    }

    /// What makes the connections of a pool.
    pub(crate) fn manager(&self) -> Manager {
        let options = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        Manager::from_config(self.config.clone(), self.tls.clone(), options)
    }

    /// Whether what travels to another machine can be read on the way.
    pub(crate) fn is_open_to_eavesdroppers(&self) -> bool {
        matches!(self.tls, Tls::Off) && leaves_this_machine(&self.config)
    }
}

/// The URL may hold a password, so errors do not repeat it.
fn malformed() -> Error {
    Error::invalid("not a PostgreSQL URL; write `postgres://user:password@host:port/database`")
}

/// Sees to it that a machine which has vanished is noticed, in so far as the URL says nothing of it.
fn notice_silence(config: &mut Config, url: &Url) {
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED_MAX);
    }
    if !url.says("keepalives_idle") {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
}

/// Whether any of the servers may be elsewhere, by its name or by the address that is to be used in its stead.
fn leaves_this_machine(config: &Config) -> bool {
    config.get_hosts().iter().any(is_remote) || config.get_hostaddrs().iter().any(is_remote_address)
}

fn is_remote_address(address: &IpAddr) -> bool {
    !address.to_canonical().is_loopback()
}

fn is_remote(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => match name.parse() {
            Ok(address) => is_remote_address(&address),
            Err(_) => !name.eq_ignore_ascii_case("localhost"),
        },
        #[cfg(unix)]
        Host::Unix(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> SslMode {
        Access::parse(url).unwrap().config.get_ssl_mode()
    }

    fn refused(url: &str) -> String {
        Access::parse(url).err().expect("refused").to_string()
    }

    #[test]
    fn clear_text_stays_on_this_machine_unless_it_is_asked_for() {
        for local in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "%2Fvar%2Frun"] {
            assert_eq!(mode(&format!("postgres://u@{local}/d")), SslMode::Disable, "{local}");
        }
        for url in ["postgres://u@db.example/d?sslmode=disable", "postgresql://u@10.0.0.1/d?x=1&sslmode=disable"] {
            let known = url.replace("x=1&", "connect_timeout=1&");
            assert_eq!(mode(&known), SslMode::Disable, "{url}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn everything_else_is_verified() {
        for url in [
            "postgres://u@db.example/d",
            "postgres://u@10.0.0.1/d",
            "postgres://u@localhost,db.example/d",
            "postgres://u@localhost/d?sslmode=require",
            "postgres://u@localhost/d?sslmode=verify-ca",
            "postgres://u@localhost/d?sslmode=verify-full&connect_timeout=3",
            "postgres://u@localhost/d?sslrootcert=system",
            "postgres://u@localhost/d?hostaddr=10.0.0.5",
            "postgres://u@/d?hostaddr=10.0.0.5",
            "postgres://u@localhost,localhost/d?hostaddr=127.0.0.1,10.0.0.5",
            "postgres://u@db.example/d?hostaddr=127.0.0.1",
        ] {
            assert_eq!(mode(url), SslMode::Require, "{url}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn without_tls_a_remote_host_is_refused() {
        assert!(refused("postgres://u@db.example/d").contains("feature `tls`"));
    }

    #[test]
    fn what_is_wrong_with_a_parameter_is_said_by_its_name() {
        let cases = [
            ("sslmode=prefer", "clear text"),
            ("sslmode=allow", "clear text"),
            ("sslmode=always", "sslmode"),
            ("sslmode=disable&sslmode=require", "sslmode"),
            ("sslmode=disable&sslrootcert=ca.pem", "contradict"),
            ("sslcrl=x.pem", "sslcrl"),
            ("passfile=x", "passfile"),
            ("colour=blue", "parameter"),
        ];
        for (parameters, part) in cases {
            let told = refused(&format!("postgres://u:secret@localhost/d?{parameters}"));
            assert!(told.contains(part) && !told.contains("secret"), "{parameters}: {told}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn certificates_that_are_not_there_are_named() {
        for (parameters, part) in [
            ("sslrootcert=nowhere.pem", "nowhere.pem"),
            ("sslcert=a.pem", "sslkey"),
            ("sslkey=a.pem", "sslcert"),
            ("sslcert=nowhere.pem&sslkey=nowhere.key", "nowhere.pem"),
        ] {
            let told = refused(&format!("postgres://u:secret@localhost/d?{parameters}"));
            assert!(told.contains(part) && !told.contains("secret"), "{parameters}: {told}");
        }
    }

    #[test]
    fn an_address_elsewhere_is_open_to_eavesdroppers() {
        let open = |url: &str| Access::parse(url).unwrap().is_open_to_eavesdroppers();
        assert!(open("postgres://u@localhost/d?hostaddr=10.0.0.5&sslmode=disable"));
        assert!(open("postgres://u@/d?hostaddr=10.0.0.5&sslmode=disable"));
        assert!(!open("postgres://u@localhost/d?hostaddr=127.0.0.1"));
    }

    #[test]
    fn a_machine_that_vanishes_is_noticed_unless_the_url_says_otherwise() {
        let times = |parameters: &str| {
            let config = Access::parse(&format!("postgres://u@localhost/d{parameters}")).unwrap().config;
            let seconds = |time: Option<&Duration>| time.unwrap().as_secs();
            (
                seconds(config.get_connect_timeout()),
                seconds(config.get_tcp_user_timeout()),
                config.get_keepalives_idle().as_secs(),
                seconds(config.get_keepalives_interval().as_ref()),
            )
        };
        assert_eq!(times(""), (10, 15, 10, 5));
        assert_eq!(times("?sslmode=disable"), (10, 15, 10, 5));
        assert_eq!(times("?connect_timeout=3&keepalives_idle=7200"), (3, 15, 7_200, 5));
        assert_eq!(times("?tcp_user_timeout=60&keepalives_interval=1"), (10, 60, 10, 1));
    }

    #[test]
    fn of_several_hosts_the_one_that_accepts_writes_is_wanted() {
        let attrs = |url: &str| Access::parse(url).unwrap().config.get_target_session_attrs();
        assert_eq!(attrs("postgres://u@localhost/d"), TargetSessionAttrs::Any);
        assert_eq!(attrs("postgres://u@localhost:1,localhost:2/d"), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn a_password_is_never_repeated() {
        for url in ["postgres://u:secret@h:notaport/d", "postgres://u:sec?secret=1@h/d?secret=2", "secret"] {
            assert!(!refused(url).contains("secret"), "{url}");
        }
    }
}
