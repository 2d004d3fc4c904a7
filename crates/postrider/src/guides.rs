//! The guides in Markdown, as doc tests: what they show compiles, and runs unless it says otherwise.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/start/first-outbox.md")]
struct FirstOutbox;

#[doc = include_str!("../../../docs/extend/write-a-transport.md")]
struct WriteATransport;

#[cfg(feature = "http-verify")]
#[doc = include_str!("../../../docs/operate/webhooks.md")]
struct Webhooks;

#[cfg(feature = "postgres")]
#[doc = include_str!("../../../docs/start/rust-with-postgres.md")]
struct RustWithPostgres;

#[cfg(feature = "postgres")]
#[doc = include_str!("../../../docs/operate/debezium.md")]
struct Debezium;

#[cfg(feature = "mongodb")]
#[doc = include_str!("../../../docs/operate/mongodb.md")]
struct Mongodb;
