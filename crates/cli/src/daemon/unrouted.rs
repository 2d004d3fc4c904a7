//! Topics that no route reads: a message that nobody will ever deliver must not be found out later.
//!
//! Before a relay starts, the whole log is looked at, and such a topic is an error. A route of another daemon counts, as soon
//! as the store has seen it. A topic that comes up while the relay runs is told in its log once; `status`, `doctor`, `why` and
//! the metrics name it as long as it is so.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use postrider::{
    core::{
        admin::{Overview, StoreAdmin},
        topic::TopicFilter,
    },
    diagnosis::Topics,
};
use tokio::sync::Mutex;
use tracing::warn;

use crate::{
    config::RouteConfig,
    exit::{Failure, Outcome},
};

/// Topics that are named; more would not help anybody.
const NAMED_MAX: usize = 10;

/// How often a running relay looks for new topics.
const EVERY: Duration = Duration::from_secs(15);

/// Fails if there are such topics.
pub(super) async fn refuse(
    store: &str,
    admin: &dyn StoreAdmin,
    topics: &Topics,
    routes: &[&RouteConfig],
) -> Outcome<()> {
    let overview = admin.overview().await?;
    let filters = filters(&overview, routes)?;
    let unread: Vec<String> = topics
        .seen()
        .keys()
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

/// Tells of each new topic that no route reads, once. Ends when it is dropped. A store that cannot be read is asked again
/// later; the relay has its own words for that.
pub(super) async fn watch(store: String, admin: Arc<dyn StoreAdmin>, topics: Arc<Mutex<Topics>>) {
    let mut judged = topics.lock().await.seen().keys().cloned().collect();
    loop {
        tokio::time::sleep(EVERY).await;
        let _ = tell_new(&store, &*admin, &topics, &mut judged).await;
    }
}

/// An overview costs more than a look at what is new, and is only asked for if there is something.
async fn tell_new(
    store: &str,
    admin: &dyn StoreAdmin,
    topics: &Mutex<Topics>,
    judged: &mut BTreeSet<String>,
) -> postrider::Result<()> {
    let mut topics = topics.lock().await;
    topics.look(admin).await?;
    if topics.seen().keys().all(|topic| judged.contains(topic)) {
        return Ok(());
    }
    let unread = topics.unread(&admin.overview().await?);
    for (topic, _) in unread.iter().filter(|(topic, _)| !judged.contains(topic)) {
        warn!(
            store,
            topic,
            "no route reads this topic: nobody delivers its messages, and retention removes them when they are old enough"
        );
    }
    judged.extend(topics.seen().keys().cloned());
    Ok(())
}
