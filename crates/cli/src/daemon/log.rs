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

/// Clients that are not heard unless they are asked for by name: that of RabbitMQ writes whole messages into its warnings, and
/// that of PostgreSQL writes the parameters of every statement from `debug` on, payloads and headers of parked messages among
/// them. What they have to say the relay says too.
const UNHEARD: [&str; 2] = ["lapin", "tokio_postgres"];

fn from_environment() -> Option<EnvFilter> {
    from_words(&std::env::var(EnvFilter::DEFAULT_ENV).ok()?)
}

/// A variable that is there and empty says nothing, and must not silence what goes wrong.
fn from_words(said: &str) -> Option<EnvFilter> {
    if said.trim().is_empty() {
        return None;
    }
    EnvFilter::try_new(without_unheard(said)).ok()
}

/// What was said, and silence for those that it does not name.
fn without_unheard(said: &str) -> String {
    let silent = UNHEARD.iter().filter(|client| !said.contains(*client));
    silent.fold(said.to_owned(), |filter, client| format!("{filter},{client}=off"))
}

/// More than `info` is wanted of Postrider, not of every library below it.
fn from_level(level: &str) -> EnvFilter {
    match level {
        "debug" | "trace" => EnvFilter::new(without_unheard(&format!("info,postrider={level}"))),
        level => EnvFilter::new(without_unheard(level)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_write_messages_are_heard_only_by_name() {
        let heard = |said: &str| from_words(said).map(|filter| filter.to_string()).unwrap_or_default();
        for said in ["debug", "trace", "postrider=debug,info"] {
            assert!(heard(said).contains("lapin=off") && heard(said).contains("tokio_postgres=off"), "{}", heard(said));
        }
        assert!(heard("tokio_postgres=debug").contains("tokio_postgres=debug"), "whoever asks for it gets it");
        for level in ["error", "info", "debug", "trace"] {
            assert!(from_level(level).to_string().contains("tokio_postgres=off"), "{level}");
        }
    }

    #[test]
    fn an_empty_variable_silences_nothing() {
        assert!(from_words("").is_none() && from_words(" ").is_none());
        assert!(from_words("off").is_some());
    }
}
