//! The server to test with, and streams of one's own on it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails here has found something; not every test uses all"
)]

use std::{path::PathBuf, time::Duration};

use postrider_core::cloudevents::Received;
use postrider_testkit::service;
use postrider_transport_redis::read;
use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};

const VARIABLE: &str = "POSTRIDER_TEST_REDIS";

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

/// The program, for a server of one's own.
pub(crate) fn program() -> PathBuf {
    service::program(VARIABLE, "redis-server")
}

/// Streams of one's own: those with this prefix.
pub(crate) struct Own {
    pub(crate) prefix: String,
    url: String,
}

impl Own {
    pub(crate) fn new() -> Self {
        Self::on(&url())
    }

    pub(crate) fn on(url: &str) -> Self {
        Self { prefix: format!("t{}:", uuid::Uuid::now_v7().simple()), url: url.to_owned() }
    }

    /// With more patience than the client has by itself: what is read here may be much, and the machine slow.
    pub(crate) async fn connection(&self) -> MultiplexedConnection {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(PATIENCE)).set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(self.url.as_str()).unwrap();
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }

    /// Everything in all streams, in the order of arrival: an entry's id begins with its time.
    pub(crate) async fn events(&self) -> Vec<Received> {
        let mut connection = self.connection().await;
        let streams: Vec<String> =
            redis::cmd("KEYS").arg(format!("{}*", self.prefix)).query_async(&mut connection).await.unwrap();
        let mut entries = Vec::new();
        for stream in streams {
            type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);
            let found: Vec<Entry> =
                redis::cmd("XRANGE").arg(&stream).arg("-").arg("+").query_async(&mut connection).await.unwrap();
            entries.extend(found.into_iter().map(|(id, fields)| (number(&id), read(fields).unwrap())));
        }
        entries.sort_by_key(|(id, _)| *id);
        entries.into_iter().map(|(_, event)| event).collect()
    }
}

fn number(id: &str) -> (u64, u64) {
    let (time, sequence) = id.split_once('-').unwrap();
    (time.parse().unwrap(), sequence.parse().unwrap())
}
