//! Topics that no route reads: a message that nobody will ever deliver must not be found out later.
//!
//! The whole log is looked at when a daemon starts, and such a topic ends it with an error. A route of another daemon counts,
//! as soon as the store has seen it. A large log takes minutes, and nobody should wait that long for messages because of a
//! restart: where the store knows every route as it is configured, the relay works beside the look; where a route is new or
//! reads other topics now, the look comes first. A topic that comes up later is told in the log once; `status`, `doctor`,
//! `why` and the metrics name it as long as it is so.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use postrider::{
    core::{
        admin::{Overview, RouteStatus, StoreAdmin},
        topic::TopicFilter,
    },
    diagnosis::{self, Topics},
};
use tokio::sync::Mutex;
use tracing::warn;

use crate::{
    config::RouteConfig,
    exit::{Failure, Outcome},
    topics,
};

/// Topics that are named; more would not help anybody.
const NAMED_MAX: usize = 10;

/// How often a running relay looks for new topics.
const EVERY: Duration = Duration::from_secs(15);

/// How soon a store that could not be read is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// The topics of one store, and what is said of them.
pub(super) struct Unrouted {
    store: String,
    admin: Arc<dyn StoreAdmin>,
    routes: Vec<RouteConfig>,
    /// Whether to start all the same.
    allowed: bool,
    /// What is known of its log. Nobody keeps it for longer than one stretch takes.
    pub(super) topics: Arc<Mutex<Topics>>,
}

/// The topics that were judged. The next ones are news.
pub(super) type Judged = BTreeSet<String>;

impl Unrouted {
    pub(super) fn new(
        store: String,
        admin: Arc<dyn StoreAdmin>,
        routes: Vec<RouteConfig>,
        allowed: bool,
    ) -> Outcome<Self> {
        let own = routes.iter().map(filter).collect::<Outcome<Vec<_>>>()?;
        Ok(Self { store, admin, routes, allowed, topics: Arc::new(Mutex::new(topics::unknown(own))) })
    }

    /// Whether the relay may work before the log was looked at: nothing is new, so nothing can be wrong that was not wrong
    /// before.
    pub(super) async fn may_wait(&self) -> Outcome<bool> {
        if self.allowed {
            return Ok(true);
        }
        let overview = match self.admin.overview().await {
            Ok(overview) => overview,
            // Locked, or away for a moment: whoever looks at the log waits for that.
            Err(error) if error.is_transient() => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        for route in &self.routes {
            let own = filter(route)?;
            let known = overview.routes.iter().find(|known| *known.route == *route.name);
            let known = known.and_then(|known| TopicFilter::new(known.topics.split(", ")).ok());
            if !known.is_some_and(|known| known.is_same_as(&own)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Looks at the whole log, and fails as soon as it has a topic that no route reads, unless that is allowed. A store that
    /// is away is waited for. Can be dropped at any time.
    pub(super) async fn look_at_all(&self) -> Outcome<Judged> {
        let mut judged = Judged::new();
        loop {
            match self.step(&mut judged).await? {
                Ok(true) => return Ok(judged),
                Ok(false) => {}
                Err(error) if error.is_transient() => {
                    warn!(store = self.store, error = error.chain(), "the topics cannot be looked at; trying again");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// One stretch, and what it has brought. Inside: whether that was the last one, or why the store could not say.
    async fn step(&self, judged: &mut Judged) -> Outcome<postrider::Result<bool>> {
        let last = self.topics.lock().await.step(&*self.admin).await;
        if self.allowed {
            // What is there already is allowed, and no news later.
            return Ok(match last {
                Ok(true) => self.news(judged).await.map(|_| true),
                other => other,
            });
        }
        match self.unread(judged, matches!(last, Ok(true))).await {
            Ok(unread) if unread.is_empty() => Ok(last),
            Ok(unread) => Err(refused(&self.store, &unread)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Those that are not judged yet, that no route reads, and of which something is undelivered; all are judged then. An
    /// overview costs more than a look at what is new, and is only asked for if there is something.
    ///
    /// What was read once may all be delivered. That costs a walk of its own, so it is asked at the end of one (`whole`), and
    /// such a topic stays unjudged: more of it may come.
    async fn unread(&self, judged: &mut Judged, whole: bool) -> postrider::Result<Vec<String>> {
        let seen: Judged = self.topics.lock().await.seen().keys().cloned().collect();
        if seen.is_subset(judged) {
            return Ok(Vec::new());
        }
        let overview = self.admin.overview().await?;
        // A route that is configured reads what it will read, not what the store knows of it; unless that is read for a live
        // node, another one or this one.
        let is_own = |name: &str| self.routes.iter().any(|route| route.name == name);
        let is_read = |name: &str| !is_own(name) || overview.server_of(name).is_some();
        let others = overview.routes.iter().filter(|other| other.replay_of.is_none() && is_read(&other.route));
        // What a newer version writes and this one cannot read is no reason to complain.
        let filters: Vec<TopicFilter> =
            others.filter_map(|other| TopicFilter::new(other.topics.split(", ")).ok()).collect();
        let read = |topic: &&String| filters.iter().any(|filter| filter.matches(topic));
        let news: Judged = seen.difference(judged).filter(|topic| !read(topic)).cloned().collect();
        let (once, mut unread): (Judged, Judged) = news.into_iter().partition(|topic| was_read(&overview, topic));
        let left = match (whole, once.is_empty()) {
            (true, false) => diagnosis::undelivered(&*self.admin, &once).await?,
            _ => Judged::new(),
        };
        *judged = seen.into_iter().filter(|topic| !once.contains(topic) || left.contains(topic)).collect();
        unread.extend(left);
        Ok(unread.into_iter().collect())
    }

    /// Tells of each new topic that no route reads, once. Ends when it is dropped. A store that cannot be read is asked again
    /// later; the relay has its own words for that.
    pub(super) async fn watch(&self, mut judged: Judged) -> Infallible {
        loop {
            tokio::time::sleep(EVERY).await;
            for topic in self.news(&mut judged).await.unwrap_or_default() {
                warn!(
                    store = self.store,
                    topic,
                    "no route reads this topic: nobody delivers its messages, and retention removes them when they are old \
                     enough"
                );
            }
        }
    }

    /// Topics that have come since, and that no route reads. What was read once is asked of those who know what was delivered
    /// of it: that is walked through once, here and now, also if somebody else has only begun with it.
    async fn news(&self, judged: &mut Judged) -> postrider::Result<Vec<String>> {
        while !self.topics.lock().await.step(&*self.admin).await? {}
        let mut unread = self.unread(judged, false).await?;
        let is_left =
            |topics: &Topics| topics.seen().keys().any(|topic| !judged.contains(topic)) || !topics.is_sorted_out();
        if is_left(&*self.topics.lock().await) {
            let overview = self.admin.overview().await?;
            while !self.topics.lock().await.sort_out_some(&*self.admin, &overview).await? {}
            let left = self.topics.lock().await.unread(&overview).into_iter().map(|(topic, _)| topic);
            unread.extend(left.filter(|topic| judged.insert(topic.clone())));
        }
        Ok(unread)
    }
}

/// Whether a route of the store has read it, or does until it is registered as it is configured.
fn was_read(overview: &Overview, topic: &str) -> bool {
    let read = |route: &RouteStatus| TopicFilter::new(route.topics.split(", ")).is_ok_and(|read| read.matches(topic));
    let once = |route: &RouteStatus| route.left.iter().any(|left| left.topics.matches(topic));
    overview.routes.iter().any(|route| route.replay_of.is_none() && (read(route) || once(route)))
}

fn filter(route: &RouteConfig) -> Outcome<TopicFilter> {
    Ok(TopicFilter::new(&route.topics)?)
}

fn refused(store: &str, unread: &[String]) -> Failure {
    let quoted = unread.iter().take(NAMED_MAX).map(|topic| format!("`{}`", topic.escape_debug()));
    let named = quoted.collect::<Vec<_>>().join(", ");
    let more = unread.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Failure::usage(format!(
        "the store `{store}` has messages that no route reads, so nobody would deliver them: {named}{more}\n  \
         let a new route read them: it begins with the oldest record; or give them to a route that is there, which has \
         passed these and takes a `postrider replay --route … --topic …` besides; or to one with `transport = \"discard\"`, if nobody needs them; or write \
         `unrouted = \"allow\"` in `[relay]`"
    ))
}

#[cfg(test)]
mod tests {
    use postrider::{
        Envelope, Outbox,
        core::{
            lease::{Node, NodeId, Order, RouteSpec, Start},
            log::Log,
        },
        memory::{Memory, MemoryStore},
    };

    use super::*;

    /// More than one page of a walk.
    const MANY: u64 = 25_000;

    /// As many as one transaction may enqueue, or fewer.
    const BATCH: u64 = 5_000;

    fn enqueue(store: &MemoryStore, topic: &str) {
        for _ in 0..MANY / BATCH {
            let mut transaction = store.begin();
            let envelopes = (0..BATCH).map(|_| Envelope::new(topic, "n", "")).collect();
            Outbox::new(Memory).enqueue_raw(&mut transaction, envelopes).unwrap();
            transaction.commit();
        }
    }

    /// Makes a route known that reads these topics, for nodes that are gone.
    async fn reads(store: &MemoryStore, topics: &[&str]) {
        let node = Node {
            id: NodeId::generate(),
            name: "another".to_owned(),
            routes: vec!["all".into()],
            lease_life: Duration::from_secs(60),
            standstills: Vec::new(),
        };
        let topics = TopicFilter::new(topics).unwrap();
        let spec = RouteSpec { name: "all".into(), topics, order: Order::Key, lanes: 1, start: Start::Oldest };
        store.register(&node, &[spec]).await.unwrap();
        store.retire(node.id).await.unwrap();
    }

    #[tokio::test]
    async fn what_was_let_go_is_sorted_out_by_the_relay_itself_also_where_it_is_allowed() {
        let store = Arc::new(MemoryStore::new());
        enqueue(&store, "refunds");
        enqueue(&store, "returns");
        reads(&store, &["orders", "refunds", "returns"]).await;
        reads(&store, &["orders", "returns"]).await;
        let unrouted = Unrouted::new("shop".to_owned(), Arc::clone(&store) as _, Vec::new(), true).unwrap();
        let told = async || {
            let overview = store.overview().await.unwrap();
            unrouted.topics.lock().await.unread(&overview)
        };
        let mut judged = unrouted.look_at_all().await.unwrap();
        assert_eq!(told().await, [("refunds".to_owned(), MANY)]);
        assert_eq!(unrouted.news(&mut judged).await.unwrap(), [""; 0], "it was there before");

        // Somebody else lets go of more, and whoever scrapes has the time for one page.
        reads(&store, &["orders"]).await;
        let overview = store.overview().await.unwrap();
        assert!(!unrouted.topics.lock().await.sort_out_some(&*store, &overview).await.unwrap());
        assert_eq!(told().await, [], "not known yet");
        unrouted.news(&mut judged).await.unwrap();
        assert_eq!(told().await, [("refunds".to_owned(), MANY), ("returns".to_owned(), MANY)]);
    }
}
