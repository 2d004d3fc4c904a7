//! Routes: a named reader of the log with one destination.

use std::{fmt, sync::Arc, time::Duration};

use postrider_core::{
    BoxFuture,
    lease::{Order, RouteSpec, Start},
    log::RecordRef,
    parked::Cause,
    retry::RetryPolicy,
    topic::{TopicFilter, check_name},
    transport::Publisher,
};

use crate::{
    handler::{Handler, IntoOutcome},
    routing::{Redirect, Router},
};

use super::{
    lane::{LaneOptions, OnDead},
    planted::Plant,
};

/// A message that was given up, as the [hook](Route::on_dead_letter) sees it.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The route.
    pub route: Arc<str>,
    /// What was given up.
    pub record: RecordRef,
    /// Attempts made.
    pub attempts: u32,
    /// Why.
    pub cause: Cause,
    /// Whether its key waits for an operator.
    pub blocks: bool,
}

pub(crate) type DeadLetterHook = Arc<dyn Fn(DeadLetter) -> BoxFuture<'static, ()> + Send + Sync>;

/// A named reader of the log: which topics, which destination, which policies.
///
/// ```
/// # use postrider::{Route, relay::OnDead, handler::Handler};
/// # let publisher = Handler::new(|_| async {});
/// let route = Route::new("billing", publisher).topics(["orders.*", "refunds.**"]).on_dead(OnDead::Continue).rate(500);
/// ```
#[must_use]
pub struct Route {
    pub(crate) name: Arc<str>,
    pub(crate) publisher: Arc<dyn Publisher>,
    topics: TopicFilter,
    topics_problem: Option<String>,
    order: Order,
    lanes: u32,
    start: Start,
    retry: RetryPolicy,
    on_dead: OnDead,
    pub(crate) on_dead_letter: Option<DeadLetterHook>,
    window_records_max: u32,
    window_bytes_max: usize,
    page_records_max: u32,
    batch_records_max: u32,
    batches_max: u32,
    settle_every: u32,
    settle_after: Duration,
    unknown_max: u32,
    unknown_wait: Duration,
    breaker_first: Duration,
    breaker_max: Duration,
    poll_min: Duration,
    poll_max: Duration,
    due_lines: u32,
    due_per_line: u32,
    held_rows_max: u32,
    blocked_keys_max: u32,
    rate: Option<u32>,
    pub(crate) publish_timeout: Duration,
}

impl Route {
    /// A route to this destination, for all topics.
    pub fn new(name: &str, publisher: impl Publisher + 'static) -> Self {
        Self::to(name, Arc::new(publisher))
    }

    /// A route to an async function in this process. Each call is a batch of its own, 64 at the same time, so that a slow
    /// one delays nothing but its own key.
    pub fn handler<F, R>(name: &str, function: F) -> Self
    where
        F: Fn(RecordRef) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        Self::new(name, Handler::new(function)).batches(1, 64)
    }

    /// The same for a destination that was chosen at run time.
    pub fn to(name: &str, publisher: Arc<dyn Publisher>) -> Self {
        Self {
            name: name.into(),
            publisher,
            topics: TopicFilter::all(),
            topics_problem: None,
            order: Order::default(),
            lanes: 1,
            start: Start::default(),
            retry: RetryPolicy::default(),
            on_dead: OnDead::default(),
            on_dead_letter: None,
            window_records_max: 8192,
            window_bytes_max: 16 << 20,
            page_records_max: 1000,
            batch_records_max: 1000,
            batches_max: 8,
            settle_every: 4000,
            settle_after: Duration::from_millis(20),
            unknown_max: 4,
            unknown_wait: Duration::from_millis(200),
            breaker_first: Duration::from_millis(100),
            breaker_max: Duration::from_secs(30),
            poll_min: Duration::from_millis(50),
            poll_max: Duration::from_secs(5),
            due_lines: 32,
            due_per_line: 16,
            held_rows_max: 100_000,
            blocked_keys_max: 10_000,
            rate: None,
            publish_timeout: Duration::from_secs(30),
        }
    }

    /// Which topics: exact, or with `*` for one segment and a last `**` for the rest. Default all.
    pub fn topics<P: AsRef<str>>(mut self, patterns: impl IntoIterator<Item = P>) -> Self {
        match TopicFilter::new(patterns) {
            Ok(topics) => (self.topics, self.topics_problem) = (topics, None),
            Err(error) => self.topics_problem = Some(error.to_string()),
        }
        self
    }

    /// How order is kept. Default per key.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Into how many lanes the keys are split, so that several nodes share the route. One node drains far more than most
    /// destinations take. Changing the number duplicates up to the distance between the lanes. Default 1.
    pub fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// Where the route begins when the store sees it for the first time. Default at the oldest record that is kept.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How often a rejected message is tried, and how long the waits are.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// What becomes of a key whose head is dead. Default: it waits for an operator.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.on_dead = on_dead;
        self
    }

    /// Calls a function for every message that is given up, for example to alert somebody. It is told when the verdict is
    /// made; after a crash it may be told again. A relay that stops waits for the calls that are under way,
    /// until the drain deadline. The row in the store is the truth.
    pub fn on_dead_letter<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(DeadLetter) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.on_dead_letter = Some(Arc::new(move |letter| Box::pin(hook(letter))));
        self
    }

    /// Records in memory between the persisted cursor and the reader: the bound on duplicates after a crash. Default 8192.
    pub fn window(mut self, records: u32) -> Self {
        self.window_records_max = records;
        self
    }

    /// The same in bytes. Default 16 MiB.
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes_max = bytes;
        self
    }

    /// Records of one read. Default 1000.
    pub fn page(mut self, records: u32) -> Self {
        self.page_records_max = records;
        self
    }

    /// Publishes under other topics than messages were enqueued under, as [rules](crate::routing::Topics) or a function say.
    /// Which messages the route carries is decided by the topics of the log all the same. A message for which the router
    /// makes a topic that nothing could be enqueued under is rejected with the cause `bad-topic`. Default: as enqueued.
    pub fn router(mut self, router: impl Router + 'static) -> Self {
        self.publisher = Arc::new(Redirect::new(self.publisher, Arc::new(router)));
        self
    }

    /// Messages of one publish, and publishes at the same time; fewer if the publisher's capabilities say so. Default 1000
    /// and 8.
    pub fn batches(mut self, records: u32, at_the_same_time: u32) -> Self {
        (self.batch_records_max, self.batches_max) = (records, at_the_same_time);
        self
    }

    /// How many messages may be done before the cursor is moved, and how long that may wait. Each move is one small write;
    /// what is not yet settled is published again after a crash. Default 4000 and 20 ms.
    pub fn settle(mut self, every: u32, after: Duration) -> Self {
        (self.settle_every, self.settle_after) = (every, after);
        self
    }

    /// How often an outcome may be unknown before the message is taken for rejected (if others went through) or the
    /// destination for unavailable, and how long to wait in between. Default 4 and 200 ms.
    pub fn unknown(mut self, times_max: u32, wait: Duration) -> Self {
        (self.unknown_max, self.unknown_wait) = (times_max, wait);
        self
    }

    /// How long the breaker waits before its first probe, and at most. Default 100 ms and 30 s.
    pub fn breaker(mut self, first: Duration, max: Duration) -> Self {
        (self.breaker_first, self.breaker_max) = (first, max);
        self
    }

    /// How often the log is looked at without a hint: from just after something came, growing to the longest when idle.
    /// Default 50 ms and 5 s.
    pub fn poll(mut self, min: Duration, max: Duration) -> Self {
        (self.poll_min, self.poll_max) = (min, max);
        self
    }

    /// How many lines, and rows of each, are brought back from the store at once. Default 32 and 16.
    pub fn due(mut self, lines: u32, per_line: u32) -> Self {
        (self.due_lines, self.due_per_line) = (lines, per_line);
        self
    }

    /// Rows that may be held of one key, and keys that may be blocked at once. When one is reached the lane stops in front
    /// of the next such record: nothing is dropped or reordered, and the age of the oldest record says so. Default 100 000
    /// and 10 000.
    pub fn hold_at_most(mut self, rows_per_key: u32, keys: u32) -> Self {
        (self.held_rows_max, self.blocked_keys_max) = (rows_per_key, keys);
        self
    }

    /// Messages per second at most, per lane. Default unlimited.
    pub fn rate(mut self, messages_per_second: u32) -> Self {
        self.rate = Some(messages_per_second);
        self
    }

    /// How long a publish may take before its outcome counts as unknown. Default 30 s.
    pub fn publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = timeout;
        self
    }

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |fine: bool, problem: String| {
            if !fine {
                problems.push(format!("route `{}`: {problem}", self.name));
            }
        };
        if let Err(error) = check_name("route", &self.name) {
            check(false, error.to_string());
        }
        check(!self.name.contains('#'), "`#` is reserved for replays".to_owned());
        if let Some(problem) = &self.topics_problem {
            check(false, problem.clone());
        }
        if let Err(error) = self.retry.check() {
            check(false, error.to_string());
        }
        check((1..=256).contains(&self.lanes), format!("lanes is {}; it lies between 1 and 256", self.lanes));
        check(
            self.order == Order::Key || self.lanes == 1,
            "a route with total order has one lane, because lanes have no order among each other".to_owned(),
        );
        let numbers = [
            ("window", self.window_records_max),
            ("page", self.page_records_max),
            ("batches: messages", self.batch_records_max),
            ("batches: at the same time", self.batches_max),
            ("settle: every", self.settle_every),
            ("unknown: times", self.unknown_max),
            ("due: lines", self.due_lines),
            ("due: rows per line", self.due_per_line),
            ("hold_at_most: rows per key", self.held_rows_max),
            ("hold_at_most: keys", self.blocked_keys_max),
            ("rate", self.rate.unwrap_or(1)),
        ];
        for (name, value) in numbers {
            check((1..=1_000_000).contains(&value), format!("{name} is {value}; it lies between 1 and 1000000"));
        }
        check(self.window_bytes_max >= 4096, "window_bytes must be at least 4096".to_owned());
        check(
            self.poll_min <= self.poll_max && !self.poll_min.is_zero(),
            "poll: the shortest wait is zero or longer than the longest".to_owned(),
        );
        problems
    }

    pub(crate) fn spec(&self) -> RouteSpec {
        RouteSpec {
            name: Arc::clone(&self.name),
            topics: self.topics.clone(),
            order: self.order,
            lanes: self.lanes,
            start: self.start,
        }
    }

    pub(crate) fn lane_options(&self, rate: Option<u32>, seed: u64, plant: Plant) -> LaneOptions {
        let publisher = self.publisher.capabilities();
        let at_most = |limit: Option<u32>, wanted: u32| limit.map_or(wanted, |limit| wanted.min(limit.max(1)));
        LaneOptions {
            window_records_max: self.window_records_max,
            window_bytes_max: self.window_bytes_max,
            page_records_max: self.page_records_max,
            batch_records_max: at_most(publisher.batch_max, self.batch_records_max),
            batches_max: at_most(publisher.batches_max, self.batches_max),
            run_max: publisher.run_max.max(1),
            settle_every: self.settle_every,
            settle_after: self.settle_after,
            retry: self.retry.clone(),
            on_dead: self.on_dead,
            unknown_max: self.unknown_max,
            unknown_wait: self.unknown_wait,
            breaker_first: self.breaker_first,
            breaker_max: self.breaker_max,
            poll_min: self.poll_min,
            poll_max: self.poll_max,
            due_lines: self.due_lines,
            due_per_line: self.due_per_line,
            due_bytes_max: self.window_bytes_max / 4,
            held_rows_max: self.held_rows_max,
            blocked_keys_max: self.blocked_keys_max,
            rate: [self.rate, rate].into_iter().flatten().min(),
            seed,
            plant,
        }
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route").field("name", &self.name).field("publisher", &self.publisher).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use postrider_core::{capability::PublisherCapabilities, transport::Outcome};

    use super::*;
    use crate::handler::Handler;

    fn route(name: &str) -> Route {
        Route::new(name, Handler::new(|_| async {}))
    }

    #[test]
    fn the_defaults_have_no_problems() {
        assert_eq!(route("billing").problems(), Vec::<String>::new());
    }

    #[test]
    fn each_number_has_its_bounds() {
        let wrong: [(&str, Route); 12] = [
            ("window", route("r").window(0)),
            ("page", route("r").page(0)),
            ("batches: messages", route("r").batches(0, 1)),
            ("batches: at the same time", route("r").batches(1, 0)),
            ("settle: every", route("r").settle(0, Duration::ZERO)),
            ("unknown: times", route("r").unknown(0, Duration::ZERO)),
            ("due: lines", route("r").due(0, 1)),
            ("due: rows per line", route("r").due(1, 0)),
            ("hold_at_most: rows per key", route("r").hold_at_most(0, 1)),
            ("hold_at_most: keys", route("r").hold_at_most(1, 0)),
            ("rate", route("r").rate(0)),
            ("window", route("r").window(1_000_001)),
        ];
        for (name, route) in wrong {
            let problems = route.problems();
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with(&format!("route `r`: {name} is ")), "{problems:?}");
        }
    }

    #[test]
    fn a_name_that_replays_use_is_refused() {
        assert!(route("r#replay-1").problems().iter().any(|problem| problem.contains("reserved for replays")));
    }

    #[test]
    fn topics_that_are_said_again_replace_the_wrong_ones() {
        let mended = route("r").topics(["a.**.b"]).topics(["a.*"]);
        assert_eq!(mended.problems(), Vec::<String>::new());
        assert_eq!(mended.spec().topics.to_string(), "a.*");
        assert_eq!(route("r").topics::<&str>([]).problems().len(), 1, "no topic at all is a mistake");
    }

    #[test]
    fn a_publisher_may_ask_for_smaller_and_fewer_batches() {
        struct Modest(Option<u32>, Option<u32>);
        impl Publisher for Modest {
            fn capabilities(&self) -> PublisherCapabilities {
                let (batch_max, batches_max) = (self.0, self.1);
                PublisherCapabilities { name: "modest", run_max: 1, message_bytes_max: None, batch_max, batches_max }
            }
            fn publish(&self, batch: Vec<RecordRef>) -> BoxFuture<'_, Vec<Outcome>> {
                Box::pin(std::future::ready(vec![Outcome::Durable; batch.len()]))
            }
        }
        let sizes = |publisher| {
            let options = Route::new("r", publisher).batches(100, 6).lane_options(None, 0, Plant::None);
            (options.batch_records_max, options.batches_max)
        };
        assert_eq!(sizes(Modest(None, None)), (100, 6));
        assert_eq!(sizes(Modest(Some(1), Some(4))), (1, 4));
        assert_eq!(sizes(Modest(Some(1000), Some(10))), (100, 6), "never more than the route allows");
        assert_eq!(sizes(Modest(Some(0), Some(0))), (1, 1), "nothing at all would stop the route");
    }

    #[test]
    fn the_slower_of_route_and_replay_decides_the_rate() {
        let rate = |route: Route, replay| route.lane_options(replay, 0, Plant::None).rate;
        assert_eq!(rate(route("r"), None), None);
        assert_eq!(rate(route("r"), Some(5)), Some(5));
        assert_eq!(rate(route("r").rate(3), Some(5)), Some(3));
        assert_eq!(rate(route("r").rate(9), Some(5)), Some(5));
    }
}
