//! `core`: the engine alone, the SQLite store against a bare `SELECT`, and memory over a long relay.
//!
//! | key | what |
//! |---|---|
//! | `engine_messages_per_second` | memory store to a publisher that does nothing, through the object-safe contracts, on one thread; median of the rounds |
//! | `sqlite_drain_vs_select` | rate of a whole relay on a SQLite backlog, divided by the rate of a loop that pages through the same rows with `SELECT` and touches every column; interleaved, median of the paired ratios |
//! | `relay_rss_mb` | peak resident size of a process that relays one million messages from SQLite |

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use postrider::{
    Envelope, Outbox, Relay, Route,
    core::log::Log,
    memory::{Memory, MemoryStore},
    relay::options::Options,
    sqlite::{Sqlite, SqliteStore},
};
use serde_json::json;

use crate::measure::{NullPublisher, median, peak_resident_mb};

const PAYLOAD_BYTES: usize = 256;
const KEYS: u64 = 1000;
const PAGE: u32 = 1000;

pub(crate) fn run(quick: bool) -> Result<serde_json::Value> {
    let rounds = if quick { 3 } else { 5 };
    let engine = engine(quick, rounds)?;
    let directory = tempfile::tempdir().context("make a temporary directory")?;
    let backlog = directory.path().join("backlog.db");
    let messages = 200_000;
    eprintln!("filling a SQLite file with {messages} messages");
    fill(&backlog, messages)?;
    let (ratio, drain, select) = sqlite_drain(&backlog, messages, rounds)?;
    let long = directory.path().join("long.db");
    let million = if quick { 200_000 } else { 1_000_000 };
    eprintln!("filling a SQLite file with {million} messages");
    fill(&long, million)?;
    let resident = resident_of_a_relay(&long, million)?;
    Ok(json!({
        "engine_messages_per_second": engine.round(),
        "sqlite_drain_vs_select": (ratio * 1000.0).round() / 1000.0,
        "relay_rss_mb": (resident * 10.0).round() / 10.0,
        "sqlite_drain_messages_per_second": drain.round(),
        "sqlite_select_rows_per_second": select.round(),
        "relayed_messages": million,
        "rounds": rounds,
    }))
}

fn envelopes(from: u64, count: u64) -> Vec<Envelope> {
    let payload = |n: u64| n.to_le_bytes().iter().copied().cycle().take(PAYLOAD_BYTES).collect::<Vec<u8>>();
    let key = |n: u64| format!("customer-{:06}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS);
    (from..from + count).map(|n| Envelope::new("orders", "order.placed", payload(n)).with_key(key(n))).collect()
}

/// A relay on one thread, until so many messages are durable. Answers how long that took.
fn relay(log: Arc<dyn Log>, route: &str, messages: u64) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async move {
        let publisher = Arc::new(NullPublisher::default());
        let options = Options { keep_delivered: None, ..Options::default() };
        let route = Route::to(route, Arc::clone(&publisher) as _).page(PAGE);
        let relay = Relay::builder(log).options(options).route(route).build()?;
        let handle = relay.handle();
        let began = Instant::now();
        let running = tokio::spawn(relay.run());
        publisher.taken(messages).await;
        let took = began.elapsed();
        handle.drain();
        running.await??;
        ensure!(handle.stats().durable() == messages, "{} instead of {messages} messages", handle.stats().durable());
        Ok(took)
    })
}

fn engine(quick: bool, rounds: usize) -> Result<f64> {
    let messages: u64 = if quick { 500_000 } else { 1_000_000 };
    eprintln!("engine: {messages} messages of {PAYLOAD_BYTES} bytes, {KEYS} keys, {rounds} rounds");
    let store = MemoryStore::new();
    let outbox = Outbox::new(Memory);
    for from in (0..messages).step_by(10_000) {
        let mut tx = store.begin();
        outbox.enqueue_raw(&mut tx, envelopes(from, 10_000))?;
        tx.commit();
    }
    let mut rates = Vec::new();
    for round in 0..=rounds {
        let took = relay(Arc::new(store.clone()), &format!("round-{round}"), messages)?;
        if round > 0 {
            rates.push(messages as f64 / took.as_secs_f64()); // the first one warms up
        }
    }
    Ok(median(rates))
}

fn fill(path: &Path, messages: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(SqliteStore::open(path))?;
    let outbox = Outbox::new(Sqlite::default());
    let mut connection = rusqlite::Connection::open(path)?;
    for from in (0..messages).step_by(10_000) {
        let mut tx = connection.transaction()?;
        outbox.enqueue_raw(&mut tx, envelopes(from, 10_000.min(messages - from)))?;
        tx.commit()?;
    }
    connection.pragma_update(None, "wal_checkpoint", "TRUNCATE")?;
    Ok(())
}

/// Ratio, drained per second, selected per second.
fn sqlite_drain(path: &Path, messages: u64, rounds: usize) -> Result<(f64, f64, f64)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let store = runtime.block_on(SqliteStore::open(path))?;
    let (mut ratios, mut drains, mut selects) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        let select = messages as f64 / select_all(path, messages)?.as_secs_f64();
        let drain = relay(Arc::new(store.clone()), &format!("round-{round}"), messages)?;
        let drain = messages as f64 / drain.as_secs_f64();
        if round > 0 {
            ratios.push(drain / select);
            drains.push(drain);
            selects.push(select);
        }
    }
    Ok((median(ratios), median(drains), median(selects)))
}

/// The limit: pages through the same rows in the same order and looks at every column.
fn select_all(path: &Path, messages: u64) -> Result<Duration> {
    let connection = rusqlite::Connection::open(path)?;
    let columns = "seq, id, topic, name, key, enqueued_at, deliver_at, expires_at, attempts_max, headers, payload";
    let sql = format!("SELECT {columns} FROM postrider_log WHERE seq > ?1 ORDER BY seq LIMIT ?2");
    let mut statement = connection.prepare(&sql)?;
    let began = Instant::now();
    let (mut after, mut rows_seen, mut bytes) = (0_i64, 0_u64, 0_usize);
    loop {
        let mut rows = statement.query((after, PAGE))?;
        let before = rows_seen;
        while let Some(row) = rows.next()? {
            after = row.get(0)?;
            for column in 1..11 {
                bytes += match row.get_ref(column)? {
                    rusqlite::types::ValueRef::Text(text) => text.len(),
                    rusqlite::types::ValueRef::Blob(blob) => blob.len(),
                    _ => 1,
                };
            }
            rows_seen += 1;
        }
        if rows_seen == before {
            break;
        }
    }
    ensure!(rows_seen == messages && bytes > 0, "the SELECT saw {rows_seen} rows");
    Ok(began.elapsed())
}

/// In a process of its own, so that nothing else is counted.
fn resident_of_a_relay(path: &Path, messages: u64) -> Result<f64> {
    eprintln!("relaying {messages} messages in a process of its own");
    let output =
        Command::new(std::env::current_exe()?).arg("relay-once").arg(path).arg(messages.to_string()).output()?;
    ensure!(output.status.success(), "the relay failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// What that process does.
pub(crate) fn relay_once(path: &Path, messages: u64) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
    let store = runtime.block_on(SqliteStore::open(path))?;
    relay(Arc::new(store), "long", messages)?;
    println!("{:.1}", peak_resident_mb()?);
    Ok(())
}
