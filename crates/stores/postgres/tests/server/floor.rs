//! Rows that come due late, by whatever way, under the eyes of a lane that has looked before and begins its looks above them.

use std::time::Duration;

use postrider_core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    enlist::Enlist,
    envelope::{Envelope, MessageId},
    log::{Log, RecordRef, Settlement},
    parked::{Cause, DueLimit, Ordinal, Parked, ParkedState},
    time::Timestamp,
};

use crate::{
    Post,
    support::{batch, connect},
};

pub(crate) const DUE: DueLimit = DueLimit { lines: 10, per_line: 10, bytes: 1 << 20 };

const HOUR: Duration = Duration::from_secs(3600);

fn keyed(key: &str) -> Envelope {
    Envelope::new("orders", "order.placed", "{}").with_key(key)
}

fn cause() -> Cause {
    Cause::new("refused", "no")
}

impl Post {
    /// Sends, reads and parks these.
    pub(crate) async fn park(&mut self, rows: Vec<(Envelope, Parked)>) {
        let (envelopes, parked): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        let mut client = connect().await;
        let mut transaction = client.transaction().await.unwrap();
        transaction.append(&self.store.dialect(), batch(envelopes)).await.unwrap();
        transaction.commit().await.unwrap();
        let page = self.page().await;
        assert_eq!(page.records.len(), parked.len());
        let park = (0..).zip(parked).map(|(index, parked)| (RecordRef::new(&page.records, index), parked)).collect();
        self.cursor = page.end.clone();
        self.settle_with(Settlement { advance: Some(page.end), park, ..Settlement::default() }).await;
    }

    pub(crate) async fn settle_with(&mut self, settlement: Settlement) {
        self.number += 1;
        self.store.settle(&self.lease, &Settlement { number: self.number, ..settlement }).await.unwrap();
    }

    /// Everything that is due. It is removed.
    pub(crate) async fn take_due(&mut self) -> Vec<MessageId> {
        let due = self.store.due(&self.lease, DUE).await.unwrap();
        let rows: Vec<(MessageId, Ordinal)> = due
            .lines
            .iter()
            .flat_map(|line| &line.rows)
            .chain(&due.timed)
            .map(|row| (row.record.envelope.id, row.ordinal))
            .collect();
        let (ids, remove): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        if !remove.is_empty() {
            self.settle_with(Settlement { remove, ..Settlement::default() }).await;
        }
        ids
    }

    /// Looks in vain until all that has been there so far lies below where a look begins.
    async fn look_in_vain(&mut self) {
        let (client, millis) = (connect().await, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
        let now = async || client.query_one(millis, &[]).await.unwrap().get::<_, i64>(0);
        let until = now().await + 2_200;
        while now().await < until {
            assert_eq!(self.take_due().await, []);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What a look has learnt is for the next one.
        assert_eq!(self.take_due().await, []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_due_behind_the_back_of_a_look_is_found_all_the_same() {
    let mut post = Post::new(20).await;
    let [held, behind, kept, dead, late] = [keyed("a"), keyed("b"), keyed("b"), keyed("c"), keyed("d")];
    let (head, blocking) = (keyed("a"), keyed("b"));
    let is_dead = |blocks| Parked::Dead { attempts: 1, cause: cause(), blocks };
    post.park(vec![
        (head.clone(), Parked::Retrying { after: HOUR, attempts: 1, cause: cause() }),
        (held.clone(), Parked::Held),
        (blocking.clone(), is_dead(true)),
        (behind.clone(), Parked::Held),
        (kept.clone(), Parked::Held),
        (dead.clone(), is_dead(false)),
    ])
    .await;
    post.look_in_vain().await;

    // Its own time was when it was held, and that is long ago.
    let rows = post.store.parked(&ParkedFilter::default(), None, 10).await.unwrap();
    let ordinal = |id| rows.iter().find(|row| row.envelope.id == id).unwrap().ordinal;
    post.settle_with(Settlement { remove: vec![ordinal(head.id)], ..Settlement::default() }).await;
    assert_eq!(post.take_due().await, [held.id], "the head went, and the next one is the head");

    // Somebody else acts, by another process.
    let (other, actor) = (post.place.another().await, Actor::new("anna"));
    let filter = ParkedFilter { key: Some("b".into()), state: Some(ParkedState::Dead), ..ParkedFilter::default() };
    assert_eq!(other.discard(&filter, &actor).await.unwrap(), 1);
    assert_eq!(post.take_due().await, [behind.id, kept.id], "an operator has discarded what blocked them");
    let filter = ParkedFilter { key: Some("c".into()), ..ParkedFilter::default() };
    assert_eq!(other.redrive(&filter, &actor).await.unwrap(), 1);
    assert_eq!(post.take_due().await, [dead.id], "an operator has redriven it");

    // One that should have been delivered long ago and is parked only now.
    let long_ago = Envelope { deliver_at: Some(Timestamp::from_micros(1)), ..late };
    post.park(vec![(long_ago.clone(), Parked::Scheduled { after: Duration::ZERO })]).await;
    assert_eq!(post.take_due().await, [long_ago.id]);
}
