//! The daemon's one file: which stores, which routes, which policies.
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
//! Durations and sizes carry their unit. Unknown keys are refused with the nearest known name. All problems are reported at
//! once, each with its key and where it was given, and nothing is opened before everything is right. What may be said is in
//! one table ([`keys`]); what is said beside the file, in [`overrides`]. Paths are relative to the working directory.

mod admin;
pub(crate) mod capture;
mod collect;
mod destination;
mod http;
pub(crate) mod kafka;
pub(crate) mod keys;
mod log;
mod nats;
mod nearest;
mod overrides;
mod rabbitmq;
mod reader;
mod redis;
mod relay;
mod retry;
mod route;
pub(crate) mod schema;
mod secret;
mod shapes;
pub(crate) mod show;
mod store;
mod telemetry;
mod template;
mod typed;

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use clap::Args;

pub(crate) use self::{
    admin::AdminConfig,
    http::HttpConfig,
    kafka::KafkaConfig,
    log::{Format, LogConfig},
    nats::NatsConfig,
    nearest::nearest,
    rabbitmq::RabbitmqConfig,
    reader::Problem,
    redis::RedisConfig,
    relay::RelayConfig,
    route::RouteConfig,
    store::{DEFAULT_NAME as DEFAULT_STORE_NAME, StoreConfig},
    telemetry::TelemetryConfig,
    template::template,
};
use self::{keys::KEYS, overrides::Overrides, reader::Document, show::Shown};
use crate::{
    bounded,
    exit::{Code, Failure},
    values,
};

/// Everything that the daemon needs to know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    pub(crate) stores: Vec<StoreConfig>,
    pub(crate) relay: RelayConfig,
    pub(crate) log: LogConfig,
    pub(crate) admin: Option<AdminConfig>,
    pub(crate) telemetry: TelemetryConfig,
    pub(crate) routes: Vec<RouteConfig>,
}

/// A configuration, and how it came about.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// Every value, without secrets, with its origin.
    pub(crate) shown: Vec<Shown>,
    /// What is allowed, and should be known.
    pub(crate) warnings: Vec<String>,
}

/// Where a configuration comes from.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "postrider.toml")]
    pub(crate) config: PathBuf,
    /// Sets a value in place of the file and the environment, such as `route.billing.rate=10`; may be given several times.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Source {
    /// Reads and checks everything, and opens nothing but the files of secrets.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        self.read(true)
    }

    fn read(&self, look_up: bool) -> Result<Loaded, Failure> {
        let file = self.file();
        let text = bounded::text(&self.config, FILE_BYTES_MAX).map_err(|error| {
            Failure::because(Code::Usage, format!("the configuration {file} cannot be read"), &error)
        })?;
        let overrides = Overrides::gather(env::vars_os(), &self.set).map_err(Failure::usage)?;
        parse(&text, &overrides, look_up).map_err(|problems| {
            let listed = Problems { file: &file, problems: &problems };
            Failure::usage(format!("the configuration is not usable\n{listed}"))
        })
    }

    /// The file's name, for people.
    pub(crate) fn file(&self) -> String {
        self.config.display().to_string()
    }
}

/// Most bytes of a configuration, or of a mapping: a file that is larger is neither.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The stores that a file and the environment name, for whoever only looks: secrets are left alone.
pub(crate) fn stores(path: &Path) -> Result<Vec<StoreConfig>, Failure> {
    let source = Source { config: path.to_owned(), set: Vec::new() };
    Ok(source.read(false)?.config.stores)
}

/// The store that the environment names by itself, for whoever only looks and has no file; `None` if it names none.
pub(crate) fn store_of_environment() -> Result<Option<StoreConfig>, Failure> {
    let overrides = Overrides::gather(env::vars_os(), &[]).map_err(Failure::usage)?.of_section("store");
    if !overrides.say("store", "url") {
        return Ok(None);
    }
    let read = || {
        let (document, table) = Document::parse("", KEYS, &overrides)?;
        let stores = store::read(&mut document.top(&table));
        document.look_up_secrets();
        if document.is_right() { Ok(stores) } else { Err(document.into_problems()) }
    };
    let stores = read().map_err(|problems| {
        let listed = Problems { file: "", problems: &problems };
        Failure::usage(format!("the store of the environment is not usable\n{listed}"))
    })?;
    Ok(stores.into_iter().next())
}

/// Reads and checks a text and what is said beside it; with `look_up`, secrets too.
fn parse(text: &str, overrides: &Overrides, look_up: bool) -> Result<Loaded, Vec<Problem>> {
    let (document, table) = Document::parse(text, KEYS, overrides)?;
    let mut top = document.top(&table);
    let stores = store::read(&mut top);
    let relay = relay::read(&mut top);
    let log = log::read(&mut top);
    let admin = admin::read(&mut top);
    let telemetry = telemetry::read(&mut top);
    let routes = route::read(&mut top, &stores);
    top.close();
    let warnings = if look_up { document.look_up_secrets() } else { Vec::new() };
    if !document.is_right() {
        return Err(document.into_problems());
    }
    let heartbeat_every = relay.options.heartbeat_every;
    let config = Config { stores, relay, log, admin, telemetry, routes };
    let mut shown = document.into_shown();
    // The one default that is computed.
    for value in shown.iter_mut().filter(|value| value.key.path == "relay.heartbeat_every") {
        value.value.get_or_insert_with(|| values::show_duration(heartbeat_every).into());
    }
    Ok(Loaded { config, shown, warnings })
}

struct Problems<'a> {
    file: &'a str,
    problems: &'a [Problem],
}

impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Problem { origin, key, what }) in self.problems.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            let key = if key.is_empty() { String::new() } else { format!(" `{key}`") };
            write!(f, "{separator}  {}:{key} {what}", origin.in_file(self.file))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
