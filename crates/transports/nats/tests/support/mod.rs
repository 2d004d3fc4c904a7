//! The server to test with, and streams of one's own on it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails here has found something; not every test uses all"
)]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use async_nats::jetstream::{self, stream};
use postrider_core::cloudevents::Received;
use postrider_transport_nats::read;

const VARIABLE: &str = "POSTRIDER_TEST_NATS";

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    noted(VARIABLE).expect("there is no NATS server to test with; start one with `cargo xtask services up`")
}

/// The program, for a server of one's own.
pub(crate) fn program() -> PathBuf {
    noted(&format!("{VARIABLE}_DIR")).map_or_else(|| "nats-server".into(), |dir| Path::new(&dir).join("program"))
}

fn noted(variable: &str) -> Option<String> {
    if let Some(value) = std::env::var(variable).ok().filter(|value| !value.is_empty()) {
        return Some(value);
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(workspace, PathBuf::from);
    let noted = std::fs::read_to_string(target.join("services.env")).unwrap_or_default();
    noted.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('=')).map(str::to_owned)
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
        let config =
            stream::Config { name: name.clone(), subjects: vec![format!("{name}.>")], ..stream::Config::default() };
        jetstream.create_stream(config).await.unwrap();
        Self { name, jetstream }
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

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
