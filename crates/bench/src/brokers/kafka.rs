//! Kafka: a topic with three partitions, an idempotent producer, `acks=all`.
//!
//! The bare producer is measured twice, and the better one counts: one message after the other, a new one with each
//! acknowledgement, and bursts that are waited for as a whole. Which of them makes the larger requests depends on the machine.

use std::{
    ops::Range,
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
    ClientConfig, ClientContext,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    error::RDKafkaErrorCode as Code,
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, FutureProducer, FutureRecord, ProducerContext, ThreadedProducer},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::broker::{self, BURST, Broker, TASKS, TOPIC, UNDER_WAY};

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
            let sent = Arc::new(Sent::to(place));
            let (one_by_one, in_bursts) = (sent.one_by_one(messages).await?, sent.in_bursts(messages).await?);
            broker::best(&[("one by one", one_by_one), ("in bursts", in_bursts)])
        })
    }
}

/// As the transport sets its own.
fn producing() -> Result<ClientConfig> {
    let mut config = config()?;
    config.set("enable.idempotence", "true").set("acks", "all").set("linger.ms", "1");
    config.set("partitioner", "murmur2_random");
    Ok(config)
}

fn key(number: u64) -> String {
    format!("customer-{:06}", number % 10_000)
}

/// What a bare producer sends.
struct Sent {
    topic: String,
    payload: Vec<u8>,
    headers: OwnedHeaders,
}

impl Sent {
    fn to(place: &str) -> Self {
        let mut headers = OwnedHeaders::new().insert(Header { key: "content-type", value: Some("application/json") });
        for (name, value) in broker::attributes(0) {
            headers = headers.insert(Header { key: &format!("ce_{name}"), value: Some(&value) });
        }
        Self { topic: topic_of(place), payload: broker::payload(), headers }
    }

    async fn one_by_one(&self, messages: u64) -> Result<Duration> {
        let producer: FutureProducer = producing()?.create()?;
        let began = Instant::now();
        let publish = async |number: u64| {
            let key = key(number);
            let record = FutureRecord::to(&self.topic).key(&key).payload(&self.payload).headers(self.headers.clone());
            let sent = producer.send_result(record).map_err(|(error, _)| error)?;
            sent.await?.map_err(|(error, _)| error)?;
            Ok::<_, anyhow::Error>(())
        };
        let mut acknowledgements = stream::iter(0..messages).map(publish).buffer_unordered(UNDER_WAY);
        while acknowledgements.try_next().await?.is_some() {}
        Ok(began.elapsed())
    }

    async fn in_bursts(self: Arc<Self>, messages: u64) -> Result<Duration> {
        let producer: ThreadedProducer<Answers> = producing()?.create_with_context(Answers)?;
        let producer = Arc::new(producer);
        let began = Instant::now();
        let publish = |from: u64| {
            let (sent, producer) = (Arc::clone(&self), Arc::clone(&producer));
            tokio::spawn(async move { sent.burst(&producer, from..messages.min(from + BURST as u64)).await })
        };
        let bursts = stream::iter((0..messages).step_by(BURST)).map(publish);
        let mut bursts = bursts.buffer_unordered(TASKS);
        while let Some(published) = bursts.try_next().await? {
            published?;
        }
        Ok(began.elapsed())
    }

    async fn burst(&self, producer: &ThreadedProducer<Answers>, numbers: Range<u64>) -> Result<()> {
        let (sender, mut answers) = unbounded_channel();
        for number in numbers {
            let key = key(number);
            let record = BaseRecord::with_opaque_to(&self.topic, Box::new(sender.clone()));
            let record = record.key(&key).payload(&self.payload).headers(self.headers.clone());
            producer.send(record).map_err(|(error, _)| error)?;
        }
        drop(sender);
        while let Some(answer) = answers.recv().await {
            answer?;
        }
        Ok(())
    }
}

/// Tells whoever has sent a burst what became of each of its messages.
struct Answers;

impl ClientContext for Answers {}

impl ProducerContext for Answers {
    type DeliveryOpaque = Box<UnboundedSender<Result<(), Code>>>;

    fn delivery(&self, result: &DeliveryResult<'_>, sender: Self::DeliveryOpaque) {
        let answer = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        // Nobody waits any more if the measurement has failed.
        let _ = sender.send(answer);
    }
}
