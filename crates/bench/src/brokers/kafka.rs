//! Kafka: a topic with three partitions, an idempotent producer, `acks=all`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use futures_util::{StreamExt, TryStreamExt, stream};
use postrider::{
    core::{
        BoxFuture,
        transport::{Publisher, Subscriber},
    },
    kafka::{Access, KafkaPublisher, KafkaSubscriber},
};
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};

use super::broker::{self, Broker, TOPIC, UNDER_WAY};

const VARIABLE: &str = "POSTRIDER_BENCH_KAFKA";

const PARTITIONS: i32 = 3;

pub(crate) const KAFKA: Kafka = Kafka;

pub(crate) struct Kafka;

fn config() -> Result<ClientConfig> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", broker::url(VARIABLE)?.trim_start_matches("kafka://"));
    Ok(config)
}

fn admin() -> Result<AdminClient<DefaultClientContext>> {
    Ok(config()?.create()?)
}

fn topic_of(place: &str) -> String {
    format!("{place}.{TOPIC}")
}

/// What the cluster has to say about each topic.
fn all<T>(answers: Vec<Result<T, (T, rdkafka::types::RDKafkaErrorCode)>>) -> Result<()> {
    let refused = answers.into_iter().find_map(Result::err);
    refused.map_or(Ok(()), |(_, code)| Err(anyhow!("the cluster says {code}")))
}

impl Broker for Kafka {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn messages_per_second(&self) -> u64 {
        60_000
    }

    fn make<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let name = topic_of(place);
            let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
            all(admin()?.create_topics(&[topic], &AdminOptions::new()).await?)
        })
    }

    fn remove<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { all(admin()?.delete_topics(&[&topic_of(place)], &AdminOptions::new()).await?) })
    }

    fn publisher(&self, place: &str) -> Result<Arc<dyn Publisher>> {
        let access = Access::new(&broker::url(VARIABLE)?)?;
        Ok(Arc::new(KafkaPublisher::builder(access).prefix(&format!("{place}.")).build()?))
    }

    fn subscriber<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<Arc<dyn Subscriber>>> {
        Box::pin(async move {
            let access = Access::new(&broker::url(VARIABLE)?)?;
            let builder = KafkaSubscriber::builder(access, place, [topic_of(place)]).prefetch(1_000);
            Ok(Arc::new(builder.subscribe().await?) as Arc<dyn Subscriber>)
        })
    }

    fn bare<'a>(&'a self, place: &'a str, messages: u64) -> BoxFuture<'a, Result<Duration>> {
        Box::pin(async move {
            // As the transport sets its own.
            let mut config = config()?;
            config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
            config.set("partitioner", "murmur2_random");
            let producer: FutureProducer = config.create()?;
            let (topic, payload) = (topic_of(place), broker::payload());
            let mut headers =
                OwnedHeaders::new().insert(Header { key: "content-type", value: Some("application/json") });
            for (name, value) in broker::attributes(0) {
                headers = headers.insert(Header { key: &format!("ce_{name}"), value: Some(&value) });
            }
            let began = Instant::now();
            let publish = async |number: u64| {
                let key = format!("customer-{:06}", number % 10_000);
                let record = FutureRecord::to(&topic).key(&key).payload(&payload).headers(headers.clone());
                let sent = producer.send_result(record).map_err(|(error, _)| error)?;
                sent.await?.map_err(|(error, _)| error)?;
                Ok::<_, anyhow::Error>(())
            };
            let mut acknowledgements = stream::iter(0..messages).map(publish).buffer_unordered(UNDER_WAY);
            while acknowledgements.try_next().await?.is_some() {}
            Ok(began.elapsed())
        })
    }
}
