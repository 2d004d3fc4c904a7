//! The daemon's one file: which store, which routes, which policies.
//!
//! ```toml
//! [store]
//! url = "sqlite:app.db"
//!
//! [relay]
//! lease_life = "15s"
//!
//! [[route]]
//! name = "billing"
//! topics = ["orders.*"]
//! transport = "file:billing.ndjson"
//! ```
//!
//! Durations and sizes carry their unit. Unknown keys are refused with the nearest known name. All problems of a file are
//! reported at once, each with line and key, and nothing is opened before the file is right. Paths are relative to the
//! working directory.

mod admin;
pub(crate) mod capture;
mod http;
mod reader;
mod retry;
mod secret;

use std::{collections::BTreeMap, fmt, fs, path::Path, time::Duration};

use postrider::{
    core::{
        lease::{Order, Start},
        retry::RetryPolicy,
        topic::{TopicPattern, check_name},
    },
    relay::{OnDead, options::Options},
};

use self::reader::{Document, Section, boolean, number, one_of, text, texts, written};
pub(crate) use self::{
    admin::AdminConfig,
    http::HttpConfig,
    reader::{Problem, nearest},
};
use crate::{
    exit::{Code, Failure},
    registry, values,
};

/// The most that any count of a route may be.
const COUNT_MAX: u32 = 1_000_000;

/// The most connections that a pool may have.
const CONNECTIONS_MAX: u32 = 1_000;

/// The largest window of a route, in bytes: a page is held in memory.
const WINDOW_BYTES_MAX: usize = 4 << 30;

/// Everything that the daemon needs to know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) store: StoreConfig,
    pub(crate) node_name: Option<String>,
    pub(crate) relay: Options,
    pub(crate) admin: Option<AdminConfig>,
    pub(crate) routes: Vec<RouteConfig>,
}

/// `[store]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StoreConfig {
    /// Which database: `sqlite:app.db`.
    pub(crate) url: String,
    /// What the names of its tables begin with, if not with the default.
    pub(crate) table_prefix: Option<String>,
    /// The schema of its tables, if not the default; for a server that has schemas.
    pub(crate) schema: Option<String>,
    /// Connections of its pool, if not the default; for a server.
    pub(crate) connections: Option<u32>,
    /// Whether to bring the schema up to date at the start. Default yes.
    pub(crate) migrate: bool,
}

/// `[[route]]`. What is `None` is left to the engine's default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteConfig {
    pub(crate) name: String,
    pub(crate) topics: Vec<String>,
    pub(crate) transport: String,
    pub(crate) lanes: u32,
    pub(crate) order: Order,
    pub(crate) start: Start,
    pub(crate) on_dead: OnDead,
    pub(crate) rate: Option<u32>,
    pub(crate) window: Option<u32>,
    pub(crate) window_bytes: Option<usize>,
    pub(crate) publish_timeout: Option<Duration>,
    pub(crate) retry: RetryPolicy,
    /// `[route.http]`, if the transport is a webhook.
    pub(crate) http: Option<HttpConfig>,
}

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::because(Code::Usage, format!("the configuration {} cannot be read", path.display()), &error)
        })?;
        Self::parse(&text).map_err(|problems| {
            let listed = Problems { file: path, problems: &problems };
            Failure::usage(format!("the configuration is not usable\n{listed}"))
        })
    }

    /// Reads and checks a text.
    pub(crate) fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let (document, table) = Document::parse(text)?;
        let mut top = document.top(&table);
        let store = read_store(&mut top);
        let (node_name, relay) = read_relay(&mut top);
        let admin = admin::read(&mut top);
        let routes = read_routes(&mut top);
        top.close();
        let problems = document.into_problems();
        if problems.is_empty() { Ok(Self { store, node_name, relay, admin, routes }) } else { Err(problems) }
    }
}

struct Problems<'a> {
    file: &'a Path,
    problems: &'a [Problem],
}

impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Problem { line, key, what }) in self.problems.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            let key = if key.is_empty() { String::new() } else { format!(" `{key}`") };
            write!(f, "{separator}  {}:{line}:{key} {what}", self.file.display())?;
        }
        Ok(())
    }
}

fn read_store(top: &mut Section<'_, '_>) -> StoreConfig {
    let Some(mut section) = top.section("store") else {
        top.object("store", "missing: say where the messages are, such as `[store]` with `url = \"sqlite:app.db\"`");
        return StoreConfig::default();
    };
    let url = section.require("url", |value| {
        let url = text(value)?;
        registry::store(&url)?;
        Ok(url)
    });
    let table_prefix = section.get("table_prefix", text);
    let schema = section.get("schema", text);
    let connections = section.get("connections", number(1, CONNECTIONS_MAX));
    for (key, given) in [("schema", schema.is_some()), ("connections", connections.is_some())] {
        if given && url.as_ref().is_some_and(|url| url.starts_with("sqlite:")) {
            section.object(key, "is for a database server; SQLite has none of that");
        }
    }
    let migrate = section.get("migrate", boolean).unwrap_or(true);
    section.close();
    StoreConfig { url: url.unwrap_or_default(), table_prefix, schema, connections, migrate }
}

fn read_relay(top: &mut Section<'_, '_>) -> (Option<String>, Options) {
    let defaults = Options::default();
    let Some(mut section) = top.section("relay") else { return (None, defaults) };
    let node_name = section.get("name", text);
    let lease_life = section.get("lease_life", written(values::duration)).unwrap_or(defaults.lease_life);
    if lease_life < Duration::from_millis(100) {
        section.object("lease_life", "must be at least \"100ms\"");
    }
    let heartbeat_every = section
        .get("heartbeat_every", written(values::duration))
        // Left out, it follows a lease that is shorter than usual.
        .unwrap_or_else(|| defaults.heartbeat_every.min(lease_life / 4));
    if heartbeat_every.is_zero() || heartbeat_every * 3 > lease_life {
        section.object("heartbeat_every", "must be more than nothing and at most a third of `lease_life`");
    }
    let drain_deadline = section.get("drain_deadline", written(some_time)).unwrap_or(defaults.drain_deadline);
    let keep_delivered = section.get("keep_delivered", written(keep)).unwrap_or(defaults.keep_delivered);
    let purge_every = section.get("purge_every", written(values::duration)).unwrap_or(defaults.purge_every);
    if purge_every.is_zero() {
        section.object("purge_every", "must be more than nothing");
    }
    section.close();
    (node_name, Options { lease_life, heartbeat_every, drain_deadline, keep_delivered, purge_every })
}

/// A duration of which there must be some.
fn some_time(text: &str) -> Result<Duration, String> {
    let duration = values::duration(text)?;
    if duration.is_zero() { Err("must be more than nothing".to_owned()) } else { Ok(duration) }
}

fn keep(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        Ok(None)
    } else {
        values::duration(text).map(Some).map_err(|e| format!("{e}, or \"forever\""))
    }
}

fn read_routes(top: &mut Section<'_, '_>) -> Vec<RouteConfig> {
    let sections = top.sections("route");
    if sections.is_empty() {
        top.object("route", "missing: a relay needs at least one `[[route]]`");
    }
    let mut seen = BTreeMap::new();
    let mut routes = Vec::new();
    for (index, mut section) in sections.into_iter().enumerate() {
        let route = read_route(&mut section);
        if seen.insert(route.name.clone(), index).is_some() && !route.name.is_empty() {
            section.object("name", format!("two routes are named `{}`", route.name));
        }
        section.close();
        routes.push(route);
    }
    routes
}

fn read_route(section: &mut Section<'_, '_>) -> RouteConfig {
    const ORDERS: &[(&str, Order)] = &[("key", Order::Key), ("total", Order::Total)];
    const STARTS: &[(&str, Start)] = &[("oldest", Start::Oldest), ("now", Start::Now)];
    const ON_DEAD: &[(&str, OnDead)] = &[("hold", OnDead::Hold), ("continue", OnDead::Continue)];

    let name = section.require("name", |value| {
        let name = text(value)?;
        check_name("route", &name).map(|()| name).map_err(|error| error.to_string())
    });
    let topics = section.get("topics", |value| {
        let patterns = texts(value)?;
        if patterns.is_empty() {
            return Err("is empty; `[\"**\"]` stands for all topics".to_owned());
        }
        let wrong: Vec<String> = patterns
            .iter()
            .filter_map(|pattern| Some(format!("`{pattern}`: {}", TopicPattern::new(pattern).err()?)))
            .collect();
        if wrong.is_empty() { Ok(patterns) } else { Err(wrong.join("; ")) }
    });
    let transport = section.require("transport", |value| {
        let url = text(value)?;
        registry::transport(&url)?;
        Ok(url)
    });
    let lanes = section.get("lanes", number(1, 256)).unwrap_or(1);
    let order = section.get("order", one_of(ORDERS)).unwrap_or_default();
    if order == Order::Total && lanes > 1 {
        section.object("lanes", "a route with total order has one lane, because lanes have no order among each other");
    }
    let mut route = RouteConfig {
        name: name.unwrap_or_default(),
        topics: topics.unwrap_or_else(|| vec!["**".to_owned()]),
        transport: transport.unwrap_or_default(),
        lanes,
        order,
        start: section.get("start", one_of(STARTS)).unwrap_or_default(),
        on_dead: section.get("on_dead", one_of(ON_DEAD)).unwrap_or_default(),
        rate: section.get("rate", number(1, COUNT_MAX)),
        window: section.get("window", number(1, COUNT_MAX)),
        window_bytes: section.get("window_bytes", |value| {
            let bytes = written(values::size)(value)?;
            match bytes {
                ..4096 => Err("must be at least \"4KiB\"".to_owned()),
                4096..=WINDOW_BYTES_MAX => Ok(bytes),
                _ => Err("must be at most \"4GiB\": it is held in memory".to_owned()),
            }
        }),
        publish_timeout: section.get("publish_timeout", written(some_time)),
        retry: retry::read(section),
        http: None,
    };
    let url = Some(route.transport.as_str()).filter(|url| !url.is_empty());
    route.http = http::read(section, url);
    let turn = route.http.as_ref().and_then(|http| http.timeout).unwrap_or(Duration::from_secs(15)) * 2;
    if route.http.is_some() && route.publish_timeout.is_some_and(|timeout| timeout < turn) {
        section.object("publish_timeout", "must be at least twice `http.timeout`, which is \"15s\" by default");
    }
    route
}

#[cfg(test)]
mod tests;
