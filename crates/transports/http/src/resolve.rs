//! From a name to addresses, once per connection. The guard sees every address before anything is connected to.

use std::{io, net::IpAddr};

use postrider_core::BoxFuture;

/// Who resolves names. The default asks the operating system.
pub trait Resolve: Send + Sync {
    /// The addresses of a name, in the order in which they should be tried. It is asked anew for each connection, and its
    /// answer is the only one: what it returns is filtered and connected to.
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
pub(crate) struct System;

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        // The port plays no part; the operating system wants one.
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 443)).await?.map(|found| found.ip()).collect()) })
    }
}
