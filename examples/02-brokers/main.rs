//! A shop that writes orders to SQLite, a broker that carries their announcements, and a billing service that receives them.
//! Which broker is said by the URL on the command line. See README.md beside this file.

use std::{borrow::Cow, error::Error, sync::Arc, time::Duration};

use postrider::{
    Message, Outbox, Relay, Route,
    core::transport::{Publisher, Subscriber},
    routing::Topics,
    sqlite::SqliteStore,
};
use rusqlite::Connection;

/// What the shop announces.
#[derive(serde::Serialize)]
struct OrderPlaced {
    order: u32,
    customer: &'static str,
    cents: u32,
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";

    /// A value of the message: what a broker keeps in order, and Kafka chooses the partition by.
    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.into())
    }
}

const ORDERS: [OrderPlaced; 4] = [
    OrderPlaced { order: 1, customer: "ada", cents: 990 },
    OrderPlaced { order: 2, customer: "bob", cents: 250 },
    OrderPlaced { order: 3, customer: "ada", cents: 480 },
    OrderPlaced { order: 4, customer: "bob", cents: 120 },
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("say which broker: `nats://…`, `amqp://…`, `redis://…` or `kafka://…`")?;
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("shop.db");

    // The shop. Its messages go under one topic, which is a rule of the application and not of a type.
    let store = SqliteStore::open(&database).await?;
    let outbox = Outbox::new(store.dialect()).with_router(Topics::new().map_type::<OrderPlaced>("orders").check()?);
    let mut shop = Connection::open(&database)?;
    shop.execute_batch(
        "CREATE TABLE orders (number INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)",
    )?;
    for message in &ORDERS {
        let mut transaction = shop.transaction()?;
        let OrderPlaced { order, customer, cents } = message;
        transaction.execute("INSERT INTO orders VALUES (?1, ?2, ?3)", (order, customer, cents))?;
        outbox.enqueue(&mut transaction, message)?;
        transaction.commit()?;
        println!("order {order} of {customer}: committed");
    }

    // The relay, to the broker. Names are new in every run, so that nothing of an earlier one is received.
    let name = format!("example-{}", uuid::Uuid::now_v7().simple());
    let route = Route::to("broker", publisher(&url, &name)?).topics(["orders"]);
    let relay = Relay::builder(Arc::new(store)).route(route).build()?;
    let handle = relay.handle();
    let running = tokio::spawn(relay.run());
    let delivered = async {
        while handle.stats().durable() < ORDERS.len() as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), delivered).await?;
    handle.drain();
    running.await??;

    // Billing. It may come late: the broker keeps what it has.
    let subscriber = subscriber(&url, &name).await?;
    let mut received = tokio::time::timeout(Duration::from_secs(60), bill(&*subscriber)).await??;

    // Customers have no order among each other, so they are sorted; the orders of one customer stay as they came.
    received.sort_by_key(|(customer, _)| customer.clone());
    println!("billing received:");
    for (customer, order) in received {
        println!("  {customer}: {order}");
    }
    Ok(())
}

/// Receives until every order is there. At least once is what a broker gives, so what came before is recognised by its id.
async fn bill(subscriber: &dyn Subscriber) -> Result<Vec<(String, String)>, postrider::Error> {
    let (mut known, mut received) = (Vec::new(), Vec::new());
    while received.len() < ORDERS.len() {
        for delivery in subscriber.receive(10).await? {
            let envelope = delivery.envelope;
            if !known.contains(&envelope.id) {
                let customer = envelope.key.as_ref().map(ToString::to_string).unwrap_or_default();
                received.push((customer, String::from_utf8_lossy(&envelope.payload).into_owned()));
                known.push(envelope.id);
            }
            subscriber.acknowledge(vec![delivery.receipt]).await?;
        }
    }
    Ok(received)
}

/// The sending end of the broker that the URL names. What is in between has this name, and is made with the first message.
fn publisher(url: &str, name: &str) -> Result<Arc<dyn Publisher>, Box<dyn Error>> {
    Ok(match scheme(url) {
        #[cfg(feature = "nats")]
        "nats" => {
            use postrider::nats::{Access, NatsPublisher};
            Arc::new(NatsPublisher::builder(Access::new(url)?).prefix(name).declare(name, 1).build()?)
        }
        #[cfg(feature = "rabbitmq")]
        "amqp" => {
            use postrider::rabbitmq::{Access, QueueKind, RabbitmqPublisher};
            let builder = RabbitmqPublisher::builder(Access::new(url)?).exchange(name);
            Arc::new(builder.declare(name, QueueKind::Quorum).build()?)
        }
        #[cfg(feature = "redis")]
        "redis" => {
            use postrider::redis::{Access, RedisPublisher};
            Arc::new(RedisPublisher::builder(Access::new(url)?).prefix(&format!("{name}.")).declare().build()?)
        }
        #[cfg(feature = "kafka")]
        "kafka" => {
            use postrider::kafka::{Access, KafkaPublisher};
            let builder = KafkaPublisher::builder(Access::new(url)?).prefix(&format!("{name}."));
            Arc::new(builder.declare(3, None).build()?)
        }
        _ => return Err(unknown(url, name)),
    })
}

/// The receiving end: billing is a durable consumer of the stream, the consumer of a queue, or a consumer group.
async fn subscriber(url: &str, name: &str) -> Result<Arc<dyn Subscriber>, Box<dyn Error>> {
    Ok(match scheme(url) {
        #[cfg(feature = "nats")]
        "nats" => {
            use postrider::nats::{Access, NatsSubscriber};
            let builder = NatsSubscriber::builder(Access::new(url)?, name, "billing");
            Arc::new(builder.declare(&[], Duration::from_secs(30)).subscribe().await?)
        }
        #[cfg(feature = "rabbitmq")]
        "amqp" => {
            use postrider::rabbitmq::{Access, RabbitmqSubscriber};
            Arc::new(RabbitmqSubscriber::builder(Access::new(url)?, name).subscribe().await?)
        }
        #[cfg(feature = "redis")]
        "redis" => {
            use postrider::redis::{Access, RedisSubscriber};
            let builder = RedisSubscriber::builder(Access::new(url)?, "billing", [format!("{name}.orders")]);
            Arc::new(builder.declare().subscribe().await?)
        }
        #[cfg(feature = "kafka")]
        "kafka" => {
            use postrider::kafka::{Access, KafkaSubscriber};
            let builder = KafkaSubscriber::builder(Access::new(url)?, name, [format!("{name}.orders")]);
            Arc::new(builder.subscribe().await?)
        }
        _ => return Err(unknown(url, name)),
    })
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn unknown(url: &str, _: &str) -> Box<dyn Error> {
    let scheme = scheme(url);
    format!("`{scheme}:` is not compiled into this example; known are the features nats, rabbitmq, redis and kafka")
        .into()
}
