//! How the command line opens each adapter. What they do is in their own crates; the table is in [`crate::registry`].

pub(crate) mod discard;
pub(crate) mod http;
pub(crate) mod kafka;
pub(crate) mod mongodb;
pub(crate) mod mysql;
pub(crate) mod nats;
pub(crate) mod ndjson;
pub(crate) mod postgres;
pub(crate) mod rabbitmq;
pub(crate) mod redis;
pub(crate) mod sqlite;
