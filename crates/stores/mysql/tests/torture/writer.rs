//! The writers: they lock one or two keys, enqueue, hold their transaction, and commit it or roll it back.

use std::time::{Duration, Instant};

use mysql_async::{IsolationLevel, TxOpts, prelude::Queryable};
use postrider_core::{enlist::Enlist, envelope::Envelope};
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
        let mut options = TxOpts::default();
        options.with_isolation_level(level);
        let mut transaction = connection.start_transaction(options).await.unwrap();
        let mut messages = Vec::new();
        // In ascending order, so that no two wait for each other.
        let first = random.below(world.keys - 1);
        let keys = if random.chance(300) { vec![first, world.keys - 1] } else { vec![first] };
        for key in keys {
            let sequence = world.lock(&mut transaction, key).await;
            let count = if random.chance(30) { 150 } else { 1 + random.below(3) };
            let taken_back = random.chance(50);
            if taken_back {
                transaction.query_drop("SAVEPOINT here").await.unwrap();
            }
            let envelopes: Vec<Envelope> =
                (0..count).map(|_| Envelope::new("t", "n", "{}").with_key(key.to_string())).collect();
            for envelope in &envelopes {
                messages.push(Enqueued {
                    id: envelope.id,
                    key: Some(key.to_string()),
                    sequence,
                    committed: !taken_back,
                });
            }
            transaction.append(&world.dialect, batch(envelopes)).await.unwrap();
            if taken_back {
                transaction.query_drop("ROLLBACK TO SAVEPOINT here").await.unwrap();
            }
            if random.chance(300) {
                tokio::time::sleep(Duration::from_millis(random.below(40))).await;
            }
        }
        let commits = !random.chance(50);
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        world.note(messages, commits);
    }
    connection.disconnect().await.unwrap();
}
