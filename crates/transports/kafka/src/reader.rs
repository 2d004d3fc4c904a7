//! The thread that reads: one client in a consumer group, served as long as the subscriber lives.
//!
//! A client must be served whether or not anybody receives, or the group takes its partitions away. So when there is no room
//! for more, the thread first waits a moment for room and then pauses the partitions and goes on serving. The client keeps a
//! pause of a partition that is taken away, and would get it back paused; so what goes is resumed first, and while there is
//! room everything is resumed now and then, whatever became of the last time.
//!
//! It ends when the subscriber is closed or dropped; ending commits what may be committed and leaves the group. A
//! [commit](crate::committer) that is under way then is served to its end, because a client that nobody serves may never end
//! it.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::{Error, ErrorKind, Result, envelope::Envelope};
use rdkafka::{
    ClientContext, Message, Offset, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance},
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::BorrowedMessage,
};
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use crate::{
    context::Health,
    ending::Ending,
    error, mapping,
    offsets::{Offsets, Spot},
};

/// How long one look at the client takes if it has nothing.
const LOOK: Duration = Duration::from_millis(100);

/// How long to wait for room before the partitions are paused. What the client has fetched is thrown away by a pause.
const PAUSE_AFTER: Duration = Duration::from_secs(1);

/// How often everything is resumed while there is room, paused or not. The client drops a resume that meets the start of a
/// partition, and says that all is well; for what is not paused it does nothing.
const RESUME_EVERY: Duration = Duration::from_secs(5);

/// How many deliveries may be out or wait for later; the same for every subscriber.
const OUT_MAX: usize = 100_000;

/// The client, which ends when nobody uses it any more.
pub(crate) type Client = Ending<BaseConsumer<Receiving>>;

/// A message on its way to the caller, or out with it.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) spot: Spot,
    pub(crate) envelope: Envelope,
    pub(crate) attempt: u32,
}

/// What the thread and its subscriber share.
pub(crate) struct Shared {
    pub(crate) prefetch: usize,
    /// Only the thread keeps the way open: who receives learns when it has ended, however that was.
    sender: WeakUnboundedSender<Result<Item>>,
    pub(crate) stopped: AtomicBool,
    pub(crate) paused: AtomicBool,
    /// Whether an error waits to be received.
    told: AtomicBool,
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) offsets: Offsets,
    /// How many wait to be received.
    pub(crate) waiting: usize,
}

impl Shared {
    pub(crate) fn new(prefetch: usize, sender: &UnboundedSender<Result<Item>>) -> Self {
        let (stopped, paused, told) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let sender = sender.downgrade();
        Self { prefetch, sender, stopped, paused, told, state: Mutex::default(), room: Condvar::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was received or answered, or the subscriber is gone.
    pub(crate) fn changed(&self) {
        self.room.notify_all();
    }

    /// Puts a message where it is received from.
    pub(crate) fn hand_over(&self, item: Item) {
        self.state().waiting += 1;
        // Nobody receives any more: it is not committed, so it is not lost.
        self.send(Ok(item));
    }

    /// Puts an error where it is received from, unless one waits there: one is as good as a hundred.
    fn tell(&self, error: Error) {
        if !self.told.swap(true, Ordering::AcqRel) {
            self.send(Err(error));
        }
    }

    fn send(&self, next: Result<Item>) {
        if let Some(sender) = self.sender.upgrade() {
            drop(sender.send(next));
        }
    }

    /// An error was taken from there.
    pub(crate) fn heard(&self) {
        self.told.store(false, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether there is room for one more; waits that long for it.
    fn has_room(&self, wait: Duration) -> bool {
        let full = |state: &mut State| {
            !self.is_stopped() && (state.waiting >= self.prefetch || state.offsets.out() >= OUT_MAX)
        };
        let waited = self.room.wait_timeout_while(self.state(), wait, full);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !full(&mut state)
    }
}

/// The context of the client: what the group tells.
pub(crate) struct Receiving {
    pub(crate) shared: Arc<Shared>,
    pub(crate) health: Health,
}

impl ClientContext for Receiving {
    /// What matters comes as an error; adapters do not log.
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.health.note(&error, reason);
    }
}

impl ConsumerContext for Receiving {
    /// Partitions go: what was answered is committed while they still are ours, and what was not is somebody else's.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(gone) = rebalance else { return };
        // Or they would be paused when they come back. Nothing is fetched for it: the client itself has paused them until this
        // is over. Should it fail, they are resumed once they are back and there is room.
        drop(consumer.resume(gone));
        let gone = gone.elements();
        let gone: Vec<_> = gone.iter().map(|of| (of.topic().to_owned(), of.partition())).collect();
        let mut spots = self.shared.state().offsets.to_commit();
        spots.retain(|spot| gone.contains(&spot.place));
        // If they are lost already, another has them; a commit could only fail. The client gives nothing away before the commit
        // is answered; waiting for that here would keep it from being served.
        if !consumer.assignment_lost() {
            drop(commit(consumer, &spots, CommitMode::Async));
        }
        let mut state = self.shared.state();
        gone.iter().for_each(|place| state.offsets.lose(place));
        drop(state);
        self.shared.changed();
    }
}

/// Commits offsets. Blocks until that is answered, if asked to.
pub(crate) fn commit(consumer: &BaseConsumer<Receiving>, spots: &[Spot], mode: CommitMode) -> Result<(), KafkaError> {
    if spots.is_empty() {
        return Ok(());
    }
    let mut list = TopicPartitionList::with_capacity(spots.len());
    for spot in spots {
        list.add_partition_offset(&spot.place.0, spot.place.1, Offset::Offset(spot.offset))?;
    }
    consumer.commit(&list, mode)
}

/// Reads until the subscriber is gone or the client has failed for good, and goes on serving for a while if others still use
/// the client. While it reads, the way to whoever receives is open.
pub(crate) fn run(shared: &Shared, sender: UnboundedSender<Result<Item>>, consumer: &Arc<Client>, linger: Duration) {
    read(shared, consumer);
    drop(sender);
    let gone = Instant::now();
    while Arc::strong_count(consumer) > 1 && gone.elapsed() < linger {
        // Nobody receives it, so nobody acknowledges it: it comes again.
        drop(consumer.poll(LOOK));
    }
}

fn read(shared: &Shared, consumer: &BaseConsumer<Receiving>) {
    let (mut paused, mut resumed) = (false, Instant::now());
    while !shared.is_stopped() {
        let room = shared.has_room(if paused { Duration::ZERO } else { PAUSE_AFTER });
        // A failure leaves the partitions as they are; the next round tries again.
        if room && (paused || resumed.elapsed() >= RESUME_EVERY) {
            paused = change(consumer, BaseConsumer::resume).is_err() && paused;
            resumed = Instant::now();
        } else if !room && !paused {
            paused = change(consumer, BaseConsumer::pause).is_ok();
        }
        shared.paused.store(paused, Ordering::Release);
        match consumer.poll(LOOK) {
            Some(Ok(message)) => {
                accept(shared, &message);
                consumer.context().health.well();
                // From a partition that came meanwhile: they come as they went, which is not paused.
                paused &= room;
            }
            Some(Err(error)) => {
                // Nothing comes from such a client any more, and a subscriber that is built anew has another.
                let failed = consumer.client().fatal_error();
                if let Some(error) = tell(consumer, error) {
                    shared.tell(error);
                }
                if failed.is_some() {
                    return;
                }
            }
            None => {}
        }
    }
}

type Change = fn(&BaseConsumer<Receiving>, &TopicPartitionList) -> Result<(), KafkaError>;

/// Pauses or resumes everything that is ours.
fn change(consumer: &BaseConsumer<Receiving>, how: Change) -> Result<(), KafkaError> {
    consumer.assignment().and_then(|assignment| how(consumer, &assignment))
}

fn accept(shared: &Shared, message: &BorrowedMessage<'_>) {
    let envelope = mapping::envelope(message);
    let spot = shared.state().offsets.came(message.topic(), message.partition(), message.offset());
    shared.hand_over(Item { spot, envelope, attempt: 1 });
}

/// What the caller should know of an error. One lost connection is no news: the client has others, or makes a new one.
fn tell(consumer: &BaseConsumer<Receiving>, error: KafkaError) -> Option<Error> {
    match error.rdkafka_error_code() {
        Some(Code::BrokerTransportFailure | Code::Resolve | Code::OperationTimedOut) => None,
        Some(Code::AllBrokersDown) => {
            let cause = consumer.context().health.cause(Code::AllBrokersDown, "Kafka");
            Some(
                Error::new(ErrorKind::Unavailable, "receive from Kafka: no broker can be reached").with("cause", cause),
            )
        }
        _ => Some(error::failed("receive from Kafka", error)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::{UnboundedReceiver, error::TryRecvError, unbounded_channel};

    use super::*;

    /// While the sender is there, the way is open.
    fn shared(prefetch: usize) -> (Shared, UnboundedSender<Result<Item>>, UnboundedReceiver<Result<Item>>) {
        let (sender, receiver) = unbounded_channel();
        (Shared::new(prefetch, &sender), sender, receiver)
    }

    fn item(shared: &Shared, offset: i64) -> Item {
        let spot = shared.state().offsets.came("t", 0, offset);
        Item { spot, envelope: Envelope::new("t", "n", "x"), attempt: 1 }
    }

    #[test]
    fn there_is_room_for_as_many_as_are_read_ahead() {
        let (shared, _sender, mut receiver) = shared(2);
        assert!(shared.has_room(Duration::ZERO));
        for offset in 0..2 {
            shared.hand_over(item(&shared, offset));
        }
        assert!(!shared.has_room(Duration::ZERO));
        assert!(receiver.try_recv().is_ok());
        shared.state().waiting -= 1;
        assert!(shared.has_room(Duration::ZERO));
    }

    #[test]
    fn when_the_reader_has_ended_there_is_no_way_to_wait_on() {
        let (shared, sender, mut receiver) = shared(1);
        shared.hand_over(item(&shared, 0));
        drop(sender);
        shared.hand_over(item(&shared, 1));
        assert!(receiver.try_recv().is_ok(), "what came before it ended is received");
        assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Disconnected);
    }

    #[test]
    fn errors_do_not_heap_up_while_nobody_receives() {
        let (shared, _sender, mut receiver) = shared(1);
        for _ in 0..100 {
            shared.tell(Error::new(ErrorKind::Unavailable, "no broker can be reached"));
        }
        assert!(receiver.try_recv().unwrap().is_err());
        assert!(receiver.try_recv().is_err(), "one is as good as a hundred");
        shared.heard();
        shared.tell(Error::new(ErrorKind::Unavailable, "still none"));
        assert!(receiver.try_recv().unwrap().is_err());
    }

    #[test]
    fn a_subscriber_that_is_gone_waits_for_no_room() {
        let (shared, _sender, _receiver) = shared(1);
        shared.hand_over(item(&shared, 0));
        shared.stopped.store(true, Ordering::Release);
        assert!(shared.has_room(Duration::from_secs(3600)));
    }
}
