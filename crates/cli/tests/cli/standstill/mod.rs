//! Ways to stop delivery, each caused in earnest on the real binary. Each must be named within half a minute, with the same
//! word, by `postrider why`, by `postrider status` and by the metrics: a stall is never silent.

mod destination;
mod endpoint;
mod route;
mod store;

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    admin::{free_port, get},
    postgres::Database,
    support::{Daemon, Finished, Workplace, wait_until},
};

/// The promise: so long may it take until everybody who asks is told.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// A store, and where its relay tells its metrics.
struct Scene {
    ground: Ground,
    listen: SocketAddr,
}

/// What is about the store is tried on a file and on a server.
enum Ground {
    File(Workplace),
    Server(Database),
}

/// What has to be said.
struct Told<'a> {
    /// The code that `why` finds for the message, and words of its sentence.
    why: (&'a str, &'a str),
    /// The code that `status` and the metric `postrider_standstill` have for the route.
    standstill: &'a str,
    /// What other metrics show.
    samples: &'a [Sample<'a>],
}

/// Name, some of its labels, and the least value.
type Sample<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

impl Scene {
    fn new() -> Self {
        let place = Workplace::new();
        drop(place.migrated());
        Self { ground: Ground::File(place), listen: free_port() }
    }

    fn on_postgres() -> Self {
        Self { ground: Ground::Server(Database::migrated()), listen: free_port() }
    }

    fn everywhere() -> [Self; 2] {
        [Self::new(), Self::on_postgres()]
    }

    fn place(&self) -> &Workplace {
        match &self.ground {
            Ground::File(place) => place,
            Ground::Server(database) => &database.workplace,
        }
    }

    fn url(&self) -> String {
        match &self.ground {
            Ground::File(_) => "sqlite:app.db".to_owned(),
            Ground::Server(database) => database.url(),
        }
    }

    /// Runs the binary on the store.
    fn run(&self, arguments: &[&str]) -> Finished {
        self.place().run(&[arguments, &["--store", &self.url()]].concat())
    }

    fn status(&self) -> Value {
        self.place().status_of(&self.url())
    }

    /// A relay with one route `orders`. Leases are short, so that a relay that is gone is soon known to be.
    fn relay(&self, route: &str) -> Daemon {
        self.place().daemon("relay", &self.config("orders", route))
    }

    fn config(&self, name: &str, route: &str) -> String {
        format!(
            "[store]\nurl = \"{}\"\n[relay]\nlease_life = \"2s\"\nheartbeat_every = \"500ms\"\n\
             [admin]\nlisten = \"{}\"\n[[route]]\nname = \"{name}\"\ntopics = [\"orders.*\"]\n{route}\n",
            self.url(),
            self.listen
        )
    }

    /// Makes the route known to the store, and leaves it without a relay.
    fn known_route(&self) {
        let mut relay = self.relay("transport = \"file:arrivals\"");
        wait_until("the route is known", || !self.status()["routes"][0].is_null());
        relay.signal(Signal::TERM);
        assert_eq!(relay.wait().code(), Some(0));
    }

    /// Commits one message and returns its id.
    fn enqueue(&self, topic: &str, more: &[&str]) -> String {
        let message = ["enqueue", "--topic", topic, "--name", "order.placed", "--payload", "{}"];
        let finished = self.run(&[&message, more].concat());
        assert_eq!(finished.code, 0, "{finished:?}");
        finished.stdout.trim_end().to_owned()
    }

    fn why(&self, id: &str) -> Vec<Value> {
        let finished = self.run(&["why", id, "--json"]);
        assert!(finished.code <= 1, "{finished:?}");
        finished.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn metrics(&self) -> String {
        get(self.listen, "/metrics", None).map_or_else(String::new, |(_, text)| text)
    }

    /// Everybody who is asked says it in time.
    #[track_caller]
    fn assert_told(&self, id: &str, told: &Told<'_>) {
        let promise = Promise::begin();
        let (code, words) = told.why;
        promise.kept("`why` names it", || {
            let found = self.why(id);
            let said = found.iter().any(|finding| finding["code"] == code && text(finding).contains(words));
            said.then_some(()).ok_or(format!("{found:?}"))
        });
        promise.kept("`status` names it", || {
            let findings = self.status()["findings"].clone();
            let mut found = findings.as_array().unwrap().iter();
            found.any(|finding| finding["code"] == told.standstill).then_some(()).ok_or(findings.to_string())
        });
        promise.kept("the metrics name it", || {
            let text = self.metrics();
            let standstill = sample(&text, "postrider_standstill", &[("cause", told.standstill)]) == Some(1.0);
            let samples = told.samples.iter().all(|(name, labels, least)| sample(&text, name, labels) >= Some(*least));
            (standstill && samples).then_some(()).ok_or(text)
        });
    }
}

fn text(finding: &Value) -> String {
    format!("{} {}", finding["what"].as_str().unwrap(), finding["fix"].as_str().unwrap_or_default())
}

/// One deadline for everybody who is asked.
struct Promise {
    deadline: Instant,
}

impl Promise {
    fn begin() -> Self {
        Self { deadline: Instant::now() + NAMED_WITHIN }
    }

    /// The condition is asked again and again; what it last saw is told if it never holds.
    #[track_caller]
    fn kept(&self, what: &str, mut condition: impl FnMut() -> Result<(), String>) {
        while let Err(seen) = condition() {
            assert!(Instant::now() < self.deadline, "not within {NAMED_WITHIN:?}: {what}; seen: {seen}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The value of a sample that has these labels, whatever others it has.
fn sample(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has = |line: &&str| labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")));
    let named = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(named).find(has)?.rsplit(' ').next()?.parse().ok()
}
