//! A transport that writes one JSON object per line, to standard output, to a file, or to any writer.
//!
//! ```text
//! {"id":"0197…","topic":"orders","name":"order.placed","key":"4711","headers":{"tenant":"7"},"enqueued_at":"2026-11-15T20:24:41.000250Z","payload":{"cents":990}}
//! ```
//!
//! `key` and `headers` are left out where there are none. A payload that is JSON text on one line stands there as it is,
//! under `payload`; any other, also JSON that spans several lines, stands under `payload_base64`. Either way [`read_line`]
//! gives back the very bytes.
//!
//! **Durable** means: for a file, written and synced to disk (unless [`NdjsonPublisher::sync`] says otherwise); for standard
//! output and other writers, written and flushed.
//!
//! **Several writers.** Any number of processes on one machine may append to one file: each batch is written under an
//! exclusive lock of the file. A writer that is stopped while it holds the lock holds up the others until it goes on or
//! ends.
//!
//! **A torn line.** A crash or a full disk can leave part of a batch behind, with a torn line at its end. Whoever writes to
//! the file next completes it with a line break, so it never swallows its successor. A reader skips a line that is not a
//! whole object: its message was not answered as durable, so the relay publishes it again.
//!
//! ```
//! # use postrider_core::transport::Publisher;
//! # fn main() -> postrider_core::Result<()> {
//! # let directory = std::env::temp_dir().join(format!("postrider-ndjson-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory).expect("a directory");
//! # let path = directory.join("events.ndjson");
//! use postrider_transport_ndjson::NdjsonPublisher;
//! let publisher = NdjsonPublisher::file(&path)?;
//! assert_eq!(publisher.capabilities().name, "file");
//! # std::fs::remove_dir_all(&directory).expect("clean up");
//! # Ok(())
//! # }
//! ```

mod error;
mod line;
mod publisher;
mod sink;

pub use line::{Line, read_line};
pub use publisher::NdjsonPublisher;
