//! The server to test with, and streams of one's own on it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails here has found something; not every test uses all"
)]

use std::{path::PathBuf, time::Duration};

use async_nats::jetstream::{self, stream};
use postrider_core::cloudevents::Received;
use postrider_testkit::service;
use postrider_transport_nats::read;

const VARIABLE: &str = "POSTRIDER_TEST_NATS";

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

/// The program, for a server of one's own.
pub(crate) fn program() -> PathBuf {
    service::program(VARIABLE, "nats-server")
}

/// A stream of one's own. Its name is the prefix of its subjects.
pub(crate) struct Own {
    pub(crate) name: String,
    pub(crate) jetstream: jetstream::Context,
}

impl Own {
    pub(crate) async fn new() -> Self {
        Self::on(&url()).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        let client = async_nats::connect(url).await.unwrap();
        let jetstream = jetstream::new(client);
        let name = format!("T{}", uuid::Uuid::now_v7().simple());
        let config = stream::Config {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            // Longer than any test takes, so that whatever is published again in it is recognised.
            duplicate_window: Duration::from_secs(3_600),
            ..stream::Config::default()
        };
        jetstream.create_stream(config).await.unwrap();
        Self { name, jetstream }
    }

    /// From now on the stream takes these subjects.
    pub(crate) async fn takes(&self, subjects: &[String]) {
        let mut stream = self.jetstream.get_stream(&self.name).await.unwrap();
        let config = stream.info().await.unwrap().config.clone();
        self.jetstream.update_stream(stream::Config { subjects: subjects.to_vec(), ..config }).await.unwrap();
    }

    /// Everything in the stream, in its order.
    pub(crate) async fn events(&self) -> Vec<Received> {
        let mut stream = self.jetstream.get_stream(&self.name).await.unwrap();
        let state = stream.info().await.unwrap().state.clone();
        let mut events = Vec::new();
        for sequence in state.first_sequence..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            events.push(read(&message.headers, message.payload).unwrap());
        }
        events
    }

    pub(crate) async fn count(&self) -> u64 {
        let mut stream = self.jetstream.get_stream(&self.name).await.unwrap();
        stream.info().await.unwrap().state.messages
    }
}
