//! Redis: a stream, added to in pipelines.

use std::{
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
            let (connection, payload, name) = (connection().await?, broker::payload(), stream_of(place));
            let attributes: Vec<(String, String)> =
                broker::attributes(0).into_iter().map(|(name, value)| (format!("ce_{name}"), value)).collect();
            let began = Instant::now();
            let publish = async |from: u64| {
                let to = messages.min(from + BURST as u64);
                let mut pipeline = Pipeline::with_capacity(BURST);
                for number in from..to {
                    let command = pipeline.cmd("XADD").arg(&name).arg("*");
                    for (attribute, value) in &attributes {
                        match attribute.as_str() {
                            "ce_id" => command.arg(attribute).arg(broker::id(number)),
                            _ => command.arg(attribute).arg(value),
                        };
                    }
                    command.arg("ce_datacontenttype").arg("application/json").arg("data").arg(&payload).ignore();
                }
                pipeline.exec_async(&mut connection.clone()).await
            };
            let batches = stream::iter((0..messages).step_by(BURST));
            let mut answers = batches.map(publish).buffer_unordered(TASKS);
            while answers.try_next().await?.is_some() {}
            Ok(began.elapsed())
        })
    }
}
