//! The writers: they lock one or two keys, enqueue, hold their transaction, and commit it, roll it back, or prepare it and do
//! so later.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use mysql_async::{Conn, IsolationLevel, TxOpts, prelude::Queryable};
use postrider_core::{ErrorKind, Result, enlist::Enlist, envelope::Envelope};
use postrider_store_mysql::error;
use postrider_testkit::{checker::Enqueued, random::Random};

use crate::{
    support::{batch, connect},
    world::World,
};

const LEVELS: [IsolationLevel; 4] = [
    IsolationLevel::ReadUncommitted,
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// Ends with the deadline.
pub(crate) async fn run(world: World, seed: u64, deadline: Instant) {
    let mut random = Random::new(seed);
    let mut connection = connect().await;
    let level = LEVELS[usize::try_from(seed % 4).unwrap()];
    while Instant::now() < deadline {
        let mut messages = Vec::new();
        let ended = if world.load.prepares && random.chance(20) {
            prepared(&world, &mut random, &mut connection, &mut messages).await
        } else {
            transaction(&world, &mut random, &mut connection, level, &mut messages).await
        };
        let committed = match ended {
            Ok(committed) => committed,
            // MySQL ends one of two that wait for each other, and with it everything that it did.
            Err(fault) if fault.kind() == ErrorKind::Conflict => false,
            Err(fault) => panic!("{}", fault.chain()),
        };
        world.note(messages, committed);
    }
    connection.disconnect().await.unwrap();
}

/// Whether it was committed.
async fn transaction(
    world: &World,
    random: &mut Random,
    connection: &mut Conn,
    level: IsolationLevel,
    messages: &mut Vec<Enqueued>,
) -> Result<bool> {
    let failed = |failed| error(failed, "write");
    let mut options = TxOpts::default();
    options.with_isolation_level(level);
    let mut transaction = connection.start_transaction(options).await.map_err(failed)?;
    // In ascending order, so that no two wait for each other.
    let (first, last) = (random.below(world.load.keys - 1), world.load.keys - 1);
    let keys = if random.chance(300) { vec![first, last] } else { vec![first] };
    for key in keys {
        let sequence = world.lock(&mut transaction, key).await.map_err(failed)?;
        let count = if random.chance(30) { 150 } else { 1 + random.below(3) };
        let taken_back = random.chance(50);
        if taken_back {
            transaction.query_drop("SAVEPOINT here").await.map_err(failed)?;
        }
        let envelopes = envelopes(key, count);
        messages.extend(envelopes.iter().map(|envelope| noted(envelope, key, sequence, !taken_back)));
        transaction.append(&world.dialect, batch(envelopes)).await?;
        if taken_back {
            transaction.query_drop("ROLLBACK TO SAVEPOINT here").await.map_err(failed)?;
        }
        if random.chance(300) {
            tokio::time::sleep(Duration::from_millis(random.below(40))).await;
        }
    }
    let commits = !random.chance(50);
    match commits {
        true => transaction.commit().await.map_err(failed)?,
        false => transaction.rollback().await.map_err(failed)?,
    }
    Ok(commits)
}

fn envelopes(key: u64, count: u64) -> Vec<Envelope> {
    (0..count).map(|_| Envelope::new("t", "n", "{}").with_key(key.to_string())).collect()
}

fn noted(envelope: &Envelope, key: u64, sequence: u64, committed: bool) -> Enqueued {
    Enqueued { id: envelope.id, key: Some(key.to_string()), sequence, committed }
}

/// One large transaction that is committed.
pub(crate) async fn write_bulk(world: World, seed: u64) {
    let mut connection = connect().await;
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    let key = seed % world.load.keys;
    let sequence = world.lock(&mut transaction, key).await.unwrap();
    let envelopes = envelopes(key, world.load.bulk);
    let messages = envelopes.iter().map(|envelope| noted(envelope, key, sequence, true)).collect();
    for some in envelopes.chunks(1_000) {
        transaction.append(&world.dialect, batch(some.to_vec())).await.unwrap();
    }
    transaction.commit().await.unwrap();
    world.bulks.fetch_add(1, Ordering::SeqCst);
    world.note(messages, true);
    connection.disconnect().await.unwrap();
}

/// A transaction that is prepared, held, and committed or rolled back; whether it was committed. By plain SQL, as a service in
/// another language has it.
async fn prepared(
    world: &World,
    random: &mut Random,
    connection: &mut Conn,
    messages: &mut Vec<Enqueued>,
) -> Result<bool> {
    let name = format!("'{}'", uuid::Uuid::now_v7());
    let key = random.below(world.load.keys);
    let begun = prepare(world, connection, &name, key, 1 + random.below(3), messages).await;
    if let Err(failed) = begun {
        // It is over for the server, but not yet for the session.
        let _ = connection.query_drop(format!("XA END {name}")).await;
        let _ = connection.query_drop(format!("XA ROLLBACK {name}")).await;
        return Err(error(failed, "prepare"));
    }
    world.prepared.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(random.below(200))).await;
    let commits = random.chance(800);
    let end = if commits { "COMMIT" } else { "ROLLBACK" };
    connection.query_drop(format!("XA {end} {name}")).await.map_err(|failed| error(failed, "resolve"))?;
    Ok(commits)
}

async fn prepare(
    world: &World,
    connection: &mut Conn,
    name: &str,
    key: u64,
    count: u64,
    messages: &mut Vec<Enqueued>,
) -> mysql_async::Result<()> {
    connection.query_drop(format!("XA START {name}")).await?;
    let sequence = world.lock(connection, key).await?;
    let insert =
        format!("INSERT INTO {}log (id, topic, name, `key`, payload) VALUES (?, 't', 'n', ?, '{{}}')", world.prefix());
    for envelope in envelopes(key, count) {
        messages.push(noted(&envelope, key, sequence, true));
        connection.exec_drop(&insert, (envelope.id.0.as_bytes().as_slice(), key.to_string())).await?;
    }
    connection.query_drop(format!("XA END {name}")).await?;
    connection.query_drop(format!("XA PREPARE {name}")).await
}

/// Prepares a transaction at the beginning, lets its connection go, and resolves it through another one when everybody else has
/// stopped writing: its numbers are the lowest, and it comes last. What is written to the same key after it comes after it.
/// Nobody else has the key, or they would all wait.
pub(crate) async fn resolve_late(world: World, deadline: Instant) {
    let (name, key) = (format!("'{}'", uuid::Uuid::now_v7()), world.load.keys);
    let mut messages = Vec::new();
    let mut connection = connect().await;
    prepare(&world, &mut connection, &name, key, 3, &mut messages).await.unwrap();
    world.prepared.fetch_add(1, Ordering::SeqCst);
    connection.disconnect().await.unwrap();
    tokio::time::sleep_until(deadline.into()).await;
    let mut connection = connect().await;
    let patience = Instant::now() + Duration::from_secs(60);
    // Nobody can have it as long as the server is not done with the connection.
    while let Err(failed) = connection.query_drop(format!("XA COMMIT {name}")).await {
        assert!(Instant::now() < patience, "{failed}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.note(messages, true);
    let mut transaction = connection.start_transaction(TxOpts::default()).await.unwrap();
    let sequence = world.lock(&mut transaction, key).await.unwrap();
    let envelopes = envelopes(key, 3);
    let messages = envelopes.iter().map(|envelope| noted(envelope, key, sequence, true)).collect();
    transaction.append(&world.dialect, batch(envelopes)).await.unwrap();
    transaction.commit().await.unwrap();
    world.note(messages, true);
    connection.disconnect().await.unwrap();
}
