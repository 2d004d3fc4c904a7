//! NATS: a stream on disk, acknowledgements, message ids.
//!
//! The bare producer is measured in three ways, over one connection as the transport has: one task with everything under way,
//! several tasks with a share each, and bursts that are waited for as a whole.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use async_nats::{
    HeaderMap,
    jetstream::{
        Context,
        context::{ContextBuilder, PublishAckFuture},
        message::PublishMessage,
        stream::Config,
    },
};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider::{
    core::{
        BoxFuture,
        transport::{Publisher, Subscriber},
    },
    nats::{Access, NatsPublisher, NatsSubscriber},
};

use super::broker::{self, BURST, Broker, TASKS, TOPIC, UNDER_WAY};

const VARIABLE: &str = "POSTRIDER_BENCH_NATS";

pub(crate) const NATS: Nats = Nats;

pub(crate) struct Nats;

async fn jetstream() -> Result<Context> {
    let client = async_nats::connect(broker::url(VARIABLE)?).await?;
    let context = ContextBuilder::new().max_ack_inflight(2 * UNDER_WAY).backpressure_on_inflight(true);
    Ok(context.ack_timeout(Duration::from_secs(30)).build(client))
}

impl Broker for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn messages_per_second(&self) -> u64 {
        60_000
    }

    fn make<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let config = Config { name: place.to_owned(), subjects: vec![format!("{place}.>")], ..Config::default() };
            jetstream().await?.create_stream(config).await?;
            Ok(())
        })
    }

    fn remove<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            jetstream().await?.delete_stream(place).await?;
            Ok(())
        })
    }

    fn publisher(&self, place: &str) -> Result<Arc<dyn Publisher>> {
        let access = Access::new(&broker::url(VARIABLE)?)?;
        Ok(Arc::new(NatsPublisher::builder(access).prefix(place).build()?))
    }

    fn subscriber<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<Arc<dyn Subscriber>>> {
        Box::pin(async move {
            let access = Access::new(&broker::url(VARIABLE)?)?;
            let builder = NatsSubscriber::builder(access, place, "bench").prefetch(1_000);
            let subscriber = builder.declare(&[], Duration::from_secs(30)).subscribe().await?;
            Ok(Arc::new(subscriber) as Arc<dyn Subscriber>)
        })
    }

    fn bare<'a>(&'a self, place: &'a str, messages: u64) -> BoxFuture<'a, Result<Duration>> {
        Box::pin(async move {
            let sent = Arc::new(Sent::to(place, jetstream().await?));
            // Numbers of their own: what comes again the stream would only recognise.
            let one_by_one = sent.one_by_one(0..messages, UNDER_WAY).await?;
            sent.empty(place).await?;
            let in_tasks = Arc::clone(&sent).in_tasks(messages..2 * messages).await?;
            sent.empty(place).await?;
            let in_bursts = Arc::clone(&sent).in_bursts(2 * messages..3 * messages).await?;
            broker::best(&[("one by one", one_by_one), ("in tasks", in_tasks), ("in bursts", in_bursts)])
        })
    }
}

/// What a bare producer sends.
struct Sent {
    jetstream: Context,
    subject: String,
    payload: Bytes,
    headers: HeaderMap,
}

impl Sent {
    fn to(place: &str, jetstream: Context) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json");
        for (name, value) in broker::attributes(0) {
            headers.insert(format!("ce-{name}"), value);
        }
        Self { jetstream, subject: format!("{place}.{TOPIC}"), payload: broker::payload().into(), headers }
    }

    /// Hands one to the client. What comes back is its acknowledgement.
    async fn publish(&self, number: u64) -> Result<PublishAckFuture> {
        let message = PublishMessage::build().headers(self.headers.clone()).payload(self.payload.clone());
        let message = message.message_id(broker::id(number));
        Ok(self.jetstream.send_publish(self.subject.clone(), message).await?)
    }

    async fn one_by_one(&self, numbers: Range<u64>, under_way: usize) -> Result<Duration> {
        let began = Instant::now();
        let publish = async |number: u64| Ok::<_, anyhow::Error>(self.publish(number).await?.await?);
        let mut acknowledgements = stream::iter(numbers).map(publish).buffer_unordered(under_way);
        while acknowledgements.try_next().await?.is_some() {}
        Ok(began.elapsed())
    }

    async fn in_tasks(self: Arc<Self>, numbers: Range<u64>) -> Result<Duration> {
        let began = Instant::now();
        let publish = |share: Range<u64>| {
            let sent = Arc::clone(&self);
            tokio::spawn(async move { sent.one_by_one(share, UNDER_WAY / TASKS).await })
        };
        let tasks: Vec<_> = broker::shares(&numbers, TASKS).into_iter().map(publish).collect();
        for task in tasks {
            task.await??;
        }
        Ok(began.elapsed())
    }

    async fn in_bursts(self: Arc<Self>, numbers: Range<u64>) -> Result<Duration> {
        let (began, end) = (Instant::now(), numbers.end);
        let publish = |from: u64| {
            let sent = Arc::clone(&self);
            tokio::spawn(async move { sent.burst(from..end.min(from + BURST as u64)).await })
        };
        let mut bursts = stream::iter(numbers.step_by(BURST)).map(publish).buffer_unordered(TASKS);
        while let Some(published) = bursts.try_next().await? {
            published?;
        }
        Ok(began.elapsed())
    }

    async fn burst(&self, numbers: Range<u64>) -> Result<()> {
        let mut acknowledgements = Vec::with_capacity(BURST);
        for number in numbers {
            acknowledgements.push(self.publish(number).await?);
        }
        for acknowledgement in acknowledgements {
            acknowledgement.await?;
        }
        Ok(())
    }

    /// So that each way begins with an empty stream.
    async fn empty(&self, place: &str) -> Result<()> {
        self.jetstream.get_stream(place).await?.purge().await?;
        Ok(())
    }
}
