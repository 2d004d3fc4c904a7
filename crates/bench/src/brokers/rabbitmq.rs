//! RabbitMQ: a quorum queue behind an exchange, persistent messages, confirms.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
        QueueDeclareOptions, QueueDeleteOptions,
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

use super::broker::{self, Broker, NAME, TOPIC, UNDER_WAY};

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
            let (_connection, channel) = channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let payload = broker::payload();
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
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let began = Instant::now();
            let publish = async |number: u64| {
                let properties = properties.clone().with_message_id(broker::id(number).into());
                let sent = channel.basic_publish(place.into(), TOPIC.into(), options, &payload, properties).await?;
                sent.await
            };
            let mut confirms = stream::iter(0..messages).map(publish).buffer_unordered(UNDER_WAY);
            while let Some(confirmation) = confirms.try_next().await? {
                ensure!(matches!(confirmation, Confirmation::Ack(None)), "a bare message was not confirmed");
            }
            Ok(began.elapsed())
        })
    }
}
