//! `postgres`: the PostgreSQL store against the usual queues on the same server, in the same run.

mod drain;
mod fixtures;
mod references;
mod server;

use anyhow::Result;
use serde_json::{Value, json};

use self::server::Server;

/// How much of everything.
pub(crate) struct Sizes {
    quick: bool,
    rounds: usize,
    backlog: u64,
}

impl Sizes {
    fn new(quick: bool) -> Self {
        if quick { Self { quick, rounds: 3, backlog: 200_000 } } else { Self { quick, rounds: 5, backlog: 500_000 } }
    }
}

pub(crate) fn run(quick: bool, only: &[String]) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let server = Server::connect().await?;
        let results = measure(&server, &Sizes::new(quick), only).await;
        server.tidy().await?;
        results
    })
}

async fn measure(server: &Server, sizes: &Sizes, only: &[String]) -> Result<Value> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|wanted| wanted == name);
    let watch = server.watch();
    let mut results = json!({ "quick": sizes.quick, "rounds": sizes.rounds });
    if wanted("drain") {
        merge(&mut results, drain::run(server, sizes.backlog, sizes.rounds).await?);
    }
    results["foreign_load_cores"] = json!(server.foreign_cores(&watch));
    Ok(results)
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}
