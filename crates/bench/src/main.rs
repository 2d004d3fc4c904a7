//! `postrider-bench core [--quick] [--json]`: variants side by side in one run, as ratios, because machines are noisy.

mod core;
mod measure;
mod postgres;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures Postrider against the limits of what is below it")]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The engine, the SQLite store and the memory of a relay.
    Core {
        /// Fewer messages and rounds.
        #[arg(long)]
        quick: bool,
        /// Print one JSON object and nothing else on standard output.
        #[arg(long)]
        json: bool,
    },
    /// The PostgreSQL store against the usual queues.
    Postgres {
        /// Smaller, for a first look.
        #[arg(long)]
        quick: bool,
        /// Print one JSON object and nothing else on standard output.
        #[arg(long)]
        json: bool,
        /// Only these measurements, for example `drain`.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
    },
    /// Relays what a file holds and prints the peak resident size.
    #[command(hide = true)]
    RelayOnce {
        /// The SQLite file.
        path: PathBuf,
        /// How many messages it holds.
        messages: u64,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().bench {
        Bench::Core { quick, json } => {
            let results = core::run(quick)?;
            if json {
                println!("{results}");
            } else {
                for (name, value) in results.as_object().into_iter().flatten() {
                    println!("{name:<36} {value}");
                }
            }
            Ok(())
        }
        Bench::Postgres { quick, json, only } => {
            let results = postgres::run(quick, &only)?;
            if json {
                println!("{results}");
            } else {
                for (name, value) in results.as_object().into_iter().flatten() {
                    println!("{name:<36} {value}");
                }
            }
            Ok(())
        }
        Bench::RelayOnce { path, messages } => core::relay_once(&path, messages),
    }
}
