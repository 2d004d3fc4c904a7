//! A transport over Redis Streams, both ways.
//!
//! ```no_run
//! use postrider_transport_redis::{Access, RedisPublisher};
//! let publisher = RedisPublisher::builder(Access::new("redis://127.0.0.1:6379/0")?).prefix("shop:").source("shop").build()?;
//! # drop(publisher);
//! # Ok::<(), postrider_core::Error>(())
//! ```
//!
//! **What is sent.** One entry per message, by `XADD`, to the stream that is named like the topic, behind a prefix if there is
//! one (`shop:order.placed`), or all of them to one stream. CloudEvents has no binding for Redis; by our convention the
//! attributes are the fields `ce_specversion`, `ce_id` and so on, as UTF-8, and the payload is the field `data`. Streams are
//! never trimmed here.
//!
//! **Durable** means: the server has answered with the entry's id, and if `replicas` is set, that many replicas have it too
//! (`WAIT`). While they are missing nothing more is written; what was just written when they went is looked for when they are
//! back, and not written again, unless the connection to the server was lost as well: then no more than one batch is written once
//! more, for each connection that is lost. What that survives is the server's own
//! setting: with `appendfsync everysec` a power cut takes a second. Redis before 8.6 does not recognise duplicates; the
//! consumer does, by the id.
//!
//! | answer | outcome | cause |
//! |---|---|---|
//! | an entry's id | durable | |
//! | nil: there is no such stream, and none is to be made | unavailable; rejected if the stream is the message's own, has been missing for as long as `timeout`, and was never there | `no-stream` |
//! | larger than `message_bytes_max` | rejected | `too-large` |
//! | `WRONGTYPE`: the name is taken by something that is no stream | rejected if the stream is the message's own; unavailable if it is one for all | `redis-wrongtype` |
//! | `OOM`, `READONLY`, `LOADING`, `MISCONF`, `NOREPLICAS`, `NOAUTH`, `NOPERM`, `MOVED` and the like | unavailable | `redis-oom` and so on |
//! | any other error | unknown: the engine tells a message's fault from an outage by whether others go through | `redis-err` and so on |
//! | fewer replicas than asked for | unavailable | `replicas` |
//! | no connection | unavailable | `connect`, `connect-timeout`, `denied`, `tls` |
//! | no answer in time | unavailable | `timeout` |
//! | the connection was lost | unknown | `connection-lost` |
//!
//! **A stream that was there**, because it took a message of this publisher, and is gone is an outage for as long as it takes: a
//! server that was started without its data has none, and no message may pay for that. Who deletes a stream for good, while
//! messages still go there, pauses and resumes the route (`reopen`), or starts the program again: then it was never there.
//!
//! **Order.** One message of a key is under way at a time (`run_max` is 1), because Redis takes the second although it has
//! refused the first. Different keys are pipelined on one connection; with `replicas`, one batch at a time.
//!
//! **Receiving** is [`RedisSubscriber`], in a consumer group. Streams and groups are made only when asked to. One server or a
//! primary with replicas; not Redis Cluster.

mod access;
mod connect;
mod error;
mod keeper;
mod mapping;
mod publisher;
mod reader;
mod replicas;
mod reply;
mod subscriber;

pub use access::Access;
pub use mapping::read;
pub use publisher::{Builder, RedisPublisher};
pub use subscriber::{RedisSubscriber, SubscriberBuilder};
