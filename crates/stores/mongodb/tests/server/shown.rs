//! What the guide shows to those who write in other languages. Its blocks are for the shell, which is not there: so each is held
//! against a document that says the same, name by name and value by value, and that document goes to the server.

use std::collections::BTreeSet;

use mongodb::bson::{Bson, Document, Timestamp, doc};

use crate::{names, support::Place};

const GUIDE: &str = include_str!("../../../../../docs/operate/mongodb.md");

/// The blocks, in their order.
fn blocks() -> Vec<&'static str> {
    let blocks = GUIDE.split("```js\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap().trim_end()).collect()
}

/// Names in front of a colon, outside of texts.
fn shown(js: &str) -> BTreeSet<&str> {
    let in_texts = |at: usize| js[..at].matches('\'').count() % 2 == 1 || js[..at].matches('"').count() % 2 == 1;
    let colons = js.match_indices(':').map(|(at, _)| at).filter(|at| !in_texts(*at));
    colons.map(|at| js[..at].rsplit(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().unwrap()).collect()
}

fn in_shell(value: &Bson) -> Vec<String> {
    match value {
        Bson::String(text) => vec![format!("\"{text}\""), format!("'{text}'")],
        Bson::Timestamp(Timestamp { time, increment }) => vec![format!("Timestamp({time}, {increment})")],
        Bson::Binary(_) => vec!["UUID()".to_owned()],
        Bson::Document(_) => vec!["{".to_owned()],
        other => vec![other.to_string()],
    }
}

/// Asserts that a block says what the documents say, and nothing else.
#[track_caller]
fn says(js: &str, documents: &[&Document]) {
    fn collect<'a>(document: &'a Document, into: &mut Vec<(&'a str, &'a Bson)>) {
        for (name, value) in document {
            into.push((name.as_str(), value));
            if let Bson::Document(inner) = value {
                collect(inner, into);
            }
        }
    }
    let mut said = Vec::new();
    documents.iter().for_each(|document| collect(document, &mut said));
    for (name, value) in &said {
        let written = in_shell(value).into_iter().any(|value| js.contains(&format!("{name}: {value}")));
        assert!(written, "`{name}` is {value} in\n{js}");
    }
    assert_eq!(shown(js), said.iter().map(|(name, _)| *name).collect(), "in\n{js}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_insert_enqueues() {
    let [insert, ..] = blocks()[..] else { panic!("three blocks: {:?}", blocks()) };
    let at = Timestamp { time: 0, increment: 0 };
    let payload = r#"{"number": 4711}"#;
    let message = doc! { "at": at, "topic": "orders", "name": "order.placed", "key": "4711", "payload": payload };
    let concern = doc! { "writeConcern": { "w": "majority", "j": true } };
    says(insert, &[&concern, &doc! { "_id": 4711 }, &doc! { "$set": { "state": "placed" } }, &message]);
    assert!(insert.contains("shop.postrider_log.insertOne({"), "{insert}");
    let place = Place::new().await;
    place.collection("log").insert_one(message).await.unwrap();
    let delivered = place.delivered().await;
    assert_eq!(names(&delivered), ["order.placed"]);
    assert_eq!(&delivered[0].payload[..], payload.as_bytes());
}

/// What a collector makes of such mail is tested where there is one; here, that it is mail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guides_update_leaves_mail() {
    let [_, update, _] = blocks()[..] else { panic!("three blocks: {:?}", blocks()) };
    let id = mongodb::bson::Uuid::new();
    let mail = doc! { "id": id, "topic": "orders", "name": "order.paid", "payload": r#"{"number": 4711}"# };
    let change = doc! { "$set": { "state": "paid" }, "$push": { "_outbox": mail.clone() } };
    says(update, &[&doc! { "_id": 4711 }, &change, &doc! { "writeConcern": { "w": 1, "j": true } }]);
    let place = Place::new().await;
    let orders = place.collection("orders");
    orders.insert_one(doc! { "_id": 4711 }).await.unwrap();
    orders.update_one(doc! { "_id": 4711 }, change).await.unwrap();
    let found = orders.find_one(doc! { "_outbox": { "$exists": true } }).await.unwrap().unwrap();
    assert_eq!(found.get_array("_outbox").unwrap(), &[Bson::Document(mail)]);
}

/// What it does to a collector is tested where there is one.
#[test]
fn the_guides_way_to_another_store_names_what_a_lease_has() {
    let [.., way] = blocks()[..] else { panic!("three blocks: {:?}", blocks()) };
    says(way, &[&doc! { "_id": "_outbox in orders" }, &doc! { "$unset": { "store": 1 } }]);
    assert!(way.contains("db.postrider_collector.updateOne("), "{way}");
}
