//! A store under another schema and with a prefix: the whole way of a message, beside a store without one in the same schema.

use std::time::{Duration, Instant};

use postrider_core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    doctor::Thresholds,
    enlist::Enlist,
    envelope::Envelope,
    log::{Log, RecordRef, Retention, Settlement},
    parked::{Cause, DueLimit, Parked},
};
use postrider_store_postgres::{
    PostgresStore,
    capture::{Capture, Operation, Script},
};

use crate::{
    WHOLE,
    support::{Schema, batch, connect, url},
    take,
};

/// Neither has to be a plain word.
const PREFIX: &str = "Shop-1_";

const DUE: DueLimit = DueLimit { lines: 10, per_line: 10, bytes: 1 << 20 };

fn message(payload: &str) -> Envelope {
    Envelope::new("orders", "order.placed", payload.to_owned()).with_key("4711")
}

async fn open(schema: &str, prefix: &str) -> PostgresStore {
    let builder = PostgresStore::builder(&url()).schema(schema).prefix(prefix).block_bits(2).connections_max(2);
    builder.open().await.unwrap()
}

/// By the library, one and many; by the function; by an insert; by a trigger. In this order.
async fn enqueue_in_every_way(store: &PostgresStore, schema: &str) -> Vec<&'static str> {
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(&store.dialect(), batch(vec![message("one")])).await.unwrap();
    transaction.append(&store.dialect(), batch(vec![message("two"), message("three")])).await.unwrap();
    transaction.commit().await.unwrap();
    let sql = format!(
        "SELECT \"{schema}\".\"{PREFIX}enqueue\"('orders', 'order.placed', 'called', '4711');
         INSERT INTO \"{schema}\".\"{PREFIX}log\" (id, topic, name, key, payload)
         VALUES (gen_random_uuid(), 'orders', 'order.placed', '4711', 'inserted');
         CREATE TABLE \"{schema}\".\"order\" (id bigint PRIMARY KEY)"
    );
    client.batch_execute(&sql).await.unwrap();
    let capture = Capture::new(&format!("{schema}.order"), "orders").unwrap().key("id").unwrap();
    let capture = capture.on_insert(Operation::named("order.placed").unwrap());
    let script = Script::new(&store.dialect(), vec![capture]).unwrap();
    client.batch_execute(&script.create()).await.unwrap();
    client.batch_execute(&format!("INSERT INTO \"{schema}\".\"order\" VALUES (7)")).await.unwrap();
    vec!["one", "two", "three", "called", "inserted", "{\"id\": 7}"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_is_a_store_of_its_own_from_the_first_message_to_the_last() {
    let schema = Schema::fresh();
    let (store, plain) = (open(schema.name(), PREFIX).await, open(schema.name(), "").await);
    let (lease, beside) = (take(&store, "r").await, take(&plain, "r").await);
    let sent = enqueue_in_every_way(&store, schema.name()).await;

    let cursor = store.resume(&lease).await.unwrap().cursor;
    let page = store.read(&lease, &cursor, WHOLE).await.unwrap();
    let texts = page.records.iter().map(|record| String::from_utf8_lossy(&record.envelope.payload).into_owned());
    assert_eq!(texts.collect::<Vec<_>>(), sent);

    // The first one is refused for good, the second one waits behind nobody, and all others are through.
    let cause = || Cause::new("refused", "no");
    let park = vec![
        (RecordRef::new(&page.records, 0), Parked::Dead { cause: cause(), attempts: 1, blocks: false }),
        (RecordRef::new(&page.records, 1), Parked::Retrying { after: Duration::ZERO, attempts: 1, cause: cause() }),
    ];
    let settlement = Settlement { number: 1, advance: Some(page.end.clone()), park, ..Settlement::default() };
    store.settle(&lease, &settlement).await.unwrap();
    let due = store.due(&lease, DUE).await.unwrap();
    assert_eq!(due.lines[0].rows[0].record.envelope.payload, "two");
    let remove = vec![due.lines[0].rows[0].ordinal];
    store.settle(&lease, &Settlement { number: 2, remove, ..Settlement::default() }).await.unwrap();
    assert_eq!(store.redrive(&ParkedFilter::default(), &Actor::new("anna")).await.unwrap(), 1);
    let due = store.due(&lease, DUE).await.unwrap();
    let row = due.timed.iter().chain(due.lines.iter().flat_map(|line| &line.rows)).next().unwrap();
    assert_eq!(row.record.envelope.payload, "one");
    let remove = vec![row.ordinal];
    store.settle(&lease, &Settlement { number: 3, remove, ..Settlement::default() }).await.unwrap();

    // Nothing of all that has reached the store beside it, which shares the schema and the route's name.
    let overview = plain.overview().await.unwrap();
    assert_eq!((overview.records, overview.routes.len()), (0, 1));
    let start = plain.resume(&beside).await.unwrap().cursor;
    assert!(plain.read(&beside, &start, WHOLE).await.unwrap().records.is_empty());

    // Retention: blocks of four numbers, so the first one is done with. Others on this server may keep the bound down for a while.
    let (client, deadline) = (connect().await, Instant::now() + Duration::from_secs(120));
    let (mut cursor, mut number) = (page.end, 3);
    while store.purge(Retention::by_age(Duration::ZERO)).await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "a block that everybody has passed is emptied");
        client.execute("SELECT pg_current_xact_id()", &[]).await.unwrap();
        cursor = store.read(&lease, &cursor, WHOLE).await.unwrap().end;
        number += 1;
        let settlement = Settlement { number, advance: Some(cursor.clone()), ..Settlement::default() };
        store.settle(&lease, &settlement).await.unwrap();
    }
    let found = store.doctor(Thresholds::default()).await.unwrap();
    let ours = ["missing-privileges", "sequence-altered", "store-locked", "ring-wrapped", "listen-broken", "pooler"];
    assert!(found.iter().all(|finding| !ours.contains(&finding.code)), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_are_those_of_the_prefix() {
    let schema = Schema::fresh();
    let (store, other) = (open(schema.name(), PREFIX).await, open(schema.name(), PREFIX).await);
    let (notifier, deadline) = (other.notifier(), Instant::now() + Duration::from_secs(60));
    let mut hint = store.hint();
    while tokio::time::timeout(Duration::from_millis(5), &mut hint).await.is_err() {
        assert!(Instant::now() < deadline, "an announcement arrives");
        notifier.notify();
    }
    let listens = format!("LISTEN \"{}.{PREFIX}log\"", schema.name());
    let listening =
        connect().await.query("SELECT 1 FROM pg_stat_activity WHERE query = $1", &[&listens]).await.unwrap();
    assert_eq!(listening.len(), 1);
}
