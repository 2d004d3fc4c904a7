//! A transport over RabbitMQ (AMQP 0-9-1), both ways.
//!
//! ```no_run
//! use postrider_transport_rabbitmq::{Access, RabbitmqPublisher};
//! let publisher = RabbitmqPublisher::builder(Access::new("amqp://127.0.0.1:5672")?).exchange("shop").source("shop").build()?;
//! # drop(publisher);
//! # Ok::<(), postrider_core::Error>(())
//! ```
//!
//! **What is sent.** Each message goes to one exchange, by the topic as its routing key, unless another one is set. It is
//! persistent; `message-id` is the message id, `content-type` that of the data, `type` the logical name. CloudEvents has no
//! binding for this version of AMQP; by our convention the attributes are headers named as in its binding for AMQP 1.0,
//! `cloudEvents:id` and so on, so that a consumer over either protocol finds the same event. The payload is the body.
//!
//! **Durable** means: the server has confirmed it and has not returned it (every message is mandatory). With a quorum queue,
//! which is what is made here when asked to, a majority has it then; how much a classic queue has written is its own affair.
//! RabbitMQ does not recognise duplicates; the consumer does, by the id.
//!
//! | answer | outcome | cause |
//! |---|---|---|
//! | confirmed | durable | |
//! | confirmed and returned: no queue takes the routing key | unavailable; rejected if the routing key is the message's own, is not declared here, no queue has taken it for as long as `timeout`, and none took it before | `unroutable` |
//! | larger than `message_bytes_max`, or headers that fill a frame | rejected | `too-large` |
//! | routing key of more than 255 bytes | rejected | `routing-key` |
//! | refused alone (406): larger than the server takes | rejected | `amqp-406` |
//! | negative confirm: the queue is full, or failed | unavailable | `nacked` |
//! | there is no such exchange (404) | unavailable | `no-exchange` |
//! | it may not be written to, or not with the message's routing key (403) | unavailable | `denied` |
//! | the server is out of memory or disk | unavailable | `blocked` |
//! | no connection | unavailable | `connect`, `denied`, `tls`, `connect-timeout`, `declare` |
//! | no confirm in time, whether others have theirs or not | unavailable | `timeout` |
//! | confirmed, but confirms of others are missing, and with them perhaps word that it was returned | unavailable | `doubtful` |
//! | the connection was lost | unknown | `connection-lost`, `amqp-320` and so on |
//!
//! **A routing key that a queue took** before, of this publisher, and that none takes now is an outage for as long as it takes: a
//! classic queue is gone while its server is, and no message may pay for that. Who deletes a queue for good, while messages still
//! go there, pauses and resumes the route (`reopen`), or starts the program again: then it was never taken.
//!
//! **A channel that the server ends** because of one message (403, 406) takes with it what others on it were about to be answered,
//! and the server does not say which message it was. What has no confirm goes once more, in what is left of the time: message by
//! message, or by routing keys where a right is missing. So a message that is sent beside one that is refused may be in its queue
//! twice. If eight routing keys are forbidden and nothing goes through, the exchange may be forbidden as a whole; the other keys
//! of the batch are not asked for then, and are throttled for a moment.
//!
//! A server that is out of memory or disk takes what was under way, or sent just then, when there is room again; what it has not
//! confirmed by then is published again, and is there twice. While it is blocked nothing more is sent, and the one connection is
//! kept.
//!
//! **Order.** One message of a key is under way at a time (`run_max` is 1), because the server takes the second although it
//! has refused the first. Different keys are pipelined. Each batch has a channel to itself for as long as it takes: the
//! client tells that *a* message was returned with any confirm of the same channel, so only over all confirms of a batch is
//! it known which ones were.
//!
//! **Receiving** is [`RabbitmqSubscriber`], from one queue. Exchanges and queues are made only when asked to.
//!
//! The client library logs what is returned, payload included, as a warning of the target `lapin`. Switch that off where
//! payloads must not be in logs; the binary does.

mod access;
mod apart;
mod confirm;
mod connect;
mod error;
mod line;
mod mapping;
mod publisher;
mod reader;
mod subscriber;
mod topology;

pub use access::Access;
pub use mapping::read;
pub use publisher::{Builder, RabbitmqPublisher};
pub use subscriber::{RabbitmqSubscriber, SubscriberBuilder};
pub use topology::QueueKind;
