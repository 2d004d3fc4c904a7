//! Which adapter a URL means: one table for stores, one for transports.
//!
//! A new adapter is one line here. A scheme that is unknown names the known ones.

use std::{borrow::Cow, sync::Arc};

use postrider::{
    Envelope, Error, Result,
    core::{
        BoxFuture,
        admin::{Actor, StoreAdmin},
        log::Log,
        migration::Standing,
        transport::Publisher,
    },
};

use crate::{
    adapter,
    config::{self, HttpConfig, KafkaConfig, NatsConfig, RabbitmqConfig, RedisConfig},
};

/// The stores.
const STORES: &[(&str, &'static dyn StoreAdapter)] = &[
    ("sqlite", &adapter::sqlite::Adapter),
    ("postgres", &adapter::postgres::Adapter),
    ("mysql", &adapter::mysql::Adapter),
    ("mongodb", &adapter::mongodb::Adapter("mongodb")),
    ("mongodb+srv", &adapter::mongodb::Adapter("mongodb+srv")),
];

/// The transports.
const TRANSPORTS: &[(&str, OpenTransport)] = &[
    ("stdout", adapter::ndjson::stdout),
    ("file", adapter::ndjson::file),
    ("https", adapter::http::open),
    ("http", adapter::http::open),
    ("nats", adapter::nats::open),
    ("amqp", adapter::rabbitmq::open),
    ("amqps", adapter::rabbitmq::open),
    ("redis", adapter::redis::open),
    ("rediss", adapter::redis::open),
    ("kafka", adapter::kafka::open),
    ("discard", adapter::discard::open),
];

/// Opens a transport.
pub(crate) type OpenTransport = fn(&Destination<'_>) -> Result<Arc<dyn Publisher>>;

/// Where a route's messages go, as its section of the file says.
pub(crate) struct Destination<'a> {
    /// The whole of it.
    pub(crate) url: &'a str,
    /// What stands behind the scheme's colon.
    pub(crate) rest: &'a str,
    /// `[route.http]`, for webhooks.
    pub(crate) http: Option<&'a HttpConfig>,
    /// `[route.nats]`, for NATS.
    pub(crate) nats: Option<&'a NatsConfig>,
    /// `[route.rabbitmq]`, for RabbitMQ.
    pub(crate) rabbitmq: Option<&'a RabbitmqConfig>,
    /// `[route.redis]`, for Redis.
    pub(crate) redis: Option<&'a RedisConfig>,
    /// `[route.kafka]`, for Kafka.
    pub(crate) kafka: Option<&'a KafkaConfig>,
}

/// A store, opened.
pub(crate) struct OpenStore {
    /// The relay's side.
    pub(crate) log: Arc<dyn Log>,
    /// The operator's side.
    pub(crate) admin: Arc<dyn StoreAdmin>,
}

/// Where a store is: what stands behind the scheme, and what its tables are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) path: String,
    pub(crate) table_prefix: Option<String>,
    pub(crate) schema: Option<String>,
    pub(crate) connections: Option<u32>,
}

/// What the roles of a database are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roles<'a> {
    pub(crate) app: &'a str,
    pub(crate) relay: &'a str,
    pub(crate) viewer: &'a str,
    pub(crate) migrate: &'a str,
}

/// What the command line asks of a store beside its contracts.
pub(crate) trait StoreAdapter: Sync {
    /// Whether a place can be right, as far as that shows without connecting to anything.
    fn check(&self, place: &Place) -> Result<()>;

    /// Whether there is no such database yet, and `migrate up` would make it.
    fn is_missing(&self, _place: &Place) -> bool {
        false
    }

    /// Opens it. With `migrate`, makes it if there is none and brings its schema up to date; without, changes nothing.
    fn open<'a>(&'a self, place: &'a Place, migrate: bool) -> BoxFuture<'a, Result<OpenStore>>;

    /// Enqueues, each list in a transaction of its own. Outside of any runtime.
    fn enqueue(&self, place: &Place, transactions: Vec<Vec<Envelope>>) -> Result<()>;

    /// Every migration as a line for people, and whether it is applied.
    fn migrations(&self, place: &Place) -> Result<Vec<Standing>>;

    /// Applies what is pending and returns it. A store beside another one is made only with `new_store`.
    fn migrate(&self, place: &Place, new_store: bool, actor: &Actor) -> Result<Vec<Standing>>;

    /// All migrations as a script.
    fn migration_script(&self, place: &Place) -> Result<String>;

    /// The script that gives roles what each of them needs.
    fn role_script(&self, place: &Place, roles: &Roles<'_>) -> Result<String>;
}

/// Says which server an error is about: clients tell what went wrong, and not with whom. Never with a user or a password.
pub(crate) fn at_server(place: &Place, error: Error) -> Error {
    match server(&place.path) {
        Some(server) => error.with("server", server),
        None => error,
    }
}

/// What stands between user and parameters. A question mark before the last `@` may be a part of the password, or begin
/// parameters of which one is the password and has the `@`: what is what cannot be told, so nothing is.
fn server(path: &str) -> Option<&str> {
    let path = path.trim_start_matches('/');
    let (who, place) = path.rsplit_once('@').unwrap_or(("", path));
    let server = place.split('?').next().unwrap_or(place);
    (!who.contains('?') && !server.is_empty()).then_some(server)
}

/// The store that a URL means, and the rest of the URL.
pub(crate) fn store(url: &str) -> Result<(&'static dyn StoreAdapter, String), String> {
    if url.trim().is_empty() {
        return Err("is empty; say where the messages are, such as `sqlite:app.db`, or unset it".to_owned());
    }
    // Both spellings are in use; `DATABASE_URL` often has the longer one.
    let other = |from: &str, to: &str| url.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    let spelt = other("postgresql:", "postgres:").or_else(|| other("mariadb:", "mysql:"));
    let url = spelt.map_or(Cow::Borrowed(url), Cow::Owned);
    let (adapter, rest) = look_up("a store", STORES, &url)?;
    if rest.is_empty() {
        return Err(format!("`{url}` does not say which; write the place behind the colon, such as `sqlite:app.db`"));
    }
    Ok((adapter, rest.to_owned()))
}

/// The transport that a URL means, and the rest of the URL.
pub(crate) fn transport(url: &str) -> Result<(OpenTransport, String), String> {
    let (open, rest) = look_up("a transport", TRANSPORTS, url)?;
    if url.starts_with("file") && rest.is_empty() {
        return Err(format!("`{url}` does not say which file; write `file:path`"));
    }
    Ok((open, rest.to_owned()))
}

fn look_up<'u, T: Copy>(what: &str, table: &[(&'static str, T)], url: &'u str) -> Result<(T, &'u str), String> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    if let Some((_, adapter)) = table.iter().find(|(known, _)| *known == scheme) {
        return Ok((*adapter, rest));
    }
    let known: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
    let hint = config::nearest(scheme, &known)
        .map_or_else(|| format!("known are {}", known.join(", ")), |near| format!("did you mean `{near}:`?"));
    // A URL may hold a password; only its scheme is repeated.
    Err(format!("`{}:` is not {what} that is known here; {hint}", scheme.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T>(found: Result<T, String>) -> String {
        found.err().unwrap_or_default()
    }

    #[test]
    fn known_schemes_are_found() {
        assert_eq!(store("sqlite:app.db").map(|(_, rest)| rest), Ok("app.db".to_owned()));
        assert_eq!(store("postgres://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(store("postgresql://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(store("mysql://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(store("mariadb://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(store("mongodb://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(store("mongodb+srv://h/d").map(|(_, rest)| rest), Ok("//h/d".to_owned()));
        assert_eq!(transport("file:a:b").map(|(_, rest)| rest), Ok("a:b".to_owned()));
        assert!(transport("stdout").is_ok() && transport("discard").is_ok());
    }

    #[test]
    fn unknown_schemes_name_the_known_ones() {
        assert_eq!(
            refused(store("oracle:x")),
            "`oracle:` is not a store that is known here; known are sqlite, postgres, mysql, mongodb, mongodb+srv"
        );
        assert_eq!(
            refused(transport("pigeon")),
            "`pigeon:` is not a transport that is known here; known are stdout, file, https, http, nats, amqp, amqps, redis, rediss, kafka, discard"
        );
    }

    #[test]
    fn a_password_in_a_url_is_not_repeated() {
        assert!(!refused(store("oracle://user:secret@host/db")).contains("secret"));
    }

    #[test]
    fn an_error_names_the_server_and_nobody_else() {
        let told = |path: &str| {
            let place = Place { path: path.to_owned(), table_prefix: None, schema: None, connections: None };
            at_server(&place, Error::invalid("no")).to_string()
        };
        assert_eq!(told("//me:canary@db:5432/shop?password=canary"), "no (server: db:5432/shop)");
        assert_eq!(told("//me:can@ry@db/shop"), "no (server: db/shop)");
        assert_eq!(told("//db/shop"), "no (server: db/shop)");
        assert_eq!(told("//?host=db"), "no");
        for canary in ["//me:can?ary@db/shop", "//me:x@db/shop?password=can@ary", "//db?user=me&password=can@ary"] {
            assert_eq!(told(canary), "no", "{canary}");
        }
    }

    #[test]
    fn a_url_must_name_a_place() {
        assert!(refused(store("sqlite:")).contains("sqlite:app.db"));
        assert!(refused(transport("file")).contains("file:path"));
    }
}
