//! Topics that no route reads, looked for before a relay starts: a message that nobody will ever deliver must not be found
//! out later.
//!
//! What can be known is what is in the log: the topics of its newest records. A route of another daemon counts, as soon as
//! the store has seen it. A topic that comes up later is named by `status`, `why` and the metrics.

use postrider::core::{
    admin::{Overview, StoreAdmin},
    topic::TopicFilter,
};

use crate::{
    config::RouteConfig,
    exit::{Failure, Outcome},
};

/// Records that are looked at.
const RECENT_RECORDS: u32 = 10_000;

/// Topics that are named; more would not help anybody.
const NAMED_MAX: usize = 10;

/// Fails if there are such topics.
pub(super) async fn refuse(store: &str, admin: &dyn StoreAdmin, routes: &[&RouteConfig]) -> Outcome<()> {
    let overview = admin.overview().await?;
    let filters = filters(&overview, routes)?;
    let topics = admin.recent_topics(RECENT_RECORDS).await?;
    let unread: Vec<String> = topics
        .into_iter()
        .map(|(topic, _)| topic)
        .filter(|topic| !filters.iter().any(|filter| filter.matches(topic)))
        .map(|topic| format!("`{}`", topic.escape_debug()))
        .collect();
    if unread.is_empty() {
        return Ok(());
    }
    let named = unread.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = unread.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Failure::usage(format!(
        "the store `{store}` has messages that no route reads, so nobody would deliver them: {named}{more}\n  \
         let a new route read them: it begins with the oldest record; or give them to a route that is there, which has \
         passed these and takes a `postrider replay --route … --topic …` besides; or to one with `transport = \"discard\"`, if nobody needs them; or write \
         `unrouted = \"allow\"` in `[relay]`"
    )))
}

/// Of a route that is configured, what it reads now; of any other, what the store knows.
fn filters(overview: &Overview, routes: &[&RouteConfig]) -> Outcome<Vec<TopicFilter>> {
    let mut filters = Vec::new();
    for route in routes {
        filters.push(TopicFilter::new(&route.topics)?);
    }
    for other in &overview.routes {
        if other.replay_of.is_none() && routes.iter().all(|route| *route.name != *other.route) {
            // What a newer version writes and this one cannot read is no reason to complain.
            filters.extend(TopicFilter::new(other.topics.split(", ")));
        }
    }
    Ok(filters)
}
