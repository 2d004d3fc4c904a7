//! Routes that another live process serves too, from another file.
//!
//! What a route reads is known to the store, once for all who serve it, and whoever starts last says it. One with an older file
//! (a roll-back, a replica that was forgotten) would make everybody pass over the topics that it does not know, and nobody would
//! deliver their messages. So a start reads what the others read besides, and says so; what is taken out of a file goes when
//! all who serve the route have been stopped.

use std::time::Duration;

use postrider::core::{
    admin::{NodeStatus, Overview, StoreAdmin},
    topic::TopicFilter,
};
use tracing::warn;

use crate::{config::RouteConfig, exit::Outcome};

/// How soon a store that could not be read is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Adds what others read to what these routes read. A store that is away is waited for. Can be dropped at any time.
pub(super) async fn widen(admin: &dyn StoreAdmin, store: &str, routes: &mut [RouteConfig]) -> Outcome<()> {
    let overview = loop {
        match admin.overview().await {
            Ok(overview) => break overview,
            Err(error) if error.is_transient() => {
                warn!(store, error = error.chain(), "the routes cannot be looked at; trying again");
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error.into()),
        }
    };
    for route in routes {
        let Some((node, topics)) = read_by_another(&overview, route)? else { continue };
        let shown = topics.join(", ");
        warn!(
            store,
            route = route.name,
            topics = shown,
            by = node.name,
            "another process serves this route and reads these topics, which this file does not name: they are read here too, \
             until all that serve the route were stopped"
        );
        route.topics.extend(topics);
    }
    Ok(())
}

/// Patterns that the store knows of this route, that the file does not cover, and a live process that serves it.
fn read_by_another<'a>(overview: &'a Overview, route: &RouteConfig) -> Outcome<Option<(&'a NodeStatus, Vec<String>)>> {
    let Some(node) = overview.server_of(&route.name) else { return Ok(None) };
    let known = overview.routes.iter().find(|known| known.replay_of.is_none() && *known.route == *route.name);
    // What a newer version writes and this one cannot read cannot be read by it either.
    let Some(known) = known.and_then(|known| TopicFilter::new(known.topics.split(", ")).ok()) else { return Ok(None) };
    let own = TopicFilter::new(&route.topics)?;
    let missing = known.patterns().iter().filter(|pattern| !own.covers(pattern));
    let missing: Vec<String> = missing.map(|pattern| pattern.as_str().to_owned()).collect();
    Ok((!missing.is_empty()).then_some((node, missing)))
}
