//! The commands, one file each. They are thin: what an operator may do is [`StoreAdmin`](postrider::core::admin::StoreAdmin).

mod audit;
mod bench;
mod capture;
mod check;
mod completions;
mod config;
mod dead;
mod doctor;
mod enqueue;
mod envelope;
mod init;
mod key;
mod lease;
mod message;
mod migrate;
mod names;
mod node;
mod reference;
mod replay;
mod route;
mod run;
mod status;
mod store;
mod tail;
mod top;
mod version;
mod why;

use std::future::Future;

use clap::Subcommand;

pub(crate) use self::check::UNKNOWN as CHECK_UNKNOWN;
use crate::{
    demo,
    exit::{Code, Failure, Outcome},
};

/// What can be asked of the binary, in the order in which people meet it.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Shows the whole of it in a minute: orders are committed, processes are killed, nothing is lost.
    Demo(demo::Arguments),
    /// Writes a commented configuration for a store and a transport.
    Init(init::Arguments),
    /// Runs the relay daemon.
    Run(run::Arguments),
    /// The configuration file.
    #[command(subcommand)]
    Config(config::Action),
    /// The schema of a store.
    #[command(subcommand)]
    Migrate(migrate::Action),
    /// How the routes are doing.
    Status(status::Arguments),
    /// How the routes are doing, again and again. Prints once where there is no terminal.
    Top(top::Arguments),
    /// What the log gets, what is refused and what dies, as it happens.
    Tail(tail::Arguments),
    /// One line and a code for a monitoring system, or metrics for a text file.
    Check(check::Arguments),
    /// Why a message waits, and what to do about it.
    Why(why::Arguments),
    /// What is wrong with the store or below it, and what to do about it. Exit code 1 if something does not work.
    Doctor(doctor::Arguments),
    /// Messages: what is in the log, where one is, and what has happened to it.
    #[command(subcommand)]
    Message(message::Action),
    /// Messages that were given up.
    #[command(subcommand)]
    Dead(dead::Action),
    /// Keys that stand still because their head was given up.
    #[command(subcommand)]
    Key(key::Action),
    /// Routes: how they stand, pausing, draining, trying out, forgetting.
    #[command(subcommand)]
    Route(route::Action),
    /// Delivers again what was delivered.
    Replay(Box<replay::Arguments>),
    /// Relays that are alive, and how one is asked to leave.
    #[command(subcommand)]
    Node(node::Action),
    /// Who may act on which lane.
    #[command(subcommand)]
    Lease(lease::Action),
    /// Who did what, when and why.
    #[command(subcommand)]
    Audit(audit::Action),
    /// Enqueues one message in a transaction of its own.
    Enqueue(enqueue::Arguments),
    /// Makes messages of the changes of a table.
    #[command(subcommand)]
    Capture(capture::Action),
    /// How much this machine and a store can do, in a bounded load of its own.
    Bench(bench::Arguments),
    /// Writes a script that completes commands for a shell.
    Completions(completions::Arguments),
    /// Which version this is.
    Version(version::Arguments),
    /// Prints the page of the documentation that lists all commands.
    #[command(hide = true)]
    Reference,
    /// A process of the demonstration.
    #[command(hide = true, subcommand)]
    DemoPart(demo::Part),
}

impl Command {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Demo(arguments) => demo::run(&arguments),
            Self::Init(arguments) => init::run(&arguments),
            Self::Run(arguments) => run::run(&arguments),
            Self::Config(action) => config::run(&action),
            Self::Migrate(action) => migrate::run(&action),
            Self::Status(arguments) => block_on(status::run(&arguments)),
            Self::Top(arguments) => block_on(top::run(&arguments)),
            Self::Tail(arguments) => block_on(tail::run(&arguments)),
            Self::Check(arguments) => block_on(check::run(&arguments)),
            Self::Why(arguments) => block_on(why::run(&arguments)),
            Self::Doctor(arguments) => block_on(doctor::run(&arguments)),
            Self::Message(action) => block_on(message::run(&action)),
            Self::Dead(action) => block_on(dead::run(&action)),
            Self::Key(action) => block_on(key::run(&action)),
            Self::Route(action) => block_on(route::run(&action)),
            Self::Replay(arguments) => block_on(replay::run(&arguments)),
            Self::Node(action) => block_on(node::run(&action)),
            Self::Lease(action) => block_on(lease::run(&action)),
            Self::Audit(action) => block_on(audit::run(&action)),
            Self::Enqueue(arguments) => block_on(enqueue::run(&arguments)),
            Self::Capture(action) => block_on(capture::run(&action)),
            Self::Bench(arguments) => block_on(bench::run(&arguments)),
            Self::Reference => reference::run(),
            Self::Completions(arguments) => completions::run(&arguments),
            Self::Version(arguments) => version::run(&arguments),
            Self::DemoPart(part) => demo::run_part(&part),
        }
    }
}

/// Runs a command that talks to a store. One thread is enough: the store has its own.
fn block_on(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::because(Code::Problem, "the runtime cannot be started", &error))?;
    let outcome = runtime.block_on(command);
    // What a command was told to break off must not keep the process.
    runtime.shutdown_background();
    outcome
}
