//! A relay in a process of its own: this program once more, so that neither memory nor processor time are shared.
//!
//! The parent reads `ready` once the relay has its lane, and ends it by closing its standard input. The relay then drains
//! and prints its peak resident size, and which message it published when.

use std::{
    io::Read as _,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use postrider::{
    Relay, Route,
    core::{
        BoxFuture,
        capability::PublisherCapabilities,
        log::RecordRef,
        transport::{Outcome, Publisher},
    },
    relay::options::Options,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use super::fixtures;
use crate::{measure::peak_resident_mb, relay::OrderPlaced};

/// A running relay.
pub(crate) struct RelayProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// What it tells at its end.
pub(crate) struct Report {
    pub(crate) peak_resident_mb: f64,
    /// Number of a message, and when it was published.
    pub(crate) published: Vec<(u64, SystemTime)>,
}

impl RelayProcess {
    /// Starts one on a schema and waits until it has its lane. With a number of messages it ends by itself behind them.
    pub(crate) async fn start(url: &str, schema: &str, route: &str, messages: Option<u64>) -> Result<Self> {
        Self::start_with(url, schema, route, 1, messages).await
    }

    /// As [`Self::start`], with more than one lane.
    pub(crate) async fn start_with(
        url: &str,
        schema: &str,
        route: &str,
        lanes: u32,
        messages: Option<u64>,
    ) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("postgres-relay").arg(schema).arg(route).env(super::server::VARIABLE, url);
        command.arg("--lanes").arg(lanes.to_string());
        if let Some(messages) = messages {
            command.arg("--messages").arg(messages.to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = child.stdout.take().context("the relay has an output")?;
        let mut lines = BufReader::new(output).lines();
        match lines.next_line().await?.as_deref() {
            Some("ready") => Ok(Self { child, lines }),
            other => bail!("the relay did not become ready: {other:?}"),
        }
    }

    /// Asks it to end, and reads its report.
    pub(crate) async fn finish(mut self) -> Result<Report> {
        drop(self.child.stdin.take());
        self.report().await
    }

    /// Waits until it ends by itself.
    pub(crate) async fn wait(mut self) -> Result<Report> {
        let input = self.child.stdin.take();
        let report = self.report().await;
        drop(input);
        report
    }

    async fn report(&mut self) -> Result<Report> {
        let resident = self.lines.next_line().await?.context("the relay ended without a report")?;
        let mut report = Report { peak_resident_mb: resident.trim().parse()?, published: Vec::new() };
        while let Some(line) = self.lines.next_line().await? {
            let (number, micros) = line.split_once(' ').context("number and time")?;
            report.published.push((number.parse()?, UNIX_EPOCH + Duration::from_micros(micros.parse()?)));
        }
        ensure!(self.child.wait().await?.success(), "the relay failed");
        Ok(report)
    }
}

/// What that process does.
pub(crate) fn relay(schema: &str, route: &str, lanes: u32, messages: Option<u64>) -> Result<()> {
    let url = std::env::var(super::server::VARIABLE).context("the parent names the server")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = fixtures::store(&url, schema).await?;
        let publisher = Arc::new(NotingPublisher { notes: messages.is_none(), ..NotingPublisher::default() });
        let options = Options { keep_delivered: None, ..Options::default() };
        let route = Route::to(route, Arc::clone(&publisher) as _).lanes(lanes);
        let relay = Relay::builder(Arc::new(store)).options(options).route(route).build()?;
        let handle = relay.handle();
        let running = tokio::spawn(relay.run());
        let deadline = Instant::now() + Duration::from_secs(60);
        while handle.stats().lanes() == 0 {
            ensure!(Instant::now() < deadline, "the relay got no lane");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        println!("ready");
        match messages {
            Some(messages) => {
                while handle.stats().durable() < messages {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            None => {
                let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
                end.await??;
            }
        }
        handle.drain();
        running.await??;
        println!("{:.1}", peak_resident_mb()?);
        for (number, at) in publisher.published.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            println!("{number} {}", at.duration_since(UNIX_EPOCH)?.as_micros());
        }
        Ok(())
    })
}

/// Takes everything at once, and notes what it took when if that is wanted.
#[derive(Default)]
struct NotingPublisher {
    notes: bool,
    published: Mutex<Vec<(u64, SystemTime)>>,
}

impl Publisher for NotingPublisher {
    fn capabilities(&self) -> PublisherCapabilities {
        PublisherCapabilities {
            name: "noting",
            run_max: 64,
            message_bytes_max: None,
            batch_max: None,
            batches_max: None,
        }
    }

    fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
        if self.notes {
            let now = SystemTime::now();
            let numbers = batch.iter().filter_map(|record| OrderPlaced::number(&record.envelope.payload));
            self.published.lock().unwrap_or_else(PoisonError::into_inner).extend(numbers.map(|number| (number, now)));
        }
        Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
    }
}
