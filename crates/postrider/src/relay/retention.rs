//! Retention: removes what every route has passed, once it is old enough.
//!
//! It runs beside the heartbeats and never before one: a store may take its time over a purge, and a lease must not run out
//! over it. How much is removed, and what may be, is the store's to know; this only asks, again and again.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{events::Event, lane::ticks, supervisor::Context};

/// Asks the store to purge every so often, until the other end of `stopped` is dropped; a purge that is under way then is done or
/// not done. A task of its own: one that was only looked at between heartbeats would keep its locks while they wait for them.
pub(super) async fn run(context: Arc<Context>, stopped: oneshot::Receiver<()>) {
    tokio::select! {
        biased;
        _ = stopped => {}
        () = again_and_again(&context) => {}
    }
}

async fn again_and_again(context: &Context) {
    let every = ticks(context.options.purge_every);
    loop {
        context.sleep_until(context.now().saturating_add(every)).await;
        purge(context).await;
    }
}

/// Ends when nothing is left to remove, or with an error. However much comes, as much is taken off: a number of rounds would be
/// a rate above which the log grows for ever.
async fn purge(context: &Context) {
    loop {
        match context.log.purge(context.options.retention()).await {
            Ok(0) => return,
            Ok(records) => context.observer.observe(&Event::Purged { records }),
            Err(error) => return context.failed("purge", &error),
        }
    }
}
