//! What the client tells while it works: answers to messages, and what became of its connections.
//!
//! The client connects on its own and says nothing when it succeeds. So a loss is remembered here until something goes
//! through, and whoever publishes meanwhile asks the cluster first.

use std::sync::{Mutex, MutexGuard, PoisonError};

use postrider_core::parked::Cause;
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode as Code},
    message::{DeliveryResult, Message},
    producer::ProducerContext,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::error;

/// Whether the brokers can be reached, as far as was told.
#[derive(Default)]
pub(crate) struct Health(Mutex<Told>);

#[derive(Default)]
struct Told {
    down: bool,
    /// The last thing that went wrong with a connection, which says more than that all of them are down.
    cause: Option<Cause>,
}

impl Health {
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        let mut told = self.told();
        match code {
            Code::AllBrokersDown => told.down = true,
            Code::Authentication | Code::SaslAuthenticationFailed | Code::SSL | Code::Resolve => {
                told.cause = Some(error::connecting(code, reason));
            }
            Code::BrokerTransportFailure => {
                // The client calls a refused handshake a failure of the transport afterwards.
                let better = told.cause.as_ref().is_some_and(|cause| cause.code() != "connect");
                if !better {
                    told.cause = Some(error::connecting(code, reason));
                }
            }
            _ => {}
        }
    }

    /// Something went through.
    pub(crate) fn well(&self) {
        let mut told = self.told();
        (told.down, told.cause) = (false, None);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.told().down
    }

    /// Why nothing goes through; `code` is what the last call said.
    pub(crate) fn cause(&self, code: Code, shown: &str) -> Cause {
        let mut told = self.told();
        told.down = true;
        told.cause.clone().unwrap_or_else(|| error::connecting(code, &format!("{shown}: {code}")))
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the client reports of one message.
pub(crate) enum Report {
    Acknowledged,
    /// No broker has said so: a later message of the partition was taken, so the client takes this one for stored, too. But a
    /// partition that the client has never written to before, or not for long, takes a message although it has just refused the
    /// one before it.
    Concluded,
    Failed(Code),
}

/// Where the answer to a message goes.
pub(crate) struct Slot {
    pub(crate) index: usize,
    pub(crate) answers: UnboundedSender<(usize, Report)>,
}

/// The context of a producer.
#[derive(Default)]
pub(crate) struct Producing {
    pub(crate) health: Health,
}

impl ClientContext for Producing {
    /// What matters comes as an outcome; adapters do not log.
    fn log(&self, _: RDKafkaLogLevel, _: &str, _: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        self.health.note(&error, reason);
    }
}

impl ProducerContext for Producing {
    type DeliveryOpaque = Box<Slot>;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: Box<Slot>) {
        let report = match result {
            // Brokers say where a message is.
            Ok(message) if message.offset() >= 0 => {
                self.health.well();
                Report::Acknowledged
            }
            Ok(_) => Report::Concluded,
            Err((error, _)) => Report::Failed(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        // Whoever published may have stopped waiting.
        let _ = slot.answers.send((slot.index, report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(health: &Health, code: Code, reason: &str) {
        health.note(&KafkaError::Global(code), reason);
    }

    #[test]
    fn the_first_cause_is_told_until_something_goes_through() {
        let health = Health::default();
        told(&health, Code::BrokerTransportFailure, "refused");
        assert!(!health.is_down(), "another broker may do");
        told(&health, Code::SaslAuthenticationFailed, "wrong password");
        told(&health, Code::BrokerTransportFailure, "disconnected");
        told(&health, Code::AllBrokersDown, "1/1 brokers are down");
        assert!(health.is_down());
        let cause = health.cause(Code::OperationTimedOut, "a:9092");
        assert_eq!((cause.code(), cause.to_string().contains("wrong password")), ("denied", true));
        health.well();
        assert!(!health.is_down());
        assert_eq!(health.cause(Code::OperationTimedOut, "a:9092").code(), "connect-timeout");
    }
}
