//! Postrider: transactional outbox and relay.
//!
//! A service changes its data and announces it in one database transaction; Postrider carries the announcement to the
//! broker. Nothing lost, nothing sent that was rolled back, order kept per key.
//!
//! ```
//! use std::{borrow::Cow, sync::Arc};
//! use postrider::{Message, Outbox, Relay, Route, memory::{Memory, MemoryStore}};
//!
//! #[derive(serde::Serialize)]
//! struct OrderPlaced { order: String }
//!
//! impl Message for OrderPlaced {
//!     const NAME: &'static str = "order.placed";
//!     fn key(&self) -> Option<Cow<'_, str>> { Some(self.order.as_str().into()) }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> postrider::Result<()> {
//! let store = MemoryStore::new();
//! let outbox = Outbox::new(Memory);
//!
//! // In the application: the message commits with the data, or not at all.
//! let mut tx = store.begin();
//! outbox.enqueue(&mut tx, &OrderPlaced { order: "4711".into() })?;
//! tx.commit();
//!
//! // Beside it, or in a process of its own: the relay.
//! let (sender, mut arrived) = tokio::sync::mpsc::unbounded_channel();
//! let route = Route::handler("everything", move |record| {
//!     let sender = sender.clone();
//!     async move { sender.send(record.envelope.name.to_string()).map_err(|_| "nobody listens") }
//! });
//! let relay = Relay::builder(Arc::new(store)).route(route).build()?;
//! let handle = relay.handle();
//! let running = tokio::spawn(relay.run());
//! assert_eq!(arrived.recv().await.as_deref(), Some("order.placed"));
//! handle.drain();
//! running.await.expect("no panic")?;
//! # Ok(()) }
//! ```
//!
//! The way of a message, as modules: [`outbox`] (enqueue) → [`relay`] (read, dispatch, settle) → a publisher. The
//! [`handler`] module makes a publisher of an async function.
//!
//! | feature | brings | in C |
//! |---|---|---|
//! | `memory` (default) | a store and a transport inside the process | |
//! | `sqlite` | the SQLite store, with rusqlite transactions | SQLite |
//! | `sqlx-sqlite` | sqlx transactions for it | SQLite |
//! | `postgres` | the PostgreSQL store, with tokio-postgres transactions | TLS |
//! | `sqlx-postgres` | sqlx transactions for it | TLS |
//! | `diesel`, `diesel-async` | diesel transactions for it, by `postgres::enlist::DieselTransaction` | TLS |
//! | `sea-orm` | SeaORM transactions for it | TLS |
//! | `mysql` | the store for MariaDB and MySQL, with mysql_async transactions | TLS |
//! | `sqlx-mysql` | sqlx transactions for it | TLS |
//! | `mongodb` | the MongoDB store, with sessions of the official driver | TLS |
//! | `ndjson` | a transport that writes one JSON object per line | |
//! | `nats` | a transport over NATS JetStream, both ways | TLS |
//! | `rabbitmq` | a transport over RabbitMQ, both ways | TLS |
//! | `redis` | a transport over Redis Streams, both ways | TLS |
//! | `kafka` | a transport over Apache Kafka, both ways | librdkafka, OpenSSL |
//! | `metrics` | metrics of a relay, as text for Prometheus | |
//! | `opentelemetry` | spans for creating and handling messages, by the API of OpenTelemetry | |
//! | `http` | a transport that posts signed webhooks | TLS |
//! | `http-verify` | for receivers of webhooks: the check of a signature, without the client | |
//!
//! What is in C is compiled along. SQLite and the cryptography of TLS (AWS-LC) take a C compiler and nothing of the system;
//! librdkafka takes a C++ compiler, `make` and the headers of OpenSSL as well, whose libraries are the system's. The checks of
//! this tree fail if a feature brings anything more.
//!
//! What a feature brings is not there without it, and the compiler names the feature that is missing.

pub mod diagnosis;
#[cfg(all(doctest, feature = "sqlite", feature = "ndjson"))]
mod guides;
pub mod handler;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod outbox;
pub mod relay;
pub mod routing;
pub mod runtime;
#[cfg(feature = "opentelemetry")]
pub mod traces;

pub use outbox::{Enqueue, Outbox};
pub use postrider_core::{
    self as core, Error, ErrorKind, Result,
    envelope::{Envelope, MessageId},
    message::Message,
    transport::Outcome,
};
pub use relay::{Relay, Route};

/// The store and the transport that live inside the process.
#[cfg(feature = "memory")]
pub mod memory {
    pub use postrider_store_memory::*;
    pub use postrider_transport_memory::*;
}

/// The SQLite store.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use postrider_store_sqlite::*;
}

/// The PostgreSQL store.
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use postrider_store_postgres::*;
}

/// The store for MariaDB and MySQL.
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use postrider_store_mysql::*;
}

/// The MongoDB store.
#[cfg(feature = "mongodb")]
pub mod mongodb {
    pub use postrider_store_mongodb::*;
}

/// The transport that writes one JSON object per line.
#[cfg(feature = "ndjson")]
pub mod ndjson {
    pub use postrider_transport_ndjson::*;
}

/// The transport over NATS JetStream.
#[cfg(feature = "nats")]
pub mod nats {
    pub use postrider_transport_nats::*;
}

/// The transport over RabbitMQ.
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq {
    pub use postrider_transport_rabbitmq::*;
}

/// The transport over Redis Streams.
#[cfg(feature = "redis")]
pub mod redis {
    pub use postrider_transport_redis::*;
}

/// The transport over Apache Kafka.
#[cfg(feature = "kafka")]
pub mod kafka {
    pub use postrider_transport_kafka::*;
}

/// The transport that posts signed webhooks, and the check of a signature for receivers.
#[cfg(any(feature = "http", feature = "http-verify"))]
pub mod http {
    pub use postrider_transport_http::*;
    // By name as well, so that whoever has `http-verify` alone is told by the compiler which feature brings them.
    #[cfg(feature = "http")]
    pub use postrider_transport_http::{Builder, Guard, HttpPublisher, Network, Resolve};
}
