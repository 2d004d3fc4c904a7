//! `amqp://host:port/vhost` and `amqps://…`: RabbitMQ, as `[route.rabbitmq]` says.

use std::sync::Arc;

use postrider::{Error, Result, core::transport::Publisher};

use crate::registry::Destination;

/// Looks the password up and sets the publisher up. Nothing is connected to.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    let rabbitmq =
        destination.rabbitmq.ok_or_else(|| Error::invalid("the settings of a route to RabbitMQ are missing"))?;
    let mut access = rabbitmq.access(destination.url)?;
    if let Some((user, password)) = rabbitmq.user.as_deref().zip(rabbitmq.password.as_ref()) {
        access = access.password(user, &password.get()?);
    }
    Ok(Arc::new(rabbitmq.builder(access).build()?))
}
