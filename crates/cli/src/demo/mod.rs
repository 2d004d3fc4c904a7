//! `postrider demo`: the whole promise in one screen, under fire.
//!
//! An order service (two processes on one SQLite file) commits orders together with their messages and rolls some of them
//! back; two relays carry the messages to a file. All of these processes are killed with SIGKILL while they work, and
//! started again. At the end the verdict is computed from what two witnesses say that cannot be talked into anything: the
//! table of orders (a row is there if and only if its transaction committed) and the file of arrivals.
//!
//! ```text
//!   demo (parent) ── starts, kills, restarts ──► service 0, 1 ── orders + outbox, one transaction ──► orders.db
//!        │                                       relay 0, 1 ◄── lanes, leases ── orders.db
//!        │                                          └── publish, fsync ──► arrivals.ndjson
//!        └── verdict: orders.db against arrivals.ndjson
//! ```
//!
//! | module | part |
//! |---|---|
//! | [`files`] | what lies where |
//! | [`service`], [`relay`] | the processes |
//! | [`process`] | starting, killing, restarting them |
//! | [`kills`] | when whom to kill |
//! | [`director`] | the run itself |
//! | [`witness`], [`arrivals`] | what was committed; what arrived |
//! | [`progress`], [`report`] | what is shown meanwhile and at the end |

mod arrivals;
mod director;
mod files;
mod kills;
mod process;
mod progress;
mod relay;
mod report;
mod service;
mod witness;

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use postrider_testkit::checker;

use self::{files::Files, report::Report};
use crate::{
    exit::{Code, Outcome},
    output::OutputArguments,
};

/// Processes of each kind.
const PROCESSES: u32 = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Orders to commit.
    #[arg(long, default_value_t = 2_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    orders: u32,
    /// Processes to kill, services and relays alternately.
    #[arg(long, default_value_t = 12, value_parser = value_parser!(u32).range(0..=1_000))]
    kills: u32,
    /// Customers, whose orders must arrive in order.
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Where to leave the files: a directory that is new or empty. Default: a new one among the temporary files.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArguments,
}

/// The processes of the demonstration.
#[derive(Subcommand)]
pub(crate) enum Part {
    /// An order service.
    Service(service::Arguments),
    /// A relay.
    Relay(relay::Arguments),
}

/// Runs the demonstration. Exit code 1 if a promise was broken.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let files = Files::create(arguments.dir.as_deref())?;
    let run = director::direct(arguments, &files)?;
    let enqueued = witness::enqueued(&files)?;
    let verdict = checker::check(&enqueued, &arrivals::read(&files.arrivals())?);
    let report = Report { arguments, files: &files, run: &run, verdict: &verdict };
    arguments.output.object(|| report.json(), || format!("{report}\n"));
    Ok(if verdict.is_good() { Code::Done } else { Code::Problem })
}

/// Runs one of its processes.
pub(crate) fn run_part(part: &Part) -> Outcome {
    match part {
        Part::Service(arguments) => service::run(arguments),
        Part::Relay(arguments) => relay::run(arguments),
    }
}
