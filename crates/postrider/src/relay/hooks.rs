//! The calls of applications' functions that are under way: the hook for dead letters.
//!
//! They run beside the lanes, so that a slow one holds nothing up. A relay that stops waits for them, so that nobody has to
//! be told by a process that is just ending; not beyond the drain deadline, though, and a crash takes them with it.

use postrider_core::BoxFuture;
use tokio::sync::watch;

use crate::runtime::Runtime;

pub(super) struct Hooks(watch::Sender<usize>);

impl Default for Hooks {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Hooks {
    /// Runs a call beside everything else.
    pub(super) fn spawn(&self, runtime: &dyn Runtime, call: BoxFuture<'static, ()>) {
        let under_way = UnderWay::new(&self.0);
        runtime.spawn(Box::pin(async move {
            call.await;
            drop(under_way);
        }));
    }

    /// Resolves when none is under way.
    pub(super) async fn are_done(&self) {
        // The sender is here, so there is always an answer.
        let _ = self.0.subscribe().wait_for(|calls| *calls == 0).await;
    }
}

/// Counts a call, also one that panics or whose runtime ends.
struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    fn new(calls: &watch::Sender<usize>) -> Self {
        calls.send_modify(|calls| *calls += 1);
        Self(calls.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}
