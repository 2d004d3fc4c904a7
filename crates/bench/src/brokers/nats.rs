//! NATS: a stream on disk, acknowledgements, message ids.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use async_nats::{
    HeaderMap,
    jetstream::{Context, context::ContextBuilder, message::PublishMessage, stream::Config},
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

use super::broker::{self, Broker, TOPIC, UNDER_WAY};

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
            let jetstream = jetstream().await?;
            let payload = Bytes::from(broker::payload());
            let subject = format!("{place}.{TOPIC}");
            let mut headers = HeaderMap::new();
            headers.insert("content-type", "application/json");
            for (name, value) in broker::attributes(0) {
                headers.insert(format!("ce-{name}"), value);
            }
            let began = Instant::now();
            let publish = async |number: u64| {
                let message = PublishMessage::build().headers(headers.clone()).payload(payload.clone());
                let message = message.message_id(broker::id(number));
                jetstream.send_publish(subject.clone(), message).await?.await
            };
            let mut acknowledgements = stream::iter(0..messages).map(publish).buffer_unordered(UNDER_WAY);
            while acknowledgements.try_next().await?.is_some() {}
            Ok(began.elapsed())
        })
    }
}
