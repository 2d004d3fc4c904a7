//! What a command prints: a table for people, or JSON for programs.
//!
//! Results go to standard output and nothing else does; advice, progress and log lines go to standard error. A reader that
//! has seen enough (`| head`) ends the command quietly.

use std::{
    fmt::Display,
    io::{ErrorKind, Write},
};

use clap::{Args, ValueEnum};
use serde_json::Value;

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Ndjson,
}

/// The choice on the command line.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct OutputArguments {
    /// How to print.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// One JSON object, or one per line where there may be several.
    #[arg(long, hide = true, conflicts_with = "output")]
    json: bool,
}

impl OutputArguments {
    /// Prints one thing.
    pub(crate) fn object(self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        if self.json || self.output != Format::Table { print(format_args!("{}\n", value())) } else { print(text()) }
    }

    /// Prints several things of a kind.
    pub(crate) fn list(self, items: impl FnOnce() -> Vec<Value>, text: impl FnOnce() -> String) {
        match self.several() {
            Format::Table => print(text()),
            Format::Json => print(format_args!("{}\n", Value::Array(items()))),
            Format::Ndjson => items().iter().for_each(|item| print(format_args!("{item}\n"))),
        }
    }

    /// The format of a command that may print several things.
    pub(crate) fn several(self) -> Format {
        if self.json { Format::Ndjson } else { self.output }
    }
}

/// Writes to standard output.
pub(crate) fn print(text: impl Display) {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        // Nobody reads any more, and nobody is wrong.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: standard output cannot be written\n  because: {error}");
            std::process::exit(crate::exit::Code::Problem as i32);
        }
    }
}

/// `1 record`, `2 records`.
pub(crate) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A cell for something that may be absent.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
