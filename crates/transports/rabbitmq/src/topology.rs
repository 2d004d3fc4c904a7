//! What is made when it is asked for: an exchange, a queue, and what binds them. What is there already is left as it is, also
//! where it is made otherwise; only what is missing is made.
//!
//! A quorum queue of RabbitMQ 4 drops a message that has come back to it twenty times, unless it is told otherwise: a consumer
//! that loses its connection that often would lose messages. So ours is told otherwise, in words that version 3 knows too.

use lapin::{
    Channel, Connection, Error, ErrorKind, ExchangeKind,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use postrider_core::parked::Cause;

use crate::error;

/// How often a message may come back to a quorum queue: as good as always. Version 4 would take -1, which version 3 refuses.
const DELIVERIES_MAX: i32 = i32::MAX;

/// Which kind of queue is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated: what is confirmed is with a majority of its members.
    #[default]
    Quorum,
    /// On one server, and durable.
    Classic,
}

impl QueueKind {
    fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// A queue to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) name: String,
    pub(crate) kind: QueueKind,
    /// Whether the server delivers to one consumer at a time, and to the next one only when that one is gone and everything
    /// that it had is back in the queue.
    pub(crate) single_active_consumer: bool,
}

impl Queue {
    fn arguments(&self) -> FieldTable {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(self.kind.name().into()));
        if self.kind == QueueKind::Quorum {
            arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(DELIVERIES_MAX));
        }
        if self.single_active_consumer {
            arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        }
        arguments
    }
}

/// What must be there before anything is published or received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Topology {
    /// A durable topic exchange of this name.
    pub(crate) exchange: Option<String>,
    pub(crate) queue: Option<Queue>,
    /// Exchanges that the queue takes from, by which routing keys.
    pub(crate) bindings: Vec<(String, String)>,
}

impl Topology {
    /// Makes what is missing. Dropping the future leaves a part of it made.
    pub(crate) async fn make(&self, connection: &Connection) -> Result<(), Cause> {
        if let Some(exchange) = &self.exchange {
            make(connection, &Part::Exchange(exchange)).await?;
        }
        let Some(queue) = &self.queue else { return Ok(()) };
        make(connection, &Part::Queue(queue)).await?;
        let channel = connection.create_channel().await.map_err(|e| cannot("a binding", &e))?;
        for (exchange, key) in &self.bindings {
            let (queue, exchange, key) = (queue.name.as_str().into(), exchange.as_str().into(), key.as_str().into());
            let binding = channel.queue_bind(queue, exchange, key, QueueBindOptions::default(), FieldTable::default());
            binding.await.map_err(|e| cannot("a binding", &e))?;
        }
        Ok(())
    }
}

/// Something that can be asked for and made.
enum Part<'a> {
    Exchange(&'a str),
    Queue(&'a Queue),
}

impl Part<'_> {
    /// Passively: only asks whether it is there.
    async fn declare(&self, channel: &Channel, passive: bool) -> Result<(), Error> {
        match *self {
            Self::Exchange(name) => {
                let options = ExchangeDeclareOptions { passive, durable: true, ..ExchangeDeclareOptions::default() };
                channel.exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default()).await
            }
            Self::Queue(queue) => {
                let options = QueueDeclareOptions { passive, durable: true, ..QueueDeclareOptions::default() };
                channel.queue_declare(queue.name.as_str().into(), options, queue.arguments()).await.map(drop)
            }
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Exchange(name) => format!("the exchange {name}"),
            Self::Queue(queue) => format!("the queue {}", queue.name),
        }
    }
}

/// Asks for a thing, and makes it if there is none. An answer of "no" ends the channel, so each question has its own.
async fn make(connection: &Connection, part: &Part<'_>) -> Result<(), Cause> {
    for passive in [true, false] {
        let channel = connection.create_channel().await.map_err(|e| cannot(&part.shown(), &e))?;
        match part.declare(&channel, passive).await {
            Ok(()) => return Ok(()),
            Err(error) if passive && error::code(&error) == Some(error::NOT_FOUND) => {}
            Err(error) => return Err(cannot(&part.shown(), &error)),
        }
    }
    Ok(())
}

fn cannot(what: &str, error: &Error) -> Cause {
    let code = if matches!(error.kind(), ErrorKind::ProtocolError(_)) { "declare" } else { "connect" };
    Cause::new(code, format!("{what} cannot be made: {error}"))
}
