//! One connection, made when it is first needed. From then on the client connects again on its own; while it does, nothing
//! is given to it, because it would keep it and send it late.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Client, Event, ServerError,
    connection::State,
    jetstream::{Context, context::ContextBuilder, stream},
};
use postrider_core::{BoxFuture, Result, parked::Cause};
use tokio::{
    sync::{OnceCell, broadcast, watch},
    time::timeout,
};

use tokio_rustls::rustls::ClientConfig;

use crate::{access::Access, error};

/// Acknowledgements that may be awaited at the same time: what a route may have under way by default, and more.
const UNACKNOWLEDGED_MAX: usize = 16_384;

/// Refusals that are kept for a publish that has not looked yet; of more it misses some.
const REFUSALS_MAX: usize = 1_024;

/// A connection and its JetStream.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
}

pub(crate) struct Connection {
    access: Access,
    tls: ClientConfig,
    /// How long one answer may take.
    pub(crate) timeout: Duration,
    /// Made, if it is not there, before anything is published.
    declare: Option<stream::Config>,
    opened: OnceCell<Open>,
    /// Counts lost connections: answers that are awaited when it changes will not come.
    losses: Arc<watch::Sender<u64>>,
    /// Subjects that the server did not let us publish to.
    refusals: broadcast::Sender<String>,
}

impl Connection {
    /// Reads the files that the access names, and the platform's certificates, so what is wrong with them is known before
    /// anything is connected to. Blocks for that.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub(crate) fn new(access: Access, timeout: Duration, declare: Option<stream::Config>) -> Result<Self> {
        let tls = access.tls()?;
        drop(access.options(tls.clone())?);
        let (losses, refusals) = (Arc::new(watch::Sender::new(0)), broadcast::Sender::new(REFUSALS_MAX));
        Ok(Self { access, tls, timeout, declare, opened: OnceCell::new(), losses, refusals })
    }

    /// The connection, if there is one that works; made if there never was one. Dropping the future breaks nothing.
    pub(crate) async fn get(&self) -> Result<&Open, Cause> {
        let open = match timeout(self.timeout, self.opened.get_or_try_init(|| self.open())).await {
            Ok(opened) => opened?,
            Err(_) => return Err(Cause::new("connect-timeout", format!("{} does not answer", self.access.shown()))),
        };
        if open.client.connection_state() != State::Connected {
            return Err(Cause::new("disconnected", format!("there is no connection to {}", self.access.shown())));
        }
        Ok(open)
    }

    /// Only what was opened before.
    pub(crate) fn opened(&self) -> Option<&Open> {
        self.opened.get()
    }

    /// Changes when the connection is lost.
    pub(crate) fn losses(&self) -> watch::Receiver<u64> {
        self.losses.subscribe()
    }

    /// The subjects that the server does not let us publish to, as it says so.
    pub(crate) fn refusals(&self) -> broadcast::Receiver<String> {
        self.refusals.subscribe()
    }

    fn open(&self) -> BoxFuture<'_, Result<Open, Cause>> {
        Box::pin(async move {
            let (losses, refusals) = (Arc::clone(&self.losses), self.refusals.clone());
            let options = self.access.options(self.tls.clone()).map_err(|e| Cause::new("config", e.chain()))?;
            let options = options.event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => losses.send_modify(|count| *count += 1),
                    Event::ServerError(ServerError::Other(said)) => {
                        if let Some(subject) = error::refused_subject(&said) {
                            // Nobody publishes at the moment, so nobody needs to know.
                            drop(refusals.send(subject.to_owned()));
                        }
                    }
                    _ => {}
                }
                std::future::ready(())
            });
            let client = options
                .connect(self.access.servers().to_vec())
                .await
                .map_err(|e| error::connecting(&e, &self.access.shown()))?;
            let jetstream = ContextBuilder::new()
                .timeout(self.timeout)
                .ack_timeout(self.timeout)
                .max_ack_inflight(UNACKNOWLEDGED_MAX)
                .backpressure_on_inflight(true)
                .build(client.clone());
            self.make_stream(&jetstream).await?;
            Ok(Open { client, jetstream })
        })
    }

    /// Makes the stream if it is to be made and is not there. Answers whether it is to be made.
    pub(crate) async fn make_stream(&self, jetstream: &Context) -> Result<bool, Cause> {
        let Some(stream) = &self.declare else { return Ok(false) };
        jetstream
            .get_or_create_stream(stream.clone())
            .await
            .map_err(|e| Cause::new("declare", format!("the stream {} cannot be made: {e}", stream.name)))?;
        Ok(true)
    }
}
