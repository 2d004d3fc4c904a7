//! The writers: transactions of every shape, each noted in the producers' own log with its fate.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use postrider_core::{enlist::Enlist, envelope::Envelope};
use postrider_testkit::{checker::Enqueued, random::Random};
use tokio_postgres::{Client, NoTls, Transaction};

use crate::{
    support::{batch, connect, url},
    world::World,
};

/// More than a backend shows of its subtransactions: the server then has to look them up.
const SUBTRANSACTIONS: u32 = 75;

/// Writes until it is enough.
pub(crate) async fn run(world: World, seed: u64, deadline: Instant) {
    let mut random = Random::new(seed);
    let (mut client, mut crashes) = (world.connect_to_write().await, 0);
    while !world.is_enough(deadline) {
        let _breath = world.breath.read().await;
        if crashes != world.crashes() {
            (client, crashes) = (world.connect_to_write().await, world.crashes());
        }
        write(&world, &mut client, &mut random).await;
    }
}

/// One large transaction that is committed, so that no run goes without.
pub(crate) async fn write_bulk(world: World, seed: u64) {
    let _breath = world.breath.read().await;
    let mut client = world.connect_to_write().await;
    let mut transaction = client.transaction().await.unwrap();
    let key = seed % world.load.keys;
    let sequence = world.lock(&transaction, key).await;
    let messages = append(&world, &mut transaction, key, sequence, world.load.bulk).await;
    transaction.commit().await.unwrap();
    world.bulks.fetch_add(1, Ordering::SeqCst);
    world.note(messages, true);
}

/// Transactions that take an id, have nothing to do with the log, and stay open to the end: in this database, and in
/// another one.
pub(crate) async fn stand_by(world: World) {
    let other = format!("{}_other", world.schema());
    let owner = connect().await;
    owner.batch_execute(&format!("CREATE DATABASE {other}")).await.unwrap();
    let mut config: tokio_postgres::Config = url().parse().unwrap();
    config.dbname(&other);
    let (elsewhere, connection) = config.connect(NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let here = connect().await;
    let mut held = Instant::now() - Duration::from_secs(60);
    let mut open = false;
    while !world.is_written() {
        // They end and begin anew now and then, so that each end is met as well.
        if held.elapsed() > Duration::from_secs(3) {
            for client in [&here, &elsewhere] {
                let end = if open { "COMMIT; " } else { "" };
                client.batch_execute(&format!("{end}BEGIN; SELECT pg_current_xact_id()")).await.unwrap();
            }
            (open, held) = (true, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop((here, elsewhere));
    let _ = connection.await;
    owner.batch_execute(&format!("DROP DATABASE {other} WITH (FORCE)")).await.unwrap();
}

/// One transaction.
async fn write(world: &World, client: &mut Client, random: &mut Random) {
    let mut transaction = client.transaction().await.unwrap();
    if random.chance(500) {
        // An id early, numbers late.
        transaction.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
        hold(random, 40).await;
    }
    let key = random.below(world.load.keys);
    let sequence = world.lock(&transaction, key).await;
    let bulk = random.chance(1);
    let count = if bulk { world.load.bulk } else { 1 + random.below(3) };
    let mut messages = append(world, &mut transaction, key, sequence, count).await;
    if random.chance(5) {
        for i in 0..SUBTRANSACTIONS {
            transaction.batch_execute(&format!("SAVEPOINT s{i}")).await.unwrap();
            messages.extend(append(world, &mut transaction, key, sequence, 1).await);
        }
    }
    if random.chance(100) {
        transaction.batch_execute("SAVEPOINT here").await.unwrap();
        let taken_back = append(world, &mut transaction, key, sequence, 2).await;
        hold(random, 20).await;
        transaction.batch_execute("ROLLBACK TO SAVEPOINT here").await.unwrap();
        messages.extend(taken_back.into_iter().map(|message| Enqueued { committed: false, ..message }));
        messages.extend(append(world, &mut transaction, key, sequence, 1).await);
    }
    if random.chance(300) {
        let longest = if random.chance(30) { world.load.hold_millis_max } else { 60 };
        hold(random, longest).await;
    }
    let commits = !random.chance(50);
    if random.chance(20) {
        world.prepared.fetch_add(1, Ordering::SeqCst);
        let name = uuid::Uuid::now_v7();
        transaction.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
        // There is no transaction any more; this only gives the connection back.
        transaction.commit().await.unwrap();
        hold(random, world.load.hold_millis_max / 2).await;
        let end = if commits { "COMMIT" } else { "ROLLBACK" };
        client.batch_execute(&format!("{end} PREPARED '{name}'")).await.unwrap();
    } else if commits {
        transaction.commit().await.unwrap();
    } else {
        transaction.rollback().await.unwrap();
    }
    if bulk && commits {
        world.bulks.fetch_add(1, Ordering::SeqCst);
    }
    world.note(messages, commits);
}

/// Up to so many milliseconds. This is what is tested, not something waited for.
async fn hold(random: &mut Random, millis: u64) {
    tokio::time::sleep(Duration::from_millis(random.below(millis))).await;
}

async fn append(world: &World, open: &mut Transaction<'_>, key: u64, sequence: u64, count: u64) -> Vec<Enqueued> {
    let key = format!("key-{key}");
    let mut messages = Vec::new();
    let mut left = count;
    while left > 0 {
        let part = left.min(1_000);
        left -= part;
        let envelopes: Vec<_> = (0..part).map(|_| Envelope::new("t", "n", "{}").with_key(key.as_str())).collect();
        let enqueued =
            |envelope: &Envelope| Enqueued { id: envelope.id, key: Some(key.clone()), sequence, committed: true };
        messages.extend(envelopes.iter().map(enqueued));
        open.append(&world.dialect, batch(envelopes)).await.unwrap();
    }
    messages
}
