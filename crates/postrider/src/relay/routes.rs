//! The routes of a relay. Each can be replaced while it runs: another destination, rate or policy, under the same name and
//! over the same topics and lanes.

use std::{collections::BTreeMap, sync::Arc};

use postrider_core::{Error, ErrorKind, Result, lease::RouteSpec};
use tokio::sync::watch;

use super::route::Route;

pub(super) struct Routes(BTreeMap<Arc<str>, watch::Sender<Arc<Route>>>);

impl Routes {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        let entry = |route: Route| (Arc::clone(&route.name), watch::Sender::new(Arc::new(route)));
        Self(routes.into_iter().map(entry).collect())
    }

    pub(super) fn specs(&self) -> Vec<RouteSpec> {
        self.0.values().map(|route| route.borrow().spec()).collect()
    }

    /// A route as it is, and the news of its replacements.
    pub(super) fn follow(&self, name: &str) -> Option<watch::Receiver<Arc<Route>>> {
        self.0.get(name).map(watch::Sender::subscribe)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Arc<Route>> {
        self.0.values().map(|route| Arc::clone(&route.borrow()))
    }

    pub(super) fn replace(&self, route: Route) -> Result<()> {
        let problems = route.problems();
        if !problems.is_empty() {
            return Err(Error::invalid(format!("the route cannot be replaced: {}", problems.join("; "))));
        }
        let Some(current) = self.0.get(&route.name) else {
            return Err(Error::new(ErrorKind::NotFound, "this relay has no such route").with("route", &route.name));
        };
        // What the store knows of it was registered when the relay started.
        if current.borrow().spec() != route.spec() {
            let message = "topics, order, lanes and start of a route are changed by starting the relay again";
            return Err(Error::invalid(message).with("route", &route.name));
        }
        current.send_replace(Arc::new(route));
        Ok(())
    }
}
