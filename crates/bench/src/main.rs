//! `postrider-bench core|postgres|mysql|mongodb|brokers [--quick] [--json]`: variants side by side in one run, as ratios,
//! because machines are noisy.

mod brokers;
mod core;
mod mongodb;
mod mysql;
mod postgres;

mod closed_loop;
mod goals;
mod machine;
mod measure;
mod plot;
mod relay;
mod results;
mod url;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// As in the binary: pages of messages come and go all the time, which is what it is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
        #[command(flatten)]
        options: Options,
        /// Write pictures into this directory.
        #[arg(long)]
        plots: Option<PathBuf>,
    },
    /// The store for MariaDB and MySQL against the usual claim.
    Mysql(Options),
    /// The store for MongoDB against the usual two-step claim.
    Mongodb(Options),
    /// Relaying to each broker against a bare producer.
    Brokers(Options),
    /// A relay in a process of its own.
    #[command(hide = true)]
    PostgresRelay {
        /// The schema of the store.
        schema: String,
        /// The route.
        route: String,
        /// End behind so many messages.
        #[arg(long)]
        messages: Option<u64>,
        /// Lanes of the route.
        #[arg(long, default_value_t = 1)]
        lanes: u32,
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

/// What every benchmark of servers takes.
#[derive(Args)]
struct Options {
    /// Smaller, for a first look.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object and nothing else on standard output.
    #[arg(long)]
    json: bool,
    /// Only these measurements, for example `drain`; of the brokers, only these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

fn main() -> Result<()> {
    let (results, options) = match Arguments::parse().bench {
        Bench::Postgres { options, plots } => (postgres::run(options.quick, &options.only, plots.as_deref())?, options),
        Bench::Mysql(options) => (mysql::run(options.quick, &options.only)?, options),
        Bench::Mongodb(options) => (mongodb::run(options.quick, &options.only)?, options),
        Bench::Brokers(options) => (brokers::run(options.quick, &options.only)?, options),
        Bench::Core { quick, json } => {
            let results = core::run(quick)?;
            if json {
                println!("{results}");
            } else {
                for (name, value) in results.as_object().into_iter().flatten() {
                    println!("{name:<36} {value}");
                }
            }
            return Ok(());
        }
        Bench::PostgresRelay { schema, route, messages, lanes } => {
            return postgres::relay(&schema, &route, lanes, messages);
        }
        Bench::RelayOnce { path, messages } => return core::relay_once(&path, messages),
    };
    if options.json {
        println!("{results}");
    } else {
        print!("{}", goals::table(&results));
    }
    Ok(())
}
