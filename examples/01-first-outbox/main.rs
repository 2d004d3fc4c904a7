//! The smallest whole thing: a shop that writes orders to SQLite and announces them, and a relay that carries the
//! announcements to a file. See README.md beside this file.

use std::{borrow::Cow, error::Error, fs, path::Path, sync::Arc, time::Duration};

use postrider::{
    Message, Outbox, Relay, Route,
    ndjson::{NdjsonPublisher, read_line},
    sqlite::{Sqlite, SqliteStore},
};
use rusqlite::Connection;

/// What the shop announces. The name is what others see; it stays when the Rust type is renamed.
#[derive(serde::Serialize)]
struct OrderPlaced {
    order: u32,
    customer: &'static str,
    cents: u32,
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";

    fn topic(&self) -> Cow<'_, str> {
        "orders.placed".into()
    }

    /// The messages of one customer arrive in the order of their transactions.
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.into())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (database, arrivals) = (folder.path().join("shop.db"), folder.path().join("billing.ndjson"));

    // Opening the store brings its tables into the database, beside the shop's own.
    let store = SqliteStore::open(&database).await?;
    let outbox = Outbox::new(store.dialect());
    let mut shop = Connection::open(&database)?;
    shop.execute_batch(
        "CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)",
    )?;

    // Two orders commit, one is rolled back, one more commits. No relay runs yet, and nobody minds.
    place(&mut shop, &outbox, &OrderPlaced { order: 1, customer: "ada", cents: 990 }, true)?;
    place(&mut shop, &outbox, &OrderPlaced { order: 2, customer: "bob", cents: 250 }, true)?;
    place(&mut shop, &outbox, &OrderPlaced { order: 3, customer: "ada", cents: 99_999 }, false)?;
    place(&mut shop, &outbox, &OrderPlaced { order: 4, customer: "ada", cents: 480 }, true)?;

    // The relay. It could as well be another process on the same file.
    let route = Route::new("billing", NdjsonPublisher::file(&arrivals)?).topics(["orders.*"]);
    let relay = Relay::builder(Arc::new(store)).route(route).build()?;
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    let delivered = async {
        while handle.stats().durable() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), delivered).await?;

    // A clean stop: what is in flight comes back, the cursor moves over it, the lane is given back.
    handle.drain();
    running.await??;

    println!("billing received:");
    print_arrivals(&arrivals)
}

/// Writes the order and its message in one transaction: both are there afterwards, or neither.
fn place(
    shop: &mut Connection,
    outbox: &Outbox<Sqlite>,
    message: &OrderPlaced,
    commit: bool,
) -> Result<(), Box<dyn Error>> {
    let OrderPlaced { order, customer, cents } = message;
    let mut transaction = shop.transaction()?;
    transaction.execute("INSERT INTO orders VALUES (?1, ?2, ?3)", (order, customer, cents))?;
    outbox.enqueue(&mut transaction, message)?;
    if commit {
        transaction.commit()?;
        println!("order {order} of {customer}: committed");
    } else {
        transaction.rollback()?;
        println!("order {order} of {customer}: rolled back");
    }
    Ok(())
}

/// Reads back what the destination has: one JSON object per line. Customers have no order among each other, so they are
/// sorted here; the messages of one customer stay as they came.
fn print_arrivals(path: &Path) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(path)?;
    let mut arrived = text.lines().map(|line| read_line(line.as_bytes())).collect::<postrider::Result<Vec<_>>>()?;
    arrived.sort_by(|a, b| a.envelope.key.cmp(&b.envelope.key));
    for envelope in arrived.into_iter().map(|line| line.envelope) {
        println!("  {}: {}", envelope.name, String::from_utf8_lossy(&envelope.payload));
    }
    Ok(())
}
