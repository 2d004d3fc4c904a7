//! A server that crashes: it takes back what it had not written down, and hands the same transaction ids out again.
//!
//! The writers hold their breath, so that no commit is in doubt. Some ids are spent for which nobody waits, a relay looks, and
//! the server is gone before it has written them down. Whoever still believes what the relay saw then takes the messages that
//! get these ids for old ones.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{relay::PATIENCE, world::World};

/// Crashes of one run.
const CRASHES: u64 = 2;

/// Messages before each crash, and behind the last one: more than there are ids to hand out again.
const MESSAGES: usize = 200;

/// Small enough to share a page of the server's journal, for it writes down whole pages by itself.
const SPEND: &str = "DO $$ BEGIN FOR i IN 1..25 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";

/// Ends with the last crash, and when enough was written behind it.
pub(crate) async fn crash_on_purpose(world: World) {
    let _done = Done(world.clone());
    let server = world.crashing_server().expect("a server of its own");
    for _ in 0..CRASHES {
        until_written(&world).await;
        let _breath = world.breath.write().await;
        world.connect().await.batch_execute(SPEND).await.unwrap();
        // The first of them may have begun before.
        let seen = world.reads.load(Ordering::SeqCst) + 2;
        until("a relay reads", || world.reads.load(Ordering::SeqCst) >= seen).await;
        tokio::task::block_in_place(|| {
            server.crash();
            server.up();
        });
        world.crashes.fetch_add(1, Ordering::SeqCst);
    }
    until_written(&world).await;
}

/// However it ends, the writers do so too.
struct Done(World);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.stays_up.store(true, Ordering::SeqCst);
    }
}

async fn until_written(world: &World) {
    let enough = world.noted() + MESSAGES;
    until("the writers write", || world.noted() >= enough).await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
