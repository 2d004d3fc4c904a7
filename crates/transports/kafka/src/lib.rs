//! A transport over Apache Kafka, both ways.
//!
//! ```no_run
//! use postrider_transport_kafka::{Access, KafkaPublisher};
//! let publisher = KafkaPublisher::builder(Access::new("kafka://127.0.0.1:9092")?).prefix("shop.").source("shop").build()?;
//! # drop(publisher);
//! # Ok::<(), postrider_core::Error>(())
//! ```
//!
//! **What is sent.** One record per message, to the Kafka topic that is named like the message's topic, behind a prefix if
//! there is one (`shop.order.placed`), or all of them to one Kafka topic. The record's key is the ordering key, and the key
//! chooses the partition by the same hash as in Kafka's own clients, so a key stays in one partition. The event travels in
//! the binary mode of CloudEvents: the payload is the value, the attributes are record headers `ce_…` and `content-type`.
//! The record's timestamp is when it was sent, because Kafka deletes by it; `ce_time` is when it was enqueued.
//!
//! **Durable** means: all replicas in sync have it (`acks=all`), and the idempotent producer has numbered it, so that what
//! the client sends again is stored once. How many replicas that must be is the topic's own `min.insync.replicas`. What the
//! engine publishes again, because it never heard an answer, is a second record; the consumer recognises it by `ce_id`. What the
//! client itself takes for acknowledged, because a later message was, is not: a partition that knows nothing of the producer yet
//! takes that one although it has just refused the one before it, and librdkafka would report both as stored.
//!
//! | answer | outcome | cause |
//! |---|---|---|
//! | acknowledged by all replicas in sync | durable | |
//! | larger than `message_bytes_max`, or, sent on its own, than the topic's `max.message.bytes` | rejected | `too-large` |
//! | there is no such topic | unavailable; rejected if the message names it, none is to be made, it has been missing for as long as `timeout`, and was never there | `no-topic` |
//! | no topic of Kafka can be called that | rejected | `bad-topic` |
//! | the record breaks a rule of the topic | rejected | `kafka-87` and so on |
//! | a partition has no leader, or replicas are missing | unavailable | `no-leader`, `replicas` |
//! | we may not write to the topic, or the cluster denies us as a whole | unavailable | `kafka-29`, `kafka-31` |
//! | no connection, and nothing was sent | unavailable | `connect`, `connect-timeout`, `denied`, `tls`, `dns` |
//! | the client's own queue is full, or a quota is exceeded | throttled | |
//! | no acknowledgement in time, for whatever reason; the brokers may have it | unavailable | `timeout`, or what the cluster says is wrong with the topic |
//! | the connection was lost | unknown | `connection-lost` |
//! | none, but a later message of the partition was acknowledged | unknown | `not-acknowledged` |
//! | any other error | unknown: the engine tells a message's fault from an outage by whether others go through | `kafka-56` and so on |
//!
//! **A topic that was there**, as this publisher has seen, and is gone is an outage for as long as it takes: somebody has deleted
//! it, or a cluster has lost it, and no message may pay for that. Who deletes a topic for good, while messages still go there,
//! pauses and resumes the route (`reopen`), or starts the program again: then it was never there.
//!
//! **Order.** One message of a key is under way at a time (`run_max` is 1), because a broker takes the second although it
//! has refused the first. Different keys are pipelined.
//!
//! **Transactions** are off unless [`Builder::transactions`] asks for them. They make what was given up half-way invisible to
//! readers that read only what is committed; they do not make delivery exactly once, and no promise rests on them. What is wrong
//! with a transaction is unavailable, under the cause `transaction`, and so is, as `not-sent`, what was acknowledged in one that
//! another message has spoilt.
//!
//! **Receiving** is [`KafkaSubscriber`], in a consumer group, which a program that ends leaves by [`KafkaSubscriber::close`].
//! Topics are made only when asked to.

mod access;
mod ailments;
mod committer;
mod connect;
mod context;
mod ending;
mod error;
mod mapping;
mod offsets;
mod publisher;
mod reader;
mod subscriber;
mod topics;
mod transaction;

pub use access::{Access, Mechanism};
pub use mapping::read;
pub use publisher::{Builder, Compression, KafkaPublisher};
pub use subscriber::{KafkaSubscriber, SubscriberBuilder};
