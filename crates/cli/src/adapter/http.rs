//! `https://host/path` and `http://host/path`: webhooks, as `[route.http]` says.

use std::sync::Arc;

use postrider::{Error, Result, core::transport::Publisher, http::Secret};

use crate::registry::Destination;

/// Looks the secrets up and sets the publisher up. Nothing is connected to.
pub(crate) fn open(destination: &Destination<'_>) -> Result<Arc<dyn Publisher>> {
    let Some(http) = destination.http else {
        return Err(Error::invalid("a webhook needs the table `[route.http]`, which says where its secret is"));
    };
    let mut builder = http.builder(destination.url);
    for place in &http.secrets {
        builder = builder.secret(Secret::parse(&place.get()?)?);
    }
    for (name, place) in &http.headers {
        builder = builder.header(name, &place.get()?);
    }
    Ok(Arc::new(builder.build()?))
}
