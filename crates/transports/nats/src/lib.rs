//! A transport over NATS JetStream, both ways.
//!
//! ```no_run
//! use postrider_transport_nats::{Access, NatsPublisher};
//! let publisher = NatsPublisher::builder(Access::new("nats://127.0.0.1:4222")?).prefix("shop").source("shop").build()?;
//! # drop(publisher);
//! # Ok::<(), postrider_core::Error>(())
//! ```
//!
//! **What is sent.** The subject is the topic, behind a prefix if there is one (`shop.order.placed`). The event travels in
//! the binary mode of CloudEvents: the payload is the message, the attributes are `ce-` headers (percent-encoded as over
//! HTTP) and `content-type`. `Nats-Msg-Id` is the message id, with the subject and the name of a replay behind it, so that
//! what is published again inside the stream's window of duplicates is stored once, while a replay, or a second route that
//! publishes to another subject of the stream, is meant to deliver again and is not taken for a duplicate. Two routes that
//! publish one message to the same subject of the same stream store it once.
//!
//! **Durable** means: the stream has acknowledged it. How much that is worth is the stream's own setting: a stream with one
//! replica loses what its disk loses, and a server acknowledges before it syncs unless `sync_interval: always` is set.
//!
//! | answer | outcome | cause |
//! |---|---|---|
//! | acknowledgement, also of a duplicate | durable | |
//! | none: the subject is not sent, because no stream can have it, or it is the server's own | rejected | `bad-subject` |
//! | larger than the server or the stream takes | rejected | `too-large` |
//! | nobody takes the subject, and the server says that no stream has it | unavailable; rejected if the stream is not declared here, the subject has been missing for as long as `timeout`, and nobody ever took it | `no-stream` |
//! | nobody takes the subject although a stream has it, or JetStream does not answer | unavailable | `no-leader` |
//! | the stream is full, sealed, offline or has no leader, the account or the server is out of resources | unavailable | `jetstream-10077` and so on |
//! | an earlier copy of the message is still on its way into the stream | unavailable | `jetstream-10158` |
//! | the stream has too many requests | throttled | |
//! | any other error of JetStream | unknown: the engine tells a message's fault from an outage by whether others go through | `jetstream-10071` and so on |
//! | we may not publish to the subject | unavailable | `denied` |
//! | no connection | unavailable | `connect`, `denied`, `tls`, `dns`, `disconnected`, `connect-timeout` |
//! | no answer in time, whether others have theirs or not | unavailable | `timeout` |
//! | the connection was lost | unknown | `connection-lost` |
//!
//! **Subjects that are not sent.** A message whose subject has a space, a control character, an empty segment, `*` or `>`, has
//! more than 1024 bytes, or begins with `$` or with the segment `_INBOX`, `_R_` or `_GR_`, is rejected before anything is sent:
//! a topic that somebody wrote into the table may purge a stream otherwise. Behind a prefix nothing begins with those.
//!
//! **A subject that is denied** is known by the words of the server's answer (`Permissions Violation for Publish to "…"`), because
//! the protocol has no code for it, and says it to the connection and not to the message. A server that put it otherwise would
//! look like one that is silent: unavailable as well, with the cause `timeout`.
//!
//! **A subject that a stream took** before, of this publisher, and that none takes now is an outage for as long as it takes: a
//! stream in memory is gone with its server, and no message may pay for that. Who deletes a stream for good, while messages still
//! go there, pauses and resumes the route (`reopen`), or starts the program again: then it was never there.
//!
//! **Order.** One message of a key is under way at a time (`run_max` is 1), because a stream takes the second although it
//! has refused the first. Different keys are pipelined on one connection.
//!
//! **Receiving** is [`NatsSubscriber`], over a durable pull consumer. Streams and consumers are made only when asked to.

mod access;
mod connect;
mod consumer;
mod copies;
mod error;
mod fetch;
mod mapping;
mod publisher;
mod sequence;
mod subject;
mod subscriber;
mod tls;
mod unanswered;
mod unclaimed;

pub use access::Access;
pub use mapping::read;
pub use publisher::{Builder, NatsPublisher};
pub use subscriber::{NatsSubscriber, SubscriberBuilder};
