//! The subscriber: one consumer of a group, over one or more streams.
//!
//! A [reader](crate::reader) fetches ahead, up to a bound, into a channel that outlives a `receive`, so a `receive` that is
//! dropped takes nothing with it. There is a bound, too, for everything that is not done with, or a caller that rejects all for
//! later would have the whole stream in memory. What is neither acknowledged nor rejected stays pending in Redis: the next
//! subscriber of the same name gets it at once, any other of the group when it has been idle for `claim_after`. What has not
//! been received yet, or waits for later, is [kept](crate::keeper) from being idle.
//!
//! Entries of one stream are received in order by a group with one consumer. Several consumers share the entries, which
//! leaves no order over keys; so does a key whose messages go to several streams. One that was rejected for later comes
//! behind what follows it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex as StdMutex, MutexGuard},
    time::Duration,
};

use postrider_core::{
    BoxFuture, Error, ErrorKind, Result,
    envelope::Envelope,
    transport::{Delivery, Receipt, Requeue, Subscriber},
};
use redis::{Cmd, Pipeline, cmd};
use tokio::{
    sync::{Mutex, Notify, mpsc},
    task::{JoinHandle, JoinSet},
};

use crate::{
    access::Access,
    connect::{Connection, Using},
    keeper, reader,
};

/// Settings of a [`RedisSubscriber`].
#[derive(Clone, Debug)]
pub struct SubscriberBuilder {
    access: Access,
    group: String,
    streams: Vec<String>,
    consumer: String,
    prefetch: usize,
    out_max: usize,
    claim_after: Duration,
    timeout: Duration,
    declare: bool,
}

/// How many entries a subscriber has at most, unless it is told otherwise.
const OUT_MAX: usize = 100_000;

impl SubscriberBuilder {
    /// What this subscriber is called in its group. Default `postrider`. Two that live at the same time need two names; one
    /// that comes after a crash should have the name of the one before, so that it gets at once what that one had.
    #[must_use]
    pub fn consumer(mut self, name: &str) -> Self {
        self.consumer = name.to_owned();
        self
    }

    /// How many entries are fetched ahead at most, but no fewer than there are streams. Default 256.
    #[must_use]
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = prefetch.max(1);
        self
    }

    /// How many entries this subscriber may have: fetched ahead, out with the caller, or waiting for later. Default 100 000, and
    /// no fewer than are fetched ahead. All of them are in memory. When it has so many, nothing more is read before some are
    /// acknowledged or rejected for good.
    #[must_use]
    pub fn out_max(mut self, max: usize) -> Self {
        self.out_max = max;
        self
    }

    /// How long an entry may be pending, with whomever, before it is taken over. Default 60 s. If it is shorter than
    /// another consumer of the group takes to handle what it has received, both handle the message. What waits with a
    /// subscriber to be received, or for later, it keeps from others, if they all have the same `claim_after`.
    #[must_use]
    pub fn claim_after(mut self, idle: Duration) -> Self {
        self.claim_after = idle.max(Duration::from_millis(1));
        self
    }

    /// How long an answer may take. Default 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes the group, and the streams, where there are none; a new group begins with the oldest entry.
    #[must_use]
    pub fn declare(mut self) -> Self {
        self.declare = true;
        self
    }

    /// Connects, and begins to read.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] without a stream, [`ErrorKind::Unavailable`] if there is no connection,
    /// [`ErrorKind::NotFound`] if there is no such group.
    pub async fn subscribe(self) -> Result<RedisSubscriber> {
        if self.streams.is_empty() {
            return Err(Error::invalid("a subscriber needs at least one stream"));
        }
        let prefetch = self.prefetch.max(self.streams.len());
        let (sender, receiver) = mpsc::channel(prefetch);
        let commands = Connection::new(&self.access, self.timeout)?;
        let blocking = Connection::new(&self.access, self.timeout + reader::BLOCK)?;
        let shared = Arc::new(Shared {
            group: self.group,
            streams: self.streams,
            consumer: self.consumer,
            prefetch,
            out_max: self.out_max.max(prefetch),
            claim_after: self.claim_after,
            declare: self.declare,
            sender: sender.downgrade(),
            state: StdMutex::default(),
            finished: Notify::new(),
        });
        let mut using = connected(&commands).await?;
        shared.declare(&mut using).await?;
        for stream in &shared.streams {
            reader::ask(&mut using, cmd("XPENDING").arg(stream).arg(&shared.group)).await?;
        }
        let commands = Arc::new(commands);
        let reading = tokio::spawn(reader::run(Arc::clone(&shared), sender, blocking));
        let keeping = tokio::spawn(keeper::run(Arc::clone(&shared), Arc::clone(&commands)));
        let (receiver, later) = (Mutex::new(receiver), StdMutex::default());
        Ok(RedisSubscriber { shared, commands, receiver, later, reading, keeping })
    }
}

/// Receives as one consumer of a group.
///
/// **Order.** A group with one consumer receives the entries of one stream in their order, also through lost connections and
/// after a restart under the same [name](SubscriberBuilder::consumer). There is no order over keys where several consumers share
/// a group, nor of a key whose messages go to several streams, nor between a message that was rejected for later and what
/// follows it: that comes first. What one consumer has left behind another takes over after
/// [`claim_after`](SubscriberBuilder::claim_after), when it may have received what is newer.
///
/// **Answers.** What is neither acknowledged nor rejected stays pending under the consumer's name: the next subscriber of that
/// name gets it at once. What is rejected for good is acknowledged, because Redis has no place for dead letters; the entry stays
/// in its stream.
///
/// When it is dropped, what it has fetched ahead stays pending as well, and nothing is lost.
pub struct RedisSubscriber {
    shared: Arc<Shared>,
    commands: Arc<Connection>,
    receiver: Mutex<mpsc::Receiver<Result<Item>>>,
    /// What was rejected for later waits here; in Redis it is pending all the while.
    later: StdMutex<JoinSet<()>>,
    reading: JoinHandle<()>,
    keeping: JoinHandle<()>,
}

/// What the reader and its subscriber share.
pub(crate) struct Shared {
    pub(crate) group: String,
    pub(crate) streams: Vec<String>,
    pub(crate) consumer: String,
    pub(crate) prefetch: usize,
    out_max: usize,
    pub(crate) claim_after: Duration,
    declare: bool,
    /// Only the reader keeps the way open: who receives learns when it has ended, however that was.
    pub(crate) sender: mpsc::WeakSender<Result<Item>>,
    state: StdMutex<State>,
    /// Entries are done with; for the reader, which may wait for that.
    finished: Notify,
}

/// An entry on its way to the caller, or out with it.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) stream: usize,
    pub(crate) id: String,
    pub(crate) envelope: Envelope,
    pub(crate) attempt: u32,
}

#[derive(Default)]
pub(crate) struct State {
    last: u64,
    /// Out with the caller.
    out: BTreeMap<u64, Item>,
    /// Everything that this subscriber has, by stream and id: in the channel, out, or waiting for later.
    known: HashSet<(usize, String)>,
    /// While the reader looks through what is pending: what was finished meanwhile, which it may have read just before.
    finished: Option<HashSet<(usize, String)>>,
}

impl State {
    /// Notes an entry; `false` if it is noted already, or was finished since the reader [looks](Self::look).
    pub(crate) fn know(&mut self, stream: usize, id: &str) -> bool {
        !self.knows(stream, id) && self.known.insert((stream, id.to_owned()))
    }

    /// Whether an entry is noted, or was finished since the reader looks.
    pub(crate) fn knows(&self, stream: usize, id: &str) -> bool {
        let entry = (stream, id.to_owned());
        self.known.contains(&entry) || self.finished.as_ref().is_some_and(|finished| finished.contains(&entry))
    }

    /// The ids of what waits here of a stream: to be received, or for later.
    pub(crate) fn waiting(&self, stream: usize) -> Vec<String> {
        let out: HashSet<&str> =
            self.out.values().filter(|item| item.stream == stream).map(|item| item.id.as_str()).collect();
        let known = self.known.iter().filter(|(of, id)| *of == stream && !out.contains(id.as_str()));
        known.map(|(_, id)| id.clone()).collect()
    }

    /// An entry is done with.
    pub(crate) fn forget(&mut self, stream: usize, id: &str) {
        let entry = (stream, id.to_owned());
        self.known.remove(&entry);
        if let Some(finished) = &mut self.finished {
            finished.insert(entry);
        }
    }

    /// From now on the reader looks through what is pending. What was finished before, the server does not show it any more.
    pub(crate) fn look(&mut self) {
        self.finished = Some(HashSet::new());
    }

    /// What the reader has looked up is handed over.
    pub(crate) fn looked(&mut self) {
        self.finished = None;
    }

    fn hand_out(&mut self, item: Item) -> Delivery {
        self.last += 1;
        let delivery = Delivery { envelope: item.envelope.clone(), receipt: Receipt(self.last), attempt: item.attempt };
        self.out.insert(self.last, item);
        delivery
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked with the deliveries in hand")
    }

    /// The way to whoever receives. The reader itself keeps it open.
    pub(crate) fn sender(&self) -> Result<mpsc::Sender<Result<Item>>> {
        self.sender
            .upgrade()
            .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the reader of this subscriber has ended"))
    }

    /// Waits until there is room for half of what may be fetched ahead, and for an entry of each stream at least. How many
    /// entries there is room for; nobody else fills it.
    pub(crate) async fn room(&self) -> Result<usize> {
        let wanted = (self.prefetch / 2).max(self.streams.len());
        let gone = |_| Error::new(ErrorKind::Other, "nobody receives any more");
        let sender = self.sender()?;
        drop(sender.reserve_many(wanted).await.map_err(gone)?);
        // Only the reader notes entries, so what is below the limit stays so.
        loop {
            let below = self.out_max.saturating_sub(self.state().known.len());
            if below >= self.streams.len() {
                return Ok(below.min(sender.capacity()));
            }
            self.finished.notified().await;
        }
    }

    /// The beginning of a read in the group's name, of so many entries of each stream at most.
    pub(crate) fn read_group(&self, count: usize) -> Cmd {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.group).arg(&self.consumer).arg("COUNT").arg(count);
        command
    }

    /// Makes groups and streams, if that was asked for. A group that is there is left as it is.
    pub(crate) async fn declare(&self, using: &mut Using) -> Result<()> {
        if !self.declare {
            return Ok(());
        }
        for stream in &self.streams {
            let mut command = cmd("XGROUP");
            command.arg("CREATE").arg(stream).arg(&self.group).arg("0").arg("MKSTREAM");
            match command.query_async::<()>(&mut using.connection).await {
                Err(error) if error.code() != Some("BUSYGROUP") => {
                    return Err(reader::failed("make the consumer group", error).with("stream", stream));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl RedisSubscriber {
    /// Sets up a subscriber of a group over these streams.
    #[must_use]
    pub fn builder<S: AsRef<str>>(
        access: Access,
        group: &str,
        streams: impl IntoIterator<Item = S>,
    ) -> SubscriberBuilder {
        SubscriberBuilder {
            access,
            group: group.to_owned(),
            streams: streams.into_iter().map(|stream| stream.as_ref().to_owned()).collect(),
            consumer: "postrider".to_owned(),
            prefetch: 256,
            out_max: OUT_MAX,
            claim_after: Duration::from_mins(1),
            timeout: Duration::from_secs(10),
            declare: false,
        }
    }

    /// Says to Redis that entries are done with, then forgets them. What fails stays out, and can be acknowledged again.
    async fn finish(&self, receipts: &[Receipt]) -> Result<()> {
        let items: Vec<(u64, usize, String)> = {
            let state = self.shared.state();
            let found = receipts.iter().filter_map(|receipt| Some((receipt.0, state.out.get(&receipt.0)?)));
            found.map(|(receipt, item)| (receipt, item.stream, item.id.clone())).collect()
        };
        if items.is_empty() {
            return Ok(());
        }
        let mut pipeline = Pipeline::new();
        for (index, stream) in self.shared.streams.iter().enumerate() {
            let ids: Vec<&String> = items.iter().filter(|(_, of, _)| *of == index).map(|(_, _, id)| id).collect();
            if !ids.is_empty() {
                pipeline.cmd("XACK").arg(stream).arg(&self.shared.group).arg(ids).ignore();
            }
        }
        let mut using = connected(&self.commands).await?;
        if let Err(error) = pipeline.exec_async(&mut using.connection).await {
            // Whatever it was: a server that has become a replica says no for ever, and the address may lead to another by now.
            self.commands.lost(&using).await;
            return Err(reader::failed("acknowledge deliveries", error));
        }
        let mut state = self.shared.state();
        for (receipt, stream, id) in items {
            state.out.remove(&receipt);
            state.forget(stream, &id);
        }
        drop(state);
        self.shared.finished.notify_one();
        Ok(())
    }
}

async fn connected(connection: &Connection) -> Result<Using> {
    let cannot = |cause| Error::new(ErrorKind::Unavailable, "connect to Redis").with("cause", cause);
    connection.get().await.map_err(cannot)
}

impl Subscriber for RedisSubscriber {
    fn receive(&self, max: u32) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            let mut receiver = self.receiver.lock().await;
            let ended = || Error::new(ErrorKind::Unavailable, "the reader of this subscriber has ended");
            let first = receiver.recv().await.ok_or_else(ended)??;
            // From here on nothing waits, so nothing that was taken can be lost. An error that comes behind will come again.
            let mut taken = vec![first];
            while taken.len() < max.max(1) as usize {
                match receiver.try_recv() {
                    Ok(Ok(item)) => taken.push(item),
                    _ => break,
                }
            }
            let mut state = self.shared.state();
            Ok(taken.into_iter().map(|item| state.hand_out(item)).collect())
        })
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.finish(&receipts).await })
    }

    /// For later: it stays pending in Redis and waits here. If this subscriber ends before, the next one gets it.
    fn reject(&self, receipt: Receipt, requeue: Requeue) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let Requeue::After(wait) = requeue else { return self.finish(&[receipt]).await };
            let Some(item) = self.shared.state().out.remove(&receipt.0) else { return Ok(()) };
            let again = Item { attempt: item.attempt.saturating_add(1), ..item };
            let sender = self.shared.sender.clone();
            let mut later = self.later.lock().expect("nobody panicked with what comes later in hand");
            while later.try_join_next().is_some() {}
            later.spawn(async move {
                tokio::time::sleep(wait).await;
                // Nobody receives any more: it is pending, so it is not lost.
                if let Some(sender) = sender.upgrade() {
                    drop(sender.send(Ok(again)).await);
                }
            });
            Ok(())
        })
    }
}

impl Drop for RedisSubscriber {
    fn drop(&mut self) {
        self.reading.abort();
        self.keeping.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_finished_while_the_reader_looks_is_not_noted_anew() {
        let mut state = State::default();
        assert!(state.know(0, "1-0") && state.know(0, "2-0"));
        assert!(!state.know(0, "1-0"), "it is here already");
        state.look();
        state.forget(0, "1-0");
        assert!(!state.know(0, "1-0"), "the reader has read it before it was acknowledged");
        assert!(state.know(1, "1-0"), "another stream's is another one");
        state.looked();
        assert!(state.know(0, "1-0"), "later the server says who has it");
    }

    #[test]
    fn what_waits_is_what_is_here_and_not_out() {
        let mut state = State::default();
        assert!(state.know(0, "1-0") && state.know(1, "2-0"));
        assert_eq!(state.waiting(0), ["1-0"]);
        let item = Item { stream: 0, id: "1-0".to_owned(), envelope: Envelope::new("t", "n", "x"), attempt: 1 };
        let delivery = state.hand_out(item);
        assert!(state.waiting(0).is_empty(), "it is out");
        assert_eq!(state.waiting(1), ["2-0"], "and the other is not");
        state.out.remove(&delivery.receipt.0);
        assert_eq!(state.waiting(0), ["1-0"], "it waits for later");
    }
}
