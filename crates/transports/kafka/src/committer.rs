//! The thread that commits: it has the group note how far everything is answered, and tells those who wait for it.
//!
//! A commit blocks, and only the client knows for how long: while no coordinator is to be found it waits for one. So it blocks
//! a thread of its own, never one that a runtime waits for when it ends; whoever acknowledges waits no longer than it wants
//! to. What was asked for meanwhile is done by the next commit, all at once.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use postrider_core::{Error, ErrorKind, Result};
use rdkafka::{
    consumer::{BaseConsumer, CommitMode},
    error::KafkaError,
};
use tokio::sync::oneshot;

use crate::{
    error,
    reader::{self, Client, Receiving, Shared},
};

type Answer = oneshot::Sender<Result<(), KafkaError>>;

/// Where commits are asked for. When it is ended or dropped, the thread ends after the commit that is under way.
pub(crate) struct Committer {
    /// `None`: it was ended.
    asked: Mutex<Option<mpsc::Sender<Answer>>>,
    patience: Duration,
}

impl Committer {
    /// Starts the thread. `patience` is how long a commit is waited for.
    pub(crate) fn start(shared: Arc<Shared>, consumer: Arc<Client>, patience: Duration) -> io::Result<Self> {
        let (asked, asking) = mpsc::channel();
        let run = move || run(&shared, &consumer, &asking);
        thread::Builder::new().name("kafka-committer".to_owned()).spawn(run)?;
        Ok(Self { asked: Mutex::new(Some(asked)), patience })
    }

    /// Takes no more commits.
    pub(crate) fn end(&self) {
        *self.asked() = None;
    }

    fn asked(&self) -> MutexGuard<'_, Option<mpsc::Sender<Answer>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what may be committed by now. If the future is dropped, that is done all the same.
    pub(crate) async fn commit(&self) -> Result<()> {
        let interrupted = || Error::new(ErrorKind::Unavailable, "the thread that commits offsets has ended");
        let (answer, answered) = oneshot::channel();
        let sent = self.asked().as_ref().map(|asked| asked.send(answer));
        sent.ok_or_else(interrupted)?.map_err(|_| interrupted())?;
        let Ok(answer) = tokio::time::timeout(self.patience, answered).await else {
            return Err(Error::new(ErrorKind::Unavailable, "commit offsets: the group's coordinator does not answer")
                .with("waited_ms", self.patience.as_millis()));
        };
        answer.map_err(|_| interrupted())?.map_err(|e| error::failed("commit offsets", e))
    }
}

fn run(shared: &Shared, consumer: &BaseConsumer<Receiving>, asking: &mpsc::Receiver<Answer>) {
    while let Ok(first) = asking.recv() {
        // They all asked before what follows is looked up.
        let waiting: Vec<Answer> = std::iter::once(first).chain(asking.try_iter()).collect();
        let spots = shared.state().offsets.to_commit();
        let answer = reader::commit(consumer, &spots, CommitMode::Sync);
        if answer.is_ok() {
            shared.state().offsets.committed(&spots);
        }
        for waits in waiting {
            // It has given up waiting, or is gone.
            drop(waits.send(answer.clone()));
        }
    }
}
