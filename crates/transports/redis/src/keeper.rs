//! What keeps entries that wait with a subscriber from being taken over: a task that says now and then that they are not left
//! lying.
//!
//! Other consumers of the group take over what has been idle for `claim_after`. To Redis an entry is idle from the moment at which
//! it was read, also while it waits here to be received, or for the time until which it was rejected. So as long as this subscriber
//! lives, it claims what waits for itself, several times within `claim_after`. That does not count as a delivery. What is out with
//! the caller is left alone: if it stays there for too long, another consumer is welcome to it.

use std::{sync::Arc, time::Duration};

use postrider_core::Result;
use redis::{Cmd, cmd};
use tokio::time::sleep;

use crate::{
    connect::{Connection, Using},
    reader::ask,
    subscriber::Shared,
};

/// How often within `claim_after`: one that is late or gets lost does no harm.
const TIMES: u32 = 3;
/// No more often than this, however short `claim_after` is.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// How many entries one command names.
const AT_ONCE: usize = 1_000;

/// Keeps what waits with the subscriber, until the task is aborted.
pub(crate) async fn run(shared: Arc<Shared>, connection: Arc<Connection>) {
    let every = (shared.claim_after / TIMES).max(EVERY_MIN);
    loop {
        sleep(every).await;
        let commands = commands(&shared);
        if commands.is_empty() {
            continue;
        }
        // Without a connection the reader tells of it; what others take over meanwhile both handle.
        let Ok(mut using) = connection.get().await else { continue };
        if keep(&mut using, commands).await.is_err() {
            connection.lost(&using).await;
        }
    }
}

async fn keep(using: &mut Using, commands: Vec<Cmd>) -> Result<()> {
    for command in commands {
        ask(using, &command).await?;
    }
    Ok(())
}

/// What has to be said. An entry that was acknowledged meanwhile is not pending, and is not made so again.
fn commands(shared: &Shared) -> Vec<Cmd> {
    let mut commands = Vec::new();
    for (index, stream) in shared.streams.iter().enumerate() {
        let ids = shared.state().waiting(index);
        for ids in ids.chunks(AT_ONCE) {
            let mut claim = cmd("XCLAIM");
            claim.arg(stream).arg(&shared.group).arg(&shared.consumer).arg(0).arg(ids).arg("JUSTID");
            commands.push(claim);
        }
    }
    commands
}
