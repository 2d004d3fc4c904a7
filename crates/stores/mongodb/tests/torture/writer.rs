//! The writers: they touch one or two keys, enqueue, hold their transaction, and commit it or roll it back. Many are ended by
//! the server because they meet; those begin again with other messages.

use std::time::Duration;

use mongodb::{
    ClientSession,
    bson::doc,
    error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT},
};
use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope};
use postrider_testkit::{checker::Enqueued, random::Random};

use crate::{support::batch, world::World};

/// Places of one transaction among the messages of a key: more than it has messages.
const PLACES: u64 = 1_000;

/// Ends when enough is written.
pub(crate) async fn run(world: World, seed: u64) {
    let mut random = Random::new(seed);
    while !world.is_enough() {
        let mut session = world.client().start_session().await.unwrap();
        // The set may be without a primary just now.
        if session.start_transaction().await.is_err() {
            continue;
        }
        let mut messages = Vec::new();
        let wants = !random.chance(80);
        let done = work(&world, &mut session, &mut random, &mut messages).await;
        let committed = if done && wants { commit(&mut session).await } else { false };
        if !committed {
            // One that the server has ended is aborted already.
            let _ = session.abort_transaction().await;
        }
        world.note(messages, committed);
    }
}

/// Whether everything was done. If not, the server has ended the transaction.
async fn work(world: &World, session: &mut ClientSession, random: &mut Random, messages: &mut Vec<Enqueued>) -> bool {
    let first = random.below(world.keys - 1);
    let keys = if random.chance(300) { vec![first, world.keys - 1] } else { vec![first] };
    for key in keys {
        let Some(version) = touch(world, session, key).await else { return false };
        let mut sequence = version * PLACES;
        // What one transaction says in two goes has an order as well, and a page may end in between.
        for _ in 0..if random.chance(400) { 2 } else { 1 } {
            let count = if random.chance(30) { 150 } else { 1 + random.below(3) };
            let envelopes: Vec<Envelope> =
                (0..count).map(|_| Envelope::new("t", "n", "{}").with_key(key.to_string())).collect();
            for (envelope, sequence) in envelopes.iter().zip(sequence..) {
                messages.push(Enqueued { id: envelope.id, key: Some(key.to_string()), sequence, committed: false });
            }
            sequence += count;
            match session.append(&world.names, batch(envelopes)).await {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Unavailable) => return false,
                Err(error) => panic!("{error:?}"),
            }
            if random.chance(300) {
                tokio::time::sleep(Duration::from_millis(random.below(60))).await;
            }
        }
    }
    true
}

/// Takes what orders the key, and its next version with it.
async fn touch(world: &World, session: &mut ClientSession, key: u64) -> Option<u64> {
    let one = doc! { "_id": key.cast_signed() };
    let next = doc! { "$inc": { "version": 1_i64 } };
    match world.keys().find_one_and_update(one, next).session(session).await {
        // As it was before.
        Ok(found) => Some(found.unwrap().get_i64("version").unwrap().unsigned_abs() + 1),
        Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => None,
        Err(error) => panic!("{error:?}"),
    }
}

/// Until it is known what became of it.
async fn commit(session: &mut ClientSession) -> bool {
    loop {
        match session.commit_transaction().await {
            Ok(()) => return true,
            Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
            Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => return false,
            Err(error) => panic!("{error:?}"),
        }
    }
}
