//! The binary `postrider`: relay daemon, command line and demonstration.
//!
//! Here: parse, call, exit code; nothing else. One file a command is in [`command`]; [`daemon`] wires a configuration into a
//! running relay; [`registry`] says which adapter a URL means.

mod adapter;
mod admin;
mod bounded;
mod command;
mod config;
mod daemon;
mod demo;
#[cfg(test)]
mod documented;
mod exit;
mod output;
mod progress;
mod registry;
mod signals;
mod table;
mod telemetry;
mod topics;
mod unread;
mod values;

use std::process::ExitCode;

use clap::Parser;

use self::command::Command;

/// A relay makes and drops pages of messages all the time; with the system's allocator a fifth of its drain rate is lost.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Carries messages out of a database transaction to a message broker: nothing lost, nothing sent that was rolled back,
/// order kept per key.
#[derive(Parser)]
#[command(name = "postrider", version, after_help = exit::TABLE, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        // Code 2 would tell a monitoring system that all is lost; a check that is called in the wrong way knows nothing.
        Err(error) if error.use_stderr() && std::env::args_os().nth(1).is_some_and(|noun| noun == "check") => {
            // Whoever closed standard error has not asked for the words.
            let _ = error.print();
            return command::CHECK_UNKNOWN.into();
        }
        Err(error) => error.exit(),
    };
    match arguments.command.run() {
        Ok(code) => code.into(),
        Err(failure) => {
            eprintln!("{failure}");
            failure.code().into()
        }
    }
}
