//! Redis: a stream, added to in pipelines.
//!
//! The bare producer is measured in two ways, over one connection as the transport has: all pipelines in one task, and each in a
//! task of its own.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider::{
    core::{
        BoxFuture,
        transport::{Publisher, Subscriber},
    },
    redis::{Access, RedisPublisher, RedisSubscriber},
};
use redis::{AsyncConnectionConfig, Client, Pipeline, aio::MultiplexedConnection};

use super::broker::{self, BURST, Broker, TASKS, TOPIC};

const VARIABLE: &str = "POSTRIDER_BENCH_REDIS";

pub(crate) const REDIS: Redis = Redis;

pub(crate) struct Redis;

async fn connection() -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
    let client = Client::open(broker::url(VARIABLE)?)?;
    Ok(client.get_multiplexed_async_connection_with_config(&patient).await?)
}

fn stream_of(place: &str) -> String {
    format!("{place}:{TOPIC}")
}

impl Broker for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn messages_per_second(&self) -> u64 {
        60_000
    }

    /// The first message makes the stream.
    fn make<'a>(&'a self, _place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn remove<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            redis::cmd("DEL").arg(stream_of(place)).exec_async(&mut connection().await?).await?;
            Ok(())
        })
    }

    fn publisher(&self, place: &str) -> Result<Arc<dyn Publisher>> {
        let access = Access::new(&broker::url(VARIABLE)?)?;
        Ok(Arc::new(RedisPublisher::builder(access).prefix(&format!("{place}:")).declare().build()?))
    }

    fn subscriber<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<Arc<dyn Subscriber>>> {
        Box::pin(async move {
            let access = Access::new(&broker::url(VARIABLE)?)?;
            let builder = RedisSubscriber::builder(access, "bench", [stream_of(place)]).prefetch(1_000);
            Ok(Arc::new(builder.declare().subscribe().await?) as Arc<dyn Subscriber>)
        })
    }

    fn bare<'a>(&'a self, place: &'a str, messages: u64) -> BoxFuture<'a, Result<Duration>> {
        Box::pin(async move {
            let sent = Arc::new(Sent::to(place, connection().await?));
            let in_one_task = sent.in_one_task(messages).await?;
            // So that each way begins with an empty stream.
            self.remove(place).await?;
            let in_tasks = Arc::clone(&sent).in_tasks(messages).await?;
            broker::best(&[("in one task", in_one_task), ("in tasks", in_tasks)])
        })
    }
}

/// What a bare producer sends.
struct Sent {
    connection: MultiplexedConnection,
    stream: String,
    payload: Vec<u8>,
    attributes: Vec<(String, String)>,
}

impl Sent {
    fn to(place: &str, connection: MultiplexedConnection) -> Self {
        let attributes = broker::attributes(0).into_iter().map(|(name, value)| (format!("ce_{name}"), value)).collect();
        Self { connection, stream: stream_of(place), payload: broker::payload(), attributes }
    }

    async fn in_one_task(&self, messages: u64) -> Result<Duration> {
        let began = Instant::now();
        let mut answers = stream::iter(bursts(messages)).map(|numbers| self.burst(numbers)).buffer_unordered(TASKS);
        while answers.try_next().await?.is_some() {}
        Ok(began.elapsed())
    }

    async fn in_tasks(self: Arc<Self>, messages: u64) -> Result<Duration> {
        let began = Instant::now();
        let publish = |numbers: Range<u64>| {
            let sent = Arc::clone(&self);
            tokio::spawn(async move { sent.burst(numbers).await })
        };
        let mut answers = stream::iter(bursts(messages)).map(publish).buffer_unordered(TASKS);
        while let Some(published) = answers.try_next().await? {
            published?;
        }
        Ok(began.elapsed())
    }

    /// One pipeline, and its answer.
    async fn burst(&self, numbers: Range<u64>) -> Result<()> {
        let mut pipeline = Pipeline::with_capacity(BURST);
        for number in numbers {
            let command = pipeline.cmd("XADD").arg(&self.stream).arg("*");
            for (attribute, value) in &self.attributes {
                match attribute.as_str() {
                    "ce_id" => command.arg(attribute).arg(broker::id(number)),
                    _ => command.arg(attribute).arg(value),
                };
            }
            command.arg("ce_datacontenttype").arg("application/json").arg("data").arg(&self.payload).ignore();
        }
        Ok(pipeline.exec_async(&mut self.connection.clone()).await?)
    }
}

/// The numbers of each pipeline.
fn bursts(messages: u64) -> impl Iterator<Item = Range<u64>> {
    (0..messages).step_by(BURST).map(move |from| from..messages.min(from + BURST as u64))
}
