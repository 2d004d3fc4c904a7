//! RabbitMQ: a quorum queue behind an exchange, persistent messages, confirms.
//!
//! The bare producer is measured in three ways, over one connection as the transport has: one channel with everything under
//! way, several channels with a task and a share each, and the same in bursts that are waited for as a whole.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, future::try_join_all, stream};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
    },
    types::{AMQPValue, FieldTable},
};
use postrider::{
    core::{
        BoxFuture,
        transport::{Publisher, Subscriber},
    },
    rabbitmq::{Access, RabbitmqPublisher, RabbitmqSubscriber},
};

use super::broker::{self, BURST, Broker, NAME, TASKS, TOPIC, UNDER_WAY};

const VARIABLE: &str = "POSTRIDER_BENCH_RABBITMQ";

pub(crate) const RABBITMQ: Rabbitmq = Rabbitmq;

pub(crate) struct Rabbitmq;

async fn channel() -> Result<(Connection, Channel)> {
    let connection = Connection::connect(&broker::url(VARIABLE)?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

impl Broker for Rabbitmq {
    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    fn messages_per_second(&self) -> u64 {
        15_000
    }

    fn make<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (_connection, channel) = channel().await?;
            let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            channel.exchange_declare(place.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
            let mut kind = FieldTable::default();
            kind.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
            let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(place.into(), durable, kind).await?;
            let (options, none) = (QueueBindOptions::default(), FieldTable::default());
            channel.queue_bind(place.into(), place.into(), "#".into(), options, none).await?;
            Ok(())
        })
    }

    fn remove<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (_connection, channel) = channel().await?;
            channel.queue_delete(place.into(), QueueDeleteOptions::default()).await?;
            channel.exchange_delete(place.into(), ExchangeDeleteOptions::default()).await?;
            Ok(())
        })
    }

    fn publisher(&self, place: &str) -> Result<Arc<dyn Publisher>> {
        let access = Access::new(&broker::url(VARIABLE)?)?;
        Ok(Arc::new(RabbitmqPublisher::builder(access).exchange(place).build()?))
    }

    fn subscriber<'a>(&'a self, place: &'a str) -> BoxFuture<'a, Result<Arc<dyn Subscriber>>> {
        Box::pin(async move {
            let access = Access::new(&broker::url(VARIABLE)?)?;
            let subscriber = RabbitmqSubscriber::builder(access, place).prefetch(1_000).subscribe().await?;
            Ok(Arc::new(subscriber) as Arc<dyn Subscriber>)
        })
    }

    fn bare<'a>(&'a self, place: &'a str, messages: u64) -> BoxFuture<'a, Result<Duration>> {
        Box::pin(async move {
            let (connection, channel) = channel().await?;
            let sent = Arc::new(Sent::to(place));
            let mut took = Vec::new();
            for (name, channels, window) in
                [("on one channel", 1, UNDER_WAY), ("on several", TASKS, UNDER_WAY / TASKS), ("in bursts", TASKS, 0)]
            {
                took.push((name, Arc::clone(&sent).publish_all(&connection, messages, channels, window).await?));
                // So that each way begins with an empty queue.
                channel.queue_purge(place.into(), QueuePurgeOptions::default()).await?;
            }
            broker::best(&took)
        })
    }
}

/// What a bare producer sends.
struct Sent {
    exchange: String,
    payload: Vec<u8>,
    properties: BasicProperties,
}

impl Sent {
    fn to(place: &str) -> Self {
        let mut headers = FieldTable::default();
        for (name, value) in broker::attributes(0) {
            headers.insert(format!("cloudEvents:{name}").into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type("application/json".into())
            .with_type(NAME.into())
            .with_timestamp(1)
            .with_headers(headers);
        Self { exchange: place.to_owned(), payload: broker::payload(), properties }
    }

    /// Over so many channels, each with a task and a share of the messages. Without a window they go in bursts.
    async fn publish_all(
        self: Arc<Self>,
        connection: &Connection,
        messages: u64,
        channels: usize,
        window: usize,
    ) -> Result<Duration> {
        let mut shares = Vec::new();
        for share in broker::shares(&(0..messages), channels) {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            shares.push((channel, share));
        }
        let began = Instant::now();
        let publish = |(channel, share): (Channel, Range<u64>)| {
            let sent = Arc::clone(&self);
            tokio::spawn(async move {
                match window {
                    0 => sent.in_bursts(&channel, share).await,
                    _ => sent.in_window(&channel, share, window).await,
                }
            })
        };
        let tasks: Vec<_> = shares.into_iter().map(publish).collect();
        for task in tasks {
            task.await??;
        }
        Ok(began.elapsed())
    }

    async fn in_window(&self, channel: &Channel, numbers: Range<u64>, window: usize) -> Result<()> {
        let publish = async |number| self.publish(channel, number).await;
        let mut confirms = stream::iter(numbers).map(publish).buffer_unordered(window);
        while confirms.try_next().await?.is_some() {}
        Ok(())
    }

    async fn in_bursts(&self, channel: &Channel, numbers: Range<u64>) -> Result<()> {
        let end = numbers.end;
        for from in numbers.step_by(BURST) {
            let burst = (from..end.min(from + BURST as u64)).map(|number| self.publish(channel, number));
            try_join_all(burst).await?;
        }
        Ok(())
    }

    async fn publish(&self, channel: &Channel, number: u64) -> Result<()> {
        let properties = self.properties.clone().with_message_id(broker::id(number).into());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let exchange = self.exchange.as_str().into();
        let sent = channel.basic_publish(exchange, TOPIC.into(), options, &self.payload, properties).await?;
        ensure!(matches!(sent.await?, Confirmation::Ack(None)), "a bare message was not confirmed");
        Ok(())
    }
}
