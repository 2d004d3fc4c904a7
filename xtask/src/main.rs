//! The workshop: everything that is done to this tree, as `cargo xtask <task>`.
//!
//! | task | does |
//! |---|---|
//! | `check` | formatting, lints, documentation, each feature alone and as somebody who has forgotten it, which C libraries it brings, tidiness |
//! | `test` | prepares what tests need, runs them and the simulator |
//! | `services` | the servers that tests need |
//! | `sim`, `bench`, `demo` | one of the programs, built the way it should run |
//!
//! Every command is printed before it runs, and the first failure ends the task with its name.

mod bench;
mod check;
mod features;
mod foreign;
mod forgotten;
mod services;
mod step;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use self::step::cargo;

/// The workshop of Postrider.
#[derive(Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Formatting, lints, documentation, each feature alone, tidiness.
    Check,
    /// Prepares what the tests need, runs all of them and the simulator.
    Test(test::Options),
    /// The servers that tests need.
    #[command(subcommand)]
    Services(services::Action),
    /// Runs the simulator.
    Sim(test::Sim),
    /// Runs a benchmark.
    Bench(bench::Options),
    /// Runs the demonstration; everything behind `--` is handed on to it.
    Demo {
        /// Arguments of `postrider demo`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    match task {
        Task::Check => check::run(),
        Task::Test(options) => test::run(&options),
        Task::Services(action) => services::run(&action),
        Task::Sim(options) => options.step().run(),
        Task::Bench(options) => bench::run(&options),
        Task::Demo { arguments } => {
            cargo("demo", &["run", "--quiet", "--release", "-p", "postrider-cli", "--", "demo"]).args(arguments).run()
        }
    }
}
