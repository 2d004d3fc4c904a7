//! Producers: a transaction with a business insert and an enqueue, against the business insert alone.
//!
//! Variants take turns in short slices, in another order each round, with two sessions a core (`mongodb_producer_ratio`), with
//! as many as keep both cores busy, and with one:
//!
//! | variant | commands | compared with |
//! |---|---|---|
//! | business | insert, commit | |
//! | enqueue | insert, enqueue, commit | business |
//! | plain document | insert, insert of the same bytes into a plain collection, commit | business: no log can be much cheaper |

use std::time::Duration;

use anyhow::Result;
use futures_util::future::try_join_all;
use mongodb::{
    ClientSession, Collection,
    bson::{Binary, DateTime, Document, Timestamp, doc, spec::BinarySubtype},
};
use postrider::{
    Message, Outbox,
    core::envelope::MessageId,
    mongodb::{Mongo, MongoStore},
};
use serde_json::{Value, json};

use super::server::Server;
use crate::{
    closed_loop::{self, take_turns},
    relay::OrderPlaced,
};

const PREFIX: &str = "producer_";

/// One turn of one variant.
const SLICE: Duration = Duration::from_millis(200);

/// What a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Variant {
    Business,
    Enqueue,
    PlainDocument,
}

const VARIANTS: [Variant; 3] = [Variant::Business, Variant::Enqueue, Variant::PlainDocument];

struct Producer {
    session: ClientSession,
    orders: Collection<Document>,
    plain: Collection<Document>,
    outbox: Outbox<Mongo>,
    number: u64,
}

pub(crate) async fn run(server: &Server, rounds: usize) -> Result<Value> {
    eprintln!("producers: {rounds} rounds");
    MongoStore::builder(&server.url).prefix(PREFIX).open().await?;
    for name in ["orders", "plain"] {
        server.database().create_collection(name).await?;
    }
    let mut many = producers(server, 16).await?;
    let mut some = producers(server, 4).await?;
    let mut one = producers(server, 1).await?;
    let rates = take_turns([&mut many, &mut some, &mut one], &VARIANTS, SLICE, rounds).await?;
    let ratio = |sessions, variant| rates.ratio(sessions, variant, Variant::Business);
    Ok(json!({
        "mongodb_producer_ratio": ratio(4, Variant::Enqueue),
        "mongodb_producer_plain_document_ratio": ratio(4, Variant::PlainDocument),
        "mongodb_producer_16_ratio": ratio(16, Variant::Enqueue),
        "mongodb_producer_16_plain_document_ratio": ratio(16, Variant::PlainDocument),
        "mongodb_producer_1_ratio": ratio(1, Variant::Enqueue),
        "mongodb_producer_1_plain_document_ratio": ratio(1, Variant::PlainDocument),
        "mongodb_producer_business_per_second": rates.rate(4, Variant::Business),
        "mongodb_producer_16_business_per_second": rates.rate(16, Variant::Business),
    }))
}

async fn producers(server: &Server, sessions: u64) -> Result<Vec<Producer>> {
    try_join_all((0..sessions).map(|number| async move {
        let session = server.client.start_session().await?;
        let outbox = Outbox::new(Mongo::with_prefix(server.name(), PREFIX)?);
        let collection = |name: &str| server.database().collection(name);
        let (orders, plain) = (collection("orders"), collection("plain"));
        Ok::<_, anyhow::Error>(Producer { session, orders, plain, outbox, number })
    }))
    .await
}

impl closed_loop::Producer for Producer {
    type Variant = Variant;

    async fn transaction(&mut self, variant: Variant) -> Result<()> {
        self.number += 16;
        let order = OrderPlaced::new(self.number);
        self.session.start_transaction().await?;
        let row = doc! { "customer": order.customer(), "amount": i64::try_from(self.number)? };
        self.orders.insert_one(row).session(&mut self.session).await?;
        match variant {
            Variant::Business => {}
            Variant::Enqueue => self.outbox.enqueue(&mut self.session, &order).await?,
            Variant::PlainDocument => {
                self.plain.insert_one(plain(&order)?).session(&mut self.session).await.map(drop)?;
            }
        }
        self.session.commit_transaction().await?;
        Ok(())
    }
}

/// What the log stores of a message, in a collection that is nothing but one.
fn plain(order: &OrderPlaced) -> Result<Document> {
    let id = MessageId::generate();
    Ok(doc! {
        "at": Timestamp { time: 0, increment: 0 },
        "enqueued_at": DateTime::now(),
        "id": Binary { subtype: BinarySubtype::Uuid, bytes: id.0.as_bytes().to_vec() },
        "topic": &*order.topic(),
        "name": OrderPlaced::NAME,
        "key": order.customer(),
        "payload": Binary { subtype: BinarySubtype::Generic, bytes: order.encode()? },
    })
}
