//! Draining a backlog: the whole engine against the usual claim in two steps, round by round. Once by a new route, which scans the
//! collection, and once by a route that was there before the backlog, which reads the change stream behind its cursor.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::TryStreamExt;
use mongodb::{
    Collection, IndexModel,
    bson::{Binary, Bson, Document, doc, spec::BinarySubtype},
};
use postrider::{
    Outbox,
    mongodb::{Mongo, MongoStore},
};
use serde_json::{Value, json};

use super::server::Server;
use crate::{
    measure::median,
    relay::{self, BATCH, KEYS, OrderPlaced, PAYLOAD_BYTES, rate},
};

/// Messages that one filling transaction inserts.
const FILL: u64 = 1_000;

pub(crate) async fn run(server: &Server, messages: u64, rounds: usize) -> Result<Value> {
    eprintln!("drain: a backlog of {messages}, {rounds} rounds");
    let (mut scans, mut streams, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    let (mut scan_ratios, mut stream_ratios) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let (scanned, streamed) = (format!("round_{round}_"), format!("stream_{round}_"));
        let store = open(server, &scanned).await?;
        fill(server, &scanned, messages).await?;
        // The route and the end of the stream are known before the backlog is there, to a relay that is gone by then: a handle
        // that stayed would have some of it in memory.
        fill(server, &streamed, 1).await?;
        relay::drain(open(server, &streamed).await?, "all", 1).await?;
        fill(server, &streamed, messages).await?;
        let behind = open(server, &streamed).await?;
        let queue = queue(server, messages).await?;
        // Each goes first every third time.
        let mut rates = [0.0; 3];
        for turn in (0..3).map(|turn| (round + turn) % 3) {
            rates[turn] = match turn {
                0 => rate(messages, relay::drain(Arc::clone(&store) as _, "all", messages).await?.took),
                1 => rate(messages, relay::drain(Arc::clone(&behind) as _, "all", messages).await?.took),
                _ => rate(messages, claim(&queue, messages).await?),
            };
        }
        queue.drop().await?;
        // The first one warms up.
        if round > 0 {
            let [scan, stream, claim] = rates;
            eprintln!("  scan {scan:.0}, stream {stream:.0}, claim {claim:.0} messages/s");
            scans.push(scan);
            streams.push(stream);
            claims.push(claim);
            scan_ratios.push(scan / claim);
            stream_ratios.push(stream / claim);
        }
    }
    Ok(json!({
        "mongodb_drain_vs_two_step_claim": median(scan_ratios),
        "mongodb_stream_drain_vs_two_step_claim": median(stream_ratios),
        "mongodb_drain_messages_per_second": median(scans),
        "mongodb_stream_drain_messages_per_second": median(streams),
        "mongodb_two_step_claim_messages_per_second": median(claims),
        "mongodb_drain_messages": messages,
    }))
}

async fn open(server: &Server, prefix: &str) -> Result<Arc<MongoStore>> {
    Ok(Arc::new(MongoStore::builder(&server.url).prefix(prefix).open().await?))
}

async fn fill(server: &Server, prefix: &str, messages: u64) -> Result<()> {
    let outbox = Outbox::new(Mongo::with_prefix(server.name(), prefix)?);
    let mut session = server.client.start_session().await?;
    for from in (0..messages).step_by(usize::try_from(FILL)?) {
        let orders: Vec<OrderPlaced> = (from..(from + FILL).min(messages)).map(OrderPlaced::new).collect();
        session.start_transaction().await?;
        outbox.enqueue_all(&mut session, &orders).await?;
        session.commit_transaction().await?;
    }
    Ok(())
}

/// The reference's collection, filled with the same messages.
async fn queue(server: &Server, messages: u64) -> Result<Collection<Document>> {
    let queue = server.database().collection::<Document>("queue");
    queue.create_index(IndexModel::builder().keys(doc! { "status": 1, "_id": 1 }).build()).await?;
    for from in (0..messages).step_by(usize::try_from(FILL)?) {
        let row = |number: u64| {
            let bytes = number.to_le_bytes().repeat(PAYLOAD_BYTES / 8);
            let payload = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes });
            let key = format!("customer-{:06}", number.wrapping_mul(7919) % KEYS);
            doc! { "topic": "orders", "name": "order.placed", "key": key, "payload": payload, "status": 0 }
        };
        queue.insert_many((from..(from + FILL).min(messages)).map(row)).await?;
    }
    Ok(queue)
}

/// The usual claim: find the ids of a batch, mark those that are still free, fetch what was got, publish, mark it done.
async fn claim(queue: &Collection<Document>, messages: u64) -> Result<Duration> {
    let (began, mut count) = (Instant::now(), 0);
    loop {
        let waiting = doc! { "status": 0 };
        let found = queue.find(waiting).sort(doc! { "_id": 1 }).limit(i64::from(BATCH)).projection(doc! { "_id": 1 });
        let ids: Vec<Document> = found.await?.try_collect().await?;
        let ids: Vec<Bson> = ids.into_iter().filter_map(|mut row| row.remove("_id")).collect();
        if ids.is_empty() {
            break;
        }
        let mine = i64::from(count);
        let free = doc! { "_id": { "$in": ids.clone() }, "status": 0 };
        queue.update_many(free, doc! { "$set": { "status": 1, "claimed_by": mine } }).await?;
        let got = doc! { "_id": { "$in": ids.clone() }, "status": 1, "claimed_by": mine };
        let rows: Vec<Document> = queue.find(got.clone()).sort(doc! { "_id": 1 }).await?.try_collect().await?;
        ensure!(rows.iter().all(|row| row.contains_key("payload")), "rows without payload");
        queue.update_many(got, doc! { "$set": { "status": 2 } }).await?;
        count += u32::try_from(rows.len())?;
    }
    ensure!(u64::from(count) == messages, "{count} instead of {messages} messages");
    Ok(began.elapsed())
}
