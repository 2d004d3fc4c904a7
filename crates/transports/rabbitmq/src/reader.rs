//! What reads ahead for a subscriber: a task with a connection of its own, made anew when it is lost.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures_util::StreamExt;
use lapin::{
    Channel, Connection, Consumer,
    message::Delivery,
    options::{BasicConsumeOptions, BasicQosOptions},
    types::FieldTable,
};
use postrider_core::{Error, ErrorKind, Result};
use tokio::{
    sync::mpsc::Sender,
    time::{Instant, sleep, timeout},
};

use crate::{
    error, mapping,
    subscriber::{Item, Shared},
};

/// How long to wait after an error.
const PAUSE: Duration = Duration::from_millis(200);

/// One connection, on which the server delivers.
pub(crate) struct Session {
    number: u64,
    consumer: Consumer,
    /// They end when they are dropped.
    _channel: Channel,
    _connection: Connection,
}

/// Connects and asks for deliveries, no more of them at a time than is wanted.
pub(crate) async fn begin(shared: &Shared) -> Result<Session> {
    let cannot = |cause| Error::new(ErrorKind::Unavailable, "connect to RabbitMQ").with("cause", cause);
    let connection = shared.access.connect(shared.timeout).await.map_err(cannot)?;
    let late = |_| Error::new(ErrorKind::Unavailable, "RabbitMQ does not answer in time");
    timeout(shared.timeout, shared.topology.make(&connection))
        .await
        .map_err(late)?
        .map_err(|cause| Error::new(ErrorKind::Unavailable, "make the queue to receive from").with("cause", cause))?;
    let consuming = async {
        let channel = connection.create_channel().await?;
        channel.basic_qos(shared.prefetch, BasicQosOptions::default()).await?;
        let (queue, options) = (shared.queue.as_str().into(), BasicConsumeOptions::default());
        let consumer = channel.basic_consume(queue, "".into(), options, FieldTable::default()).await?;
        Ok((channel, consumer))
    };
    let consuming = timeout(shared.timeout, consuming).await.map_err(late)?;
    let (channel, consumer) = consuming
        .map_err(|error| failed("receive from the queue; make it, or ask for it to be declared", error))
        .map_err(|error| error.with("queue", &shared.queue))?;
    Ok(Session { number: shared.begin_session(), consumer, _channel: channel, _connection: connection })
}

/// Reads until the task is aborted or nobody receives any more. While it does, the way to whoever receives is open.
pub(crate) async fn run(shared: Arc<Shared>, sender: Sender<Result<Item>>, first: Session) {
    let mut session = Ok(first);
    loop {
        let error = match session {
            Ok(session) => match read(&shared, &sender, session).await {
                Err(error) => error,
            },
            Err(error) => error,
        };
        if sender.is_closed() {
            return;
        }
        // Only as long as there is room: one error is as good as a hundred.
        drop(sender.try_send(Err(error)));
        sleep(PAUSE).await;
        session = begin(&shared).await;
    }
}

/// Reads over one connection until that fails.
async fn read(shared: &Shared, sender: &Sender<Result<Item>>, mut session: Session) -> Result<Infallible> {
    while let Some(delivery) = session.consumer.next().await {
        let delivery = delivery.map_err(|error| failed("receive from the queue", error))?;
        let ended = |_| Error::new(ErrorKind::Unavailable, "nobody receives any more");
        sender.send(Ok(item(shared, session.number, delivery))).await.map_err(ended)?;
    }
    Err(Error::new(ErrorKind::Unavailable, "the server has ended the deliveries of the queue")
        .with("queue", &shared.queue))
}

fn item(shared: &Shared, session: u64, delivery: Delivery) -> Item {
    // A fanout exchange asks for no routing key.
    let key = delivery.routing_key.as_str();
    let place = if key.is_empty() { &shared.queue } else { key };
    let attempt = mapping::attempt(&delivery.properties, delivery.redelivered);
    let envelope = mapping::envelope(place, &delivery.properties, delivery.data.into());
    Item { session, envelope, attempt, delivered_at: Instant::now(), acker: delivery.acker }
}

/// What the server says no to for good is told from what passes.
fn failed(what: &'static str, error: lapin::Error) -> Error {
    let kind = match error::code(&error) {
        Some(error::NOT_FOUND) => ErrorKind::NotFound,
        Some(error::ACCESS_REFUSED) => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).caused_by(error)
}
