//! A relay of the demonstration: one of two that share the lanes of one route, with leases so short that a killed one is
//! soon replaced.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use postrider::{Relay, Route, ndjson::NdjsonPublisher, relay::options::Options, sqlite::SqliteStore};

use super::{PROCESSES, files::Files};
use crate::{
    daemon,
    exit::{Code, Failure, Outcome},
};

/// How long the lanes of a killed relay stand still.
const LEASE_LIFE: Duration = Duration::from_millis(1_000);

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory of the run.
    #[arg(long)]
    dir: PathBuf,
    /// Which relay this is.
    #[arg(long)]
    relay: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    daemon::log_to_stderr();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failure::because(Code::Problem, "the runtime cannot be started", &error))?;
    runtime.block_on(carry(arguments))
}

/// Ends, drained, when the parent closes this process's standard input.
async fn carry(arguments: &Arguments) -> Outcome {
    let files = Files::of(&arguments.dir);
    let store = SqliteStore::builder(files.database()).migrate(false).open().await?;
    let publisher = NdjsonPublisher::file(files.arrivals())?;
    let route = Route::new("orders", publisher).topics(["orders"]).lanes(PROCESSES);
    let options = Options {
        lease_life: LEASE_LIFE,
        heartbeat_every: LEASE_LIFE / 5,
        drain_deadline: Duration::from_secs(10),
        // Everything is left to look at.
        keep_delivered: None,
        ..Options::default()
    };
    let relay = Relay::builder(Arc::new(store))
        .node_name(format!("demo relay {}", arguments.relay))
        .route(route)
        .options(options)
        .build()?;
    let handle = relay.handle();
    std::thread::spawn(move || {
        use std::io::Read;
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        handle.drain();
    });
    relay.run().await?;
    Ok(Code::Done)
}
