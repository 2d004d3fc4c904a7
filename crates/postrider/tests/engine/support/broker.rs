//! A destination that does as a test tells it, and remembers everything.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use postrider::{
    Outcome,
    core::{
        BoxFuture, Result,
        capability::PublisherCapabilities,
        log::{Record, RecordRef},
        parked::Cause,
        transport::Publisher,
    },
};
use tokio::sync::watch;

type Verdict = Box<dyn FnMut(&Record) -> Outcome + Send>;

/// Which messages wait inside the broker, without an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stuck {
    Nothing,
    Everything,
    /// Those of this key, and what rides in the same batch.
    Key(&'static str),
}

/// Clones are the same broker.
#[derive(Clone)]
pub(crate) struct Broker(Arc<State>);

struct State {
    run_max: u32,
    verdict: Mutex<Verdict>,
    stuck: watch::Sender<Stuck>,
    tried: Mutex<Vec<RecordRef>>,
    arrived: Mutex<Vec<RecordRef>>,
    batches: Mutex<Vec<Vec<String>>>,
    held: AtomicUsize,
    held_most: AtomicUsize,
    held_bytes: AtomicUsize,
    held_bytes_most: AtomicUsize,
    closed: AtomicU32,
    reopened: AtomicU32,
}

impl Broker {
    /// Takes everything, one message of a key at a time.
    pub(crate) fn new() -> Self {
        Self::with_runs(1)
    }

    /// Takes so many messages of one key in a batch.
    pub(crate) fn with_runs(run_max: u32) -> Self {
        Self(Arc::new(State {
            run_max,
            verdict: Mutex::new(Box::new(|_| Outcome::Durable)),
            stuck: watch::Sender::new(Stuck::Nothing),
            tried: Mutex::default(),
            arrived: Mutex::default(),
            batches: Mutex::default(),
            held: AtomicUsize::default(),
            held_most: AtomicUsize::default(),
            held_bytes: AtomicUsize::default(),
            held_bytes_most: AtomicUsize::default(),
            closed: AtomicU32::default(),
            reopened: AtomicU32::default(),
        }))
    }

    /// What becomes of each message from now on. Only what is `Durable` arrives.
    pub(crate) fn answer(&self, verdict: impl FnMut(&Record) -> Outcome + Send + 'static) {
        *self.0.verdict.lock().unwrap() = Box::new(verdict);
    }

    /// Rejects these, and takes the rest.
    pub(crate) fn reject(&self, labels: &'static [&'static str]) {
        self.answer(move |record| match labels.contains(&label(record).as_str()) {
            true => rejected("refused"),
            false => Outcome::Durable,
        });
    }

    /// Takes everything again.
    pub(crate) fn accept(&self) {
        self.answer(|_| Outcome::Durable);
    }

    pub(crate) fn stick(&self, stuck: Stuck) {
        self.0.stuck.send_replace(stuck);
    }

    /// What arrived, in the order of arriving.
    pub(crate) fn arrived(&self) -> Vec<String> {
        self.0.arrived.lock().unwrap().iter().map(|record| label(record)).collect()
    }

    /// What arrived of one key.
    pub(crate) fn arrived_of(&self, key: &str) -> Vec<String> {
        self.arrived().into_iter().filter(|label| label.starts_with(key)).collect()
    }

    pub(crate) fn has(&self, label: &str) -> bool {
        self.arrived().iter().any(|arrived| arrived == label)
    }

    /// What arrived, whole.
    pub(crate) fn records(&self) -> Vec<RecordRef> {
        self.0.arrived.lock().unwrap().clone()
    }

    /// How often a message was handed over, whatever became of it.
    pub(crate) fn tries(&self, wanted: &str) -> usize {
        self.tried().iter().filter(|tried| *tried == wanted).count()
    }

    /// Everything that was ever handed over, in that order.
    pub(crate) fn tried(&self) -> Vec<String> {
        self.0.tried.lock().unwrap().iter().map(|record| label(record)).collect()
    }

    /// The batches that were handed over.
    pub(crate) fn batches(&self) -> Vec<Vec<String>> {
        self.0.batches.lock().unwrap().clone()
    }

    /// Messages that are inside the broker now.
    pub(crate) fn held(&self) -> usize {
        self.0.held.load(Ordering::SeqCst)
    }

    /// The most messages that ever were, and the most bytes.
    pub(crate) fn held_most(&self) -> (usize, usize) {
        (self.0.held_most.load(Ordering::SeqCst), self.0.held_bytes_most.load(Ordering::SeqCst))
    }

    pub(crate) fn closed(&self) -> u32 {
        self.0.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn reopened(&self) -> u32 {
        self.0.reopened.load(Ordering::SeqCst)
    }

    async fn take(&self, batch: Vec<RecordRef>) -> Vec<Outcome> {
        self.0.tried.lock().unwrap().extend(batch.iter().cloned());
        self.0.batches.lock().unwrap().push(batch.iter().map(|record| label(record)).collect());
        let _held = Held::new(&self.0, &batch);
        let waits = |stuck: &Stuck| match stuck {
            Stuck::Nothing => false,
            Stuck::Everything => true,
            Stuck::Key(key) => batch.iter().any(|record| label(record).starts_with(key)),
        };
        // No real destination answers at once.
        tokio::task::yield_now().await;
        self.0.stuck.subscribe().wait_for(|stuck| !waits(stuck)).await.expect("the broker is still here");
        let mut stopped = None;
        let answer = batch.iter().map(|record| {
            if record.key.is_some() && record.key == stopped {
                return Outcome::Unknown(cause("behind a failure"));
            }
            let outcome = (self.0.verdict.lock().unwrap())(record);
            match outcome {
                Outcome::Durable => self.0.arrived.lock().unwrap().push(record.clone()),
                _ => stopped = record.key,
            }
            outcome
        });
        answer.collect()
    }
}

impl Publisher for Broker {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "test",
            run_max: self.0.run_max,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        Box::pin(self.take(batch))
    }

    fn reopen(&self) {
        self.0.reopened.fetch_add(1, Ordering::SeqCst);
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.closed.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Counts what is inside the broker, also if the publish is given up.
struct Held<'a>(&'a State, usize, usize);

impl<'a> Held<'a> {
    fn new(state: &'a State, batch: &[RecordRef]) -> Self {
        let bytes = batch.iter().map(|record| record.envelope.weight()).sum();
        let held = state.held.fetch_add(batch.len(), Ordering::SeqCst) + batch.len();
        let held_bytes = state.held_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        state.held_most.fetch_max(held, Ordering::SeqCst);
        state.held_bytes_most.fetch_max(held_bytes, Ordering::SeqCst);
        Self(state, batch.len(), bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(self.1, Ordering::SeqCst);
        self.0.held_bytes.fetch_sub(self.2, Ordering::SeqCst);
    }
}

pub(crate) fn label(record: &Record) -> String {
    String::from_utf8_lossy(&record.envelope.payload).into_owned()
}

pub(crate) fn cause(code: &str) -> Cause {
    Cause::new(code, "as the test wants it")
}

pub(crate) fn rejected(code: &str) -> Outcome {
    Outcome::Rejected(cause(code))
}
