//! The writers: they lock one or two keys, enqueue, hold their transaction, and commit it or roll it back.

use std::time::{Duration, Instant};

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
        let committed = match transaction(&world, &mut random, &mut connection, level, &mut messages).await {
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
    let first = random.below(world.keys - 1);
    let keys = if random.chance(300) { vec![first, world.keys - 1] } else { vec![first] };
    for key in keys {
        let sequence = world.lock(&mut transaction, key).await.map_err(failed)?;
        let count = if random.chance(30) { 150 } else { 1 + random.below(3) };
        let taken_back = random.chance(50);
        if taken_back {
            transaction.query_drop("SAVEPOINT here").await.map_err(failed)?;
        }
        let envelopes: Vec<Envelope> =
            (0..count).map(|_| Envelope::new("t", "n", "{}").with_key(key.to_string())).collect();
        for envelope in &envelopes {
            let key = Some(key.to_string());
            messages.push(Enqueued { id: envelope.id, key, sequence, committed: !taken_back });
        }
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
