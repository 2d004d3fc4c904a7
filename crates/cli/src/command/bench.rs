//! `postrider bench`: how much this machine and this store can do, in a bounded load of its own.
//!
//! Where no store is named it uses a SQLite file of its own and removes it. On a given store it uses a topic and a route of its
//! own, `postrider.bench` and `postrider-bench`, refuses to run where another route would read that topic, and forgets the
//! route at the end, also when it is broken off; its records stay in the log until the retention of its own relay removes them,
//! and no start is refused for their topic. It removes nothing. Nothing leaves the process. What it does to the store is in the
//! audit record: its messages as one entry, in the transaction of the first of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::Args;
use postrider::{
    Envelope, MessageId, Outcome as Published, Relay, Route,
    core::{
        BoxFuture,
        admin::{Actor, StoreAdmin, Undelivered},
        capability::PublisherCapabilities,
        lease::Start,
        limits::Limits,
        log::RecordRef,
        topic::TopicFilter,
        transport::Publisher,
    },
    relay::options::Options,
};
use serde_json::{Value, json};

use super::store::{ActorArguments, StoreArguments};
use crate::{
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    progress::Progress,
    registry::{self, Place, StoreAdapter},
    signals::Stop,
    table::Table,
    topics, values,
};

const TOPIC: &str = topics::OF_BENCH;
const ROUTE: &str = "postrider-bench";

/// Messages that are sent one by one, for the latency.
const SINGLE: usize = 100;

/// No step takes longer than this.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Args)]
#[command(
    after_help = "Without --store, --config and --store-name it measures a SQLite file of its own, which is removed."
)]
pub(crate) struct Arguments {
    /// How many messages.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    messages: u32,
    /// How many of them one transaction enqueues.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    batch: u32,
    /// Over how many keys they are spread.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// How large each payload is.
    #[arg(long, value_name = "SIZE", default_value = "256B", value_parser = values::size)]
    payload: usize,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// What was measured.
struct Figures {
    enqueue: Duration,
    drain: Duration,
    /// Sorted.
    latencies: Vec<Duration>,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let scratch = Scratch::new(arguments)?;
    let (adapter, place) = scratch.find(arguments)?;
    let own = !arguments.store.is_said();
    let opened = adapter.open(&place, own).await?;
    refuse_readers(&*opened.admin).await?;
    let witness = Arc::new(Witness::default());
    let route = Route::to(ROUTE, Arc::clone(&witness) as _).topics([TOPIC]).start(Start::Now);
    let relay = Relay::builder(opened.log).options(options()).node_name("bench").route(route).build()?;
    let handle = relay.handle();
    // A route that is left behind would keep every record from retention: whoever loses patience must not leave one.
    let mut signals = Stop::install()?;
    let running = tokio::spawn(relay.run());
    let measured = tokio::select! {
        measured = measure(arguments, &*opened.admin, adapter, &place, &witness) => measured,
        () = signals.next() => Err(Failure::new(Code::Problem, "the benchmark was broken off; its route is forgotten")),
    };
    let clean_up = async {
        handle.drain();
        let ended = running.await;
        let actor = arguments.actor("the benchmark is over");
        (ended, opened.admin.forget_route(ROUTE, Undelivered::GiveUp, &actor).await)
    };
    let (ended, forgotten) = tokio::select! {
        done = clean_up => done,
        () = signals.next() => {
            let left = format!("broken off at once; its route is left: postrider route forget {ROUTE} --yes");
            return Err(Failure::new(Code::Problem, left));
        }
    };
    let figures = measured?;
    ended.map_err(|error| Failure::because(Code::Problem, "the relay has failed", &error))??;
    forgotten?;
    let store = if own { "a SQLite file of its own" } else { "the given store" };
    arguments.output.object(|| as_json(arguments, &figures), || as_text(arguments, &figures, store));
    Ok(Code::Done)
}

/// Whoever measures a store of somebody's must not remove anything from it: that is its own relay's to do.
fn options() -> Options {
    Options { heartbeat_every: Duration::from_millis(50), keep_delivered: None, ..Options::default() }
}

/// A message of the benchmark must not reach anybody's destination.
async fn refuse_readers(admin: &dyn StoreAdmin) -> Outcome<()> {
    let reads = |topics: &str| TopicFilter::new(topics.split(", ")).is_ok_and(|filter| filter.matches(TOPIC));
    let overview = admin.overview().await?;
    let readers: Vec<&str> = overview
        .routes
        .iter()
        .filter(|route| reads(&route.topics) && &*route.route != ROUTE)
        .map(|r| &*r.route)
        .collect();
    if readers.is_empty() {
        return Ok(());
    }
    let readers = readers.join(", ");
    Err(Failure::new(
        Code::Refused,
        format!(
            "the topic `{TOPIC}` is read by {readers}, whose destination would get the messages; use another store"
        ),
    ))
}

async fn measure(
    arguments: &Arguments,
    admin: &dyn StoreAdmin,
    adapter: &'static dyn StoreAdapter,
    place: &Place,
    witness: &Arc<Witness>,
) -> Outcome<Figures> {
    let actor = arguments.actor("a benchmark fills the log first");
    known(admin).await?;
    admin.pause(ROUTE, &actor).await?;
    let mut transactions = arguments.transactions();
    let first = Limits::default().check(transactions.remove(0))?;
    let began = Instant::now();
    // One entry for all of them, with the first: to note each would measure that.
    let all = format!("a benchmark: {} messages in all", arguments.messages as usize + SINGLE);
    admin.enqueue(first, Some(&arguments.actor(&all))).await?;
    enqueue(adapter, place, transactions).await?;
    let enqueue_time = began.elapsed();
    admin.resume_route(ROUTE, &actor).await?;
    let messages = arguments.messages as usize;
    witness.wait_for(messages).await?;
    let drain = witness.span();
    let mut latencies = Vec::new();
    for single in 0..SINGLE {
        let envelope = arguments.envelope(u32::try_from(single).unwrap_or(0));
        let id = envelope.id;
        enqueue(adapter, place, vec![vec![envelope]]).await?;
        let committed = Instant::now();
        witness.wait_for(messages + single + 1).await?;
        latencies.push(witness.arrival(id).map_or(Duration::ZERO, |at| at.saturating_duration_since(committed)));
    }
    latencies.sort();
    Ok(Figures { enqueue: enqueue_time, drain, latencies })
}

/// Waits until the relay has made the route known.
async fn known(admin: &dyn StoreAdmin) -> Outcome<()> {
    let deadline = Instant::now() + PATIENCE;
    while !admin.overview().await?.routes.iter().any(|route| &*route.route == ROUTE) {
        if Instant::now() > deadline {
            return Err(too_slow());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn enqueue(adapter: &'static dyn StoreAdapter, place: &Place, transactions: Vec<Vec<Envelope>>) -> Outcome<()> {
    let place = place.clone();
    let work = tokio::task::spawn_blocking(move || adapter.enqueue(&place, transactions));
    Ok(work.await.map_err(|error| Failure::because(Code::Problem, "enqueueing has failed", &error))??)
}

fn too_slow() -> Failure {
    Failure::new(
        Code::Problem,
        format!("nothing has come for {} s; `postrider doctor` may know why", PATIENCE.as_secs()),
    )
}

impl Arguments {
    /// Who runs it, and what for: in the words that were given, or in these.
    fn actor(&self, reason: &str) -> Actor {
        let mut actor = self.actor.actor();
        actor.reason = Some(actor.reason.map_or_else(|| reason.to_owned(), |given| format!("{reason}: {given}")));
        actor
    }

    fn transactions(&self) -> Vec<Vec<Envelope>> {
        let all: Vec<Envelope> = (0..self.messages).map(|number| self.envelope(number)).collect();
        all.chunks(self.batch as usize).map(<[Envelope]>::to_vec).collect()
    }

    fn envelope(&self, number: u32) -> Envelope {
        let key = format!("key-{}", number % self.keys);
        Envelope::new(TOPIC, "postrider.bench", vec![b'x'; self.payload]).with_key(key)
    }
}

/// A directory with the file, removed at the end.
struct Scratch(Option<std::path::PathBuf>);

impl Scratch {
    fn new(arguments: &Arguments) -> Outcome<Self> {
        if arguments.store.is_said() {
            return Ok(Self(None));
        }
        arguments.store.refuse_names()?;
        let folder = std::env::temp_dir().join(format!("postrider-bench-{}", std::process::id()));
        let failed = |error| Failure::because(Code::Problem, format!("{} cannot be made", folder.display()), &error);
        std::fs::create_dir(&folder).map_err(failed)?;
        Ok(Self(Some(folder)))
    }

    fn find(&self, arguments: &Arguments) -> Outcome<(&'static dyn StoreAdapter, Place)> {
        let Some(folder) = &self.0 else { return arguments.store.find() };
        let url = format!("sqlite:{}", folder.join("bench.db").display());
        let (adapter, path) = registry::store(&url).map_err(Failure::usage)?;
        Ok((adapter, Place { path, table_prefix: None, schema: None, connections: None }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            let _ = std::fs::remove_dir_all(folder); // a temporary directory is cleaned up by others too
        }
    }
}

/// A destination that notes when each message came.
#[derive(Default)]
struct Witness {
    arrivals: Mutex<HashMap<MessageId, Instant>>,
    rung: tokio::sync::Notify,
}

impl Witness {
    /// Ends when so many have come, or when none has come for too long.
    async fn wait_for(&self, count: usize) -> Outcome<()> {
        let mut progress = Progress::new("delivered", count as u64);
        loop {
            let rung = self.rung.notified();
            let there = self.lock().len();
            if there >= count {
                return Ok(());
            }
            progress.at(there as u64);
            tokio::time::timeout(PATIENCE, rung).await.map_err(|_| too_slow())?;
        }
    }

    fn arrival(&self, id: MessageId) -> Option<Instant> {
        self.lock().get(&id).copied()
    }

    /// From the first to the last.
    fn span(&self) -> Duration {
        let arrivals = self.lock();
        let (first, last) = (arrivals.values().min(), arrivals.values().max());
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.saturating_duration_since(*first))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<MessageId, Instant>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher for Witness {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "bench",
            run_max: u32::MAX,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Published>> {
        let now = Instant::now();
        self.lock().extend(batch.iter().map(|record| (record.envelope.id, now)));
        self.rung.notify_waiters();
        Box::pin(std::future::ready(vec![Published::Durable; batch.len()]))
    }
}

/// A shorter time tells nothing about a rate: it is mostly the grain of the clock, or one batch that came at once.
const SPAN_MIN: Duration = Duration::from_millis(10);

fn per_second(count: u32, span: Duration) -> Option<f64> {
    (span >= SPAN_MIN).then(|| f64::from(count) / span.as_secs_f64())
}

fn in_words(rate: Option<f64>) -> String {
    rate.map_or_else(|| "too short to tell: more --messages".to_owned(), |rate| format!("{rate:.0} messages/s"))
}

/// The value that this share of all does not exceed.
fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn as_json(arguments: &Arguments, figures: &Figures) -> Value {
    let millis = |share| percentile(&figures.latencies, share).as_secs_f64() * 1_000.0;
    json!({
        "messages": arguments.messages, "batch": arguments.batch, "keys": arguments.keys,
        "payload_bytes": arguments.payload,
        "enqueue_per_second": per_second(arguments.messages, figures.enqueue),
        "drain_per_second": per_second(arguments.messages, figures.drain),
        "latency_p50_ms": millis(0.5), "latency_p99_ms": millis(0.99),
    })
}

fn as_text(arguments: &Arguments, figures: &Figures, store: &str) -> String {
    let mut table = Table::new(&["WHAT", "FIGURE"]);
    let millis = |share| format!("{:.1} ms", percentile(&figures.latencies, share).as_secs_f64() * 1_000.0);
    table.row([
        format!("enqueued, {} a transaction", arguments.batch),
        in_words(per_second(arguments.messages, figures.enqueue)),
    ]);
    table.row(["relayed to nowhere".to_owned(), in_words(per_second(arguments.messages, figures.drain))]);
    table.row(["from commit to publish, p50".to_owned(), millis(0.5)]);
    table.row(["from commit to publish, p99".to_owned(), millis(0.99)]);
    let Arguments { messages, keys, payload, .. } = arguments;
    format!("{table}{messages} messages of {payload} bytes over {keys} keys on {store}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&sorted, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&sorted, 1.0), Duration::from_millis(100));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn nothing_is_removed_from_a_store_that_is_measured() {
        assert_eq!(options().keep_delivered, None);
    }

    #[test]
    fn a_rate_is_told_only_of_a_time_that_can_be_measured() {
        assert_eq!(per_second(500, Duration::from_millis(250)), Some(2_000.0));
        assert_eq!(per_second(10, Duration::from_micros(3)), None);
        assert_eq!(in_words(None), "too short to tell: more --messages");
        assert_eq!(in_words(Some(1_999.6)), "2000 messages/s");
    }
}
