//! `redis://host:port/database` and `rediss://…`: Redis Streams, as `[route.redis]` says.

use std::sync::Arc;

use postrider::{Error, Result, core::transport::Publisher};

use crate::registry::Destination;

/// Looks the password up and sets the publisher up. Nothing is connected to.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    let redis = destination.redis.ok_or_else(|| Error::invalid("the settings of a route to Redis are missing"))?;
    let mut access = redis.access(destination.url)?;
    if let Some(password) = &redis.password {
        access = access.password(redis.user.as_deref(), &password.get()?);
    }
    Ok(Arc::new(redis.builder(access).build()?))
}
