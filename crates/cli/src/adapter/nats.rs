//! `nats://host:port`: NATS JetStream, as `[route.nats]` says.

use std::sync::Arc;

use postrider::{Error, Result, core::transport::Publisher};

use crate::registry::Destination;

/// Looks the secrets up and sets the publisher up. Nothing is connected to.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    let nats = destination.nats.ok_or_else(|| Error::invalid("the settings of a route to NATS are missing"))?;
    let mut access = nats.access(destination.url)?;
    if let Some((user, password)) = nats.user.as_deref().zip(nats.password.as_ref()) {
        access = access.password(user, &password.get()?);
    }
    if let Some(token) = &nats.token {
        access = access.token(&token.get()?);
    }
    if let Some(credentials) = &nats.credentials {
        access = access.credentials(&credentials.get()?);
    }
    Ok(Arc::new(nats.builder(access).build()?))
}
