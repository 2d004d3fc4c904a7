//! Where the daemon's own words go: to standard error, because standard output may be a route's destination.

use std::io::IsTerminal;

use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt, registry, reload, util::SubscriberInitExt,
};

use crate::config::{Format, LogConfig};

/// A hold on what is logged.
pub(crate) struct Log {
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Whether another level could be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Set,
    /// `RUST_LOG` is set, and goes before the file.
    DecidedByEnvironment,
}

impl Log {
    /// From here on something is logged. If there is a subscriber already, it is the better one.
    pub(crate) fn start(config: &LogConfig) -> Self {
        let (filter, handle) = reload::Layer::new(from_environment().unwrap_or_else(|| from_level(config.level)));
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
        let lines = match config.format {
            Format::Text => lines.boxed(),
            Format::Json => lines.json().flatten_event(true).with_ansi(false).boxed(),
        };
        let _ = registry().with(filter).with(lines).try_init();
        Self { filter: handle }
    }

    /// Takes another level.
    pub(crate) fn set_level(&self, level: &str) -> Level {
        if from_environment().is_some() {
            return Level::DecidedByEnvironment;
        }
        // Fails only if the subscriber is gone, and then nobody would read it.
        let _ = self.filter.reload(from_level(level));
        Level::Set
    }
}

/// Log lines for people, as far as `RUST_LOG` or `info` goes.
pub(crate) fn log_to_stderr() {
    Log::start(&LogConfig { level: "info", format: Format::Text });
}

/// The client of RabbitMQ is not heard unless it is asked for by name: it writes whole messages into its warnings, and what
/// it has to say the relay says too.
const UNHEARD: &str = "lapin=off";

fn from_environment() -> Option<EnvFilter> {
    let said = std::env::var(EnvFilter::DEFAULT_ENV).ok()?;
    let whole = if said.contains("lapin") { said } else { format!("{said},{UNHEARD}") };
    EnvFilter::try_new(whole).ok()
}

/// More than `info` is wanted of Postrider, not of every library below it.
fn from_level(level: &str) -> EnvFilter {
    match level {
        "debug" | "trace" => EnvFilter::new(format!("info,{UNHEARD},postrider={level}")),
        level => EnvFilter::new(format!("{level},{UNHEARD}")),
    }
}
