//! What reads ahead for a subscriber: a task with a connection of its own, because a command that waits blocks its connection.
//!
//! ```text
//!  begin ──► what is still pending under our name ──► what is new ◄──► what others have left lying
//!    ▲                                                   │ the connection is lost
//!    └───────────────────────────────────────────────────┘
//! ```
//!
//! An entry that the server has given us stays pending until it is acknowledged, so nothing that is lost on the way is gone:
//! it is read again under our name, or claimed when it has been idle for long. What the subscriber has already is skipped.
//!
//! A server that does not know yet that a connection is gone answers a read that waits on it, and one that a network delivers
//! late, with new entries that nobody gets: ours from before a loss, or those of an earlier subscriber of our name. They are
//! pending then, under our name, and older than whatever is read next. So for a while after a connection was made, what is
//! read is compared with what is pending, and what [went astray](astray) comes before what is newer.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use postrider_core::{Error, ErrorKind, Result};
use redis::{Cmd, Pipeline, RedisError, Value, cmd};
use tokio::{
    sync::mpsc::Sender,
    time::{Instant, sleep},
};

use crate::{
    connect::{Connection, Using},
    mapping,
    reply::{self, Entry},
    subscriber::{Item, Shared},
};

/// How long one read waits for something new. After it, other things get their turn.
pub(crate) const BLOCK: Duration = Duration::from_secs(1);
/// How long to wait after an error: until a read that the server still has is over, whose end it may be late with.
const PAUSE: Duration = BLOCK.saturating_add(Duration::from_millis(500));
/// How long entries may go astray after a connection was made: so long a kernel goes on sending what was said over one that
/// its program has closed.
const ASTRAY: Duration = Duration::from_secs(120);

/// Reads until the task is aborted or nobody receives any more. While it does, the way to whoever receives is open.
pub(crate) async fn run(shared: Arc<Shared>, sender: Sender<Result<Item>>, connection: Connection) {
    loop {
        let Err(error) = session(&shared, &connection).await;
        // Only as long as there is room: one error is as good as a hundred.
        if sender.is_closed() {
            return;
        }
        drop(sender.try_send(Err(error)));
        sleep(PAUSE).await;
    }
}

/// Reads over one connection until that fails.
async fn session(shared: &Shared, connection: &Connection) -> Result<Infallible> {
    let mut using = connection
        .get()
        .await
        .map_err(|cause| Error::new(ErrorKind::Unavailable, "connect to Redis").with("cause", cause))?;
    let Err(error) = read(shared, &mut using).await;
    connection.lost(&using).await;
    Err(error)
}

async fn read(shared: &Shared, using: &mut Using) -> Result<Infallible> {
    shared.declare(using).await?;
    // Up to there everything that was given to our name is here, by stream.
    let mut seen = Vec::with_capacity(shared.streams.len());
    for stream in 0..shared.streams.len() {
        seen.push(pending(shared, using, stream).await?);
    }
    let (mut claim_at, astray_until) = (Instant::now() + shared.claim_after, Instant::now() + ASTRAY);
    loop {
        // The count is for each stream.
        let mut command = shared.read_group(shared.room().await? / shared.streams.len());
        command.arg("BLOCK").arg(u64::try_from(BLOCK.as_millis()).unwrap_or(1_000)).arg("STREAMS");
        command.arg(&shared.streams);
        for _ in &shared.streams {
            command.arg(">");
        }
        let mut pages: Vec<Vec<Entry>> = shared.streams.iter().map(|_| Vec::new()).collect();
        for (name, entries) in reply::of_streams(ask(using, &command).await?) {
            let Some(stream) = shared.streams.iter().position(|known| *known == name) else { continue };
            pages[stream] = entries;
        }
        if Instant::now() < astray_until {
            shared.state().look();
            astray(shared, using, &seen, &mut pages).await?;
        }
        for (stream, page) in pages.into_iter().enumerate() {
            if let Some(last) = page.last() {
                seen[stream].clone_from(&last.id);
            }
            hand_over(shared, using, stream, page, &HashMap::new()).await?;
        }
        shared.state().looked();
        if Instant::now() >= claim_at {
            for stream in 0..shared.streams.len() {
                claim(shared, using, stream).await?;
            }
            claim_at = Instant::now() + shared.claim_after;
        }
    }
}

/// What was given to our name before: to an earlier subscriber, or over a connection that was lost. The id of the last.
async fn pending(shared: &Shared, using: &mut Using, stream: usize) -> Result<String> {
    let mut after = "0".to_owned();
    // Ends with an empty page; each one begins behind the last.
    loop {
        let mut command = shared.read_group(shared.room().await?);
        command.arg("STREAMS").arg(&shared.streams[stream]).arg(&after);
        shared.state().look();
        let page = reply::of_streams(ask(using, &command).await?).pop().map(|(_, entries)| entries).unwrap_or_default();
        let Some(last) = page.last() else {
            shared.state().looked();
            return Ok(after);
        };
        after.clone_from(&last.id);
        let counts = deliveries(shared, using, stream, &page).await?;
        hand_over(shared, using, stream, page, &counts).await?;
    }
}

/// Adds to what is new what was given to our name since we last looked, and has not come here. The server gives entries out in
/// their order: what went astray before these were read is older, and pending by now.
async fn astray(shared: &Shared, using: &mut Using, seen: &[String], pages: &mut [Vec<Entry>]) -> Result<()> {
    let mut asking = Pipeline::with_capacity(seen.len());
    for (stream, seen) in shared.streams.iter().zip(seen) {
        // What is new, as much again for a read that went astray, and what was taken over from others since.
        let asked = asking.cmd("XPENDING").arg(stream).arg(&shared.group);
        asked.arg(format!("({seen}")).arg("+").arg(4 * shared.prefetch).arg(&shared.consumer);
    }
    let answers: Vec<Value> =
        asking.query_async(&mut using.connection).await.map_err(|error| failed("ask for what is pending", error))?;
    for (stream, (answer, page)) in answers.into_iter().zip(pages).enumerate() {
        let new: HashSet<String> = page.iter().map(|entry| entry.id.clone()).collect();
        for (id, _) in reply::deliveries(answer) {
            if new.contains(&id) || shared.state().knows(stream, &id) {
                continue;
            }
            let found = ask(using, cmd("XRANGE").arg(&shared.streams[stream]).arg(&id).arg(&id)).await?;
            page.push(reply::entries(found).pop().unwrap_or(Entry { id, fields: None }));
        }
        page.sort_by_key(|entry| reply::number(&entry.id));
    }
    Ok(())
}

/// What has been pending for long, whoever has it.
async fn claim(shared: &Shared, using: &mut Using, stream: usize) -> Result<()> {
    let mut from = "0-0".to_owned();
    // Ends when the server says that it has come round.
    loop {
        let mut command = cmd("XAUTOCLAIM");
        let idle = u64::try_from(shared.claim_after.as_millis()).unwrap_or(u64::MAX);
        command.arg(&shared.streams[stream]).arg(&shared.group).arg(&shared.consumer).arg(idle);
        command.arg(&from).arg("COUNT").arg(shared.room().await?);
        shared.state().look();
        let (next, page) = reply::claimed(ask(using, &command).await?);
        let counts = deliveries(shared, using, stream, &page).await?;
        hand_over(shared, using, stream, page, &counts).await?;
        if next.is_empty() || next == "0-0" {
            shared.state().looked();
            return Ok(());
        }
        from = next;
    }
}

/// How often the entries of a page were delivered.
async fn deliveries(shared: &Shared, using: &mut Using, stream: usize, page: &[Entry]) -> Result<HashMap<String, u32>> {
    let (Some(first), Some(last)) = (page.first(), page.last()) else { return Ok(HashMap::new()) };
    let mut command = cmd("XPENDING");
    command.arg(&shared.streams[stream]).arg(&shared.group).arg(&first.id).arg(&last.id);
    command.arg(shared.prefetch).arg(&shared.consumer);
    Ok(reply::deliveries(ask(using, &command).await?).into_iter().collect())
}

/// Gives entries to the subscriber, except for those that it has. There is room for them, since no more were asked for; what
/// went astray may have to wait for it.
async fn hand_over(
    shared: &Shared,
    using: &mut Using,
    stream: usize,
    entries: Vec<Entry>,
    counts: &HashMap<String, u32>,
) -> Result<()> {
    for Entry { id, fields } in entries {
        if !shared.state().know(stream, &id) {
            continue;
        }
        let Some(fields) = fields else {
            // It was deleted while it was pending: there is nothing to deliver, and nobody else will acknowledge it.
            ask(using, cmd("XACK").arg(&shared.streams[stream]).arg(&shared.group).arg(&id)).await?;
            shared.state().forget(stream, &id);
            continue;
        };
        let attempt = counts.get(&id).copied().unwrap_or(1).max(1);
        let envelope = mapping::envelope(&shared.streams[stream], &id, &fields);
        let gone = |_| Error::new(ErrorKind::Other, "nobody receives any more");
        shared.sender()?.send(Ok(Item { stream, id, envelope, attempt })).await.map_err(gone)?;
    }
    Ok(())
}

/// Sends a command over the reader's connection.
pub(crate) async fn ask(using: &mut Using, command: &Cmd) -> Result<Value> {
    command.query_async(&mut using.connection).await.map_err(|error| failed("read from the stream", error))
}

/// An error of a command. What the server says no to for good is told from what passes.
pub(crate) fn failed(what: &'static str, error: RedisError) -> Error {
    let kind = match error.code() {
        Some("NOGROUP") => ErrorKind::NotFound,
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).caused_by(error)
}
