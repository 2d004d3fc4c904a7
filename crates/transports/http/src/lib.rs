//! A transport that posts messages as webhooks: signed by [Standard Webhooks], shaped as [CloudEvents], sent only to
//! addresses that a guard has let through. And, for receivers, the check of such a signature.
//!
//! ```no_run
//! # #[cfg(feature = "client")] {
//! use postrider_transport_http::{HttpPublisher, Secret};
//! let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD")?;
//! let publisher = HttpPublisher::builder("https://hooks.example.com/orders").secret(secret).source("shop").build()?;
//! # drop(publisher);
//! # }
//! # Ok::<(), postrider_core::Error>(())
//! ```
//!
//! **What is sent.** One `POST` per message. `webhook-id` is the message id, the same over every retry; `webhook-timestamp`
//! is the second of this attempt; `webhook-signature` has one signature per secret, so that a rotation is two secrets for a
//! while. The event travels in binary mode (the body is the payload, the attributes are `ce-` headers) or in structured
//! mode (the body is one JSON object, `application/cloudevents+json`); see [`Mode`]. The signature covers id, timestamp and
//! body: in binary mode the `ce-` headers are *not* signed. A trace context goes as `traceparent` too.
//!
//! **Durable** means: the receiver answered 2xx. What its answer's body says does not matter.
//!
//! | answer | outcome | cause |
//! |---|---|---|
//! | 2xx | durable | |
//! | 3xx | rejected; redirects are never followed | `redirect` |
//! | 401, 407 | unavailable: about us, not about the message, so no attempt is counted | `http-401`, `http-407` |
//! | 408 | unknown: perhaps it had the request | `http-408` |
//! | 410 | unavailable, and the endpoint is closed: nothing is sent any more until [`HttpPublisher::reopen`], which a pause and resume of the route calls, or a restart | `gone` |
//! | 425, 429 | throttled, for as long as `Retry-After` says (a second at least), or 5 s | |
//! | any other 4xx | rejected | `http-404` and so on, with an excerpt of the body |
//! | 502, 504 | unavailable: a gateway without anybody behind it | `http-502`, `http-504` |
//! | 503 | throttled if it has a `Retry-After`, unavailable if not | `http-503` |
//! | any other 5xx | unknown: a receiver that fails on one message fails on it again, and one that fails on all is down; the engine tells them apart by whether others go through | `http-500` and so on |
//! | anything else | rejected | `http-101` and so on |
//! | no address, no connection, no TLS | unavailable | `dns`, `address-blocked`, `connect`, `connect-timeout`, `tls` |
//! | no answer in time, connection lost, or not HTTP, after the request went out | unknown | `timeout`, `connection-lost`, `bad-response` |
//!
//! **Limits**, each with a setter on [`Builder`]: 4 requests at the same time, 15 s for each from connecting to the answer's
//! head, 64 KiB of payload. Fixed: 32 KiB of response headers, 16 KiB of response body (the rest is not read), 1 KiB of it
//! in a cause. No redirects, no cookies, no proxy, no decompression, HTTP/1.1.
//!
//! **The guard** ([`Guard`]) is for endpoints that somebody else may have chosen, or whose DNS somebody else controls. The
//! URL is `https` unless plain `http` is allowed, has no user name and a port that is allowed. Its name is resolved here,
//! every address is checked, and the connection goes to exactly those that passed; nobody resolves a second time.
//!
//! | feature | brings |
//! |---|---|
//! | `client` (default) | the publisher |
//! | `verify` | [`webhook::verify`] and [`read`], for receivers, without client or runtime |
//!
//! [Standard Webhooks]: https://www.standardwebhooks.com
//! [CloudEvents]: https://cloudevents.io

#[cfg(feature = "verify")]
mod secret;
#[cfg(feature = "verify")]
pub mod webhook;

mod mapping;

#[cfg(feature = "client")]
mod config;
#[cfg(feature = "client")]
mod connect;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
mod excerpt;
#[cfg(feature = "client")]
mod guard;
#[cfg(feature = "client")]
mod network;
#[cfg(feature = "client")]
mod pool;
#[cfg(feature = "client")]
mod publisher;
#[cfg(feature = "client")]
mod resolve;
#[cfg(feature = "client")]
mod target;
#[cfg(feature = "client")]
mod tls;

#[cfg(feature = "client")]
pub use config::Builder;
#[cfg(feature = "client")]
pub use guard::Guard;
pub use mapping::{Mode, read};
#[cfg(feature = "client")]
pub use network::Network;
#[cfg(feature = "client")]
pub use publisher::HttpPublisher;
#[cfg(feature = "client")]
pub use resolve::Resolve;
#[cfg(feature = "verify")]
pub use secret::{Secret, VerifyKey};
