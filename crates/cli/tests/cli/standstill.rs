//! Ways to stop delivery, each caused in earnest on the real binary. Each must be named within half a minute, with the same
//! word, by `postrider why`, by `postrider status` and by the metrics: a stall is never silent.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use postrider::MessageId;
use postrider_testkit::service;
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

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

/// An endpoint that treats each connection in its own way, and the route to it.
fn endpoint(scheme: &str, more: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = std::sync::Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = std::sync::Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    webhook(&format!("{scheme}://127.0.0.1:{port}/"), port, more)
}

fn webhook(url: &str, port: u16, more: &str) -> String {
    format!(
        "transport = \"{url}\"\n{more}\n[route.http]\nunsigned = true\nallow_http = true\n\
         allow = [\"127.0.0.1/32\"]\nports = [{port}]\n"
    )
}

/// Answers one request, and ends the connection.
fn answering_once(head: &str, mut stream: TcpStream) {
    let read = stream.read(&mut [0; 16 << 10]);
    if read.is_ok_and(|read| read > 0) {
        let _ = write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
}

/// Answers every request of a connection in the same way. A request of these tests fits into one read.
fn answering(head: &'static str) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        let mut request = [0; 16 << 10];
        while stream.read(&mut request).is_ok_and(|read| read > 0) {
            if write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_paused_route() {
    Scene::everywhere().iter().for_each(told_of_a_paused_route);
}

fn told_of_a_paused_route(scene: &Scene) {
    scene.known_route();
    let paused = ["route", "pause", "orders", "--actor", "anna", "--reason", "maintenance"];
    assert_eq!(scene.run(&paused).code, 0);
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay("transport = \"file:arrivals\"");
    scene.assert_told(
        &id,
        &Told {
            why: ("paused", "anna: maintenance"),
            standstill: "paused",
            samples: &[("postrider_route_paused", &[("route", "orders")], 1.0)],
        },
    );
    assert_eq!(scene.run(&["route", "resume", "orders"]).code, 0, "as the fix says");
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || {
        scene.why(&id)[0]["code"] == "passed"
            && scene.status()["findings"] == Value::Array(Vec::new())
            && !scene.metrics().contains("cause=\"paused\"")
    });
}

#[test]
fn no_relay() {
    Scene::everywhere().iter().for_each(told_of_no_relay);
}

fn told_of_no_relay(scene: &Scene) {
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    Promise::begin().kept("`why` names it", || {
        let found = scene.why(&id);
        (found[0]["code"] == "no-relay").then_some(()).ok_or(format!("{found:?}"))
    });
    Promise::begin().kept("`status` names it", || {
        let status = scene.status();
        (status["findings"][0]["code"] == "no-relay").then_some(()).ok_or(status.to_string())
    });
    // Nobody is there to be scraped, which Prometheus shows by `up`; the metrics of the store can be had all the same.
    assert_eq!(get(scene.listen, "/metrics", None), None);
    let metrics = scene.run(&["check", "--prometheus"]).stdout;
    assert_eq!(sample(&metrics, "postrider_standstill", &[("cause", "no-relay")]), Some(1.0), "{metrics}");
    assert_eq!(sample(&metrics, "postrider_nodes", &[]), Some(0.0), "{metrics}");
}

#[test]
fn a_lane_whose_relay_was_killed() {
    let scene = Scene::new();
    let config = |name: &str| {
        let config = scene.config("orders", "transport = \"file:arrivals\"").replace("\"2s\"", "\"90s\"");
        config.replace("[relay]\n", &format!("[relay]\nname = \"{name}\"\n"))
    };
    let killed = scene.place().daemon("killed", &config("killed"));
    wait_until("it owns the lane", || !scene.status()["routes"][0]["lanes"][0]["owner"].is_null());
    killed.kill();
    // As if that had happened most of a minute ago.
    let sql = "UPDATE postrider_node SET seen_at = seen_at - 50000000 WHERE name = 'killed'";
    Connection::open(scene.place().path("app.db")).unwrap().execute(sql, []).unwrap();
    let id = scene.enqueue("orders.placed", &[]);
    let _other = scene.place().daemon("other", &config("other"));
    scene.assert_told(
        &id,
        &Told { why: ("silent", "killed owns lane 0 and is silent for "), standstill: "silent", samples: &[] },
    );
}

#[test]
fn a_route_that_no_relay_has() {
    Scene::everywhere().iter().for_each(told_of_a_route_that_no_relay_has);
}

fn told_of_a_route_that_no_relay_has(scene: &Scene) {
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    let _other = scene.place().daemon("other", &scene.config("invoices", "transport = \"discard\""));
    let orders = [("route", "orders")];
    let told = Told {
        why: ("not-served", "`orders`"),
        standstill: "not-served",
        samples: &[("postrider_outbox_pending", &orders, 1.0)],
    };
    scene.assert_told(&id, &told);
    assert_eq!(sample(&scene.metrics(), "postrider_partitions_unowned", &orders), Some(0.0), "nobody could own it");
}

#[test]
fn a_topic_that_no_route_reads() {
    Scene::everywhere().iter().for_each(told_of_a_topic_that_no_route_reads);
}

fn told_of_a_topic_that_no_route_reads(scene: &Scene) {
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    let id = scene.enqueue("payments", &[]);
    scene.assert_told(&id, &Told { why: ("no-route", "`payments`"), standstill: "no-route", samples: &[] });
}

/// An outage: no attempt is counted, and the breaker is open.
#[track_caller]
fn assert_unavailable(route: &str, cause: &str) {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay(route);
    let attempts = [("outcome", "unavailable"), ("cause", cause)];
    let told = Told {
        why: ("unavailable", &format!("({cause}: ")),
        standstill: "unavailable",
        samples: &[
            ("postrider_circuit_open", &[("route", "orders")], 1.0),
            ("postrider_delivery_attempts_total", &attempts, 1.0),
        ],
    };
    scene.assert_told(&id, &told);
    assert_eq!(scene.status()["routes"][0]["parked"]["dead"], 0, "an outage gives nothing up");
}

#[test]
fn a_destination_that_refuses_connections() {
    // Nobody listens on the first port.
    assert_unavailable(&webhook("http://127.0.0.1:1/", 1, ""), "connect");
}

#[test]
fn a_name_that_does_not_resolve() {
    assert_unavailable(&webhook("http://nowhere.invalid/", 80, ""), "dns");
}

#[test]
fn a_destination_that_does_not_speak_tls() {
    assert_unavailable(&endpoint("https", "", answering("400 Bad Request")), "tls");
}

#[test]
fn a_file_on_a_full_disk() {
    assert_unavailable("transport = \"file:/dev/full\"", "disk-full");
}

#[test]
fn a_destination_that_does_not_know_who_we_are() {
    assert_unavailable(&endpoint("http", "", answering("401 Unauthorized")), "http-401");
}

#[test]
fn a_destination_that_refuses_a_message() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let slowly = "[route.retry]\nbackoff = \"fixed\"\nwait = \"1h\"\n";
    let _relay = scene.relay(&format!("{}{slowly}", endpoint("http", "", answering("422 Unprocessable Content"))));
    let attempts = [("outcome", "rejected"), ("cause", "http-422")];
    scene.assert_told(
        &id,
        &Told {
            why: ("retrying", "(http-422: "),
            standstill: "retrying",
            samples: &[
                ("postrider_delivery_attempts_total", &attempts, 1.0),
                ("postrider_outbox_retrying", &[("route", "orders")], 1.0),
            ],
        },
    );
}

/// A stream that took messages and is gone is waited for, and the others of the route go on.
#[test]
fn one_destination_of_several_that_takes_nothing() {
    let (scene, runtime) = (Scene::new(), Runtime::new().unwrap());
    let (url, prefix) = (service::url("POSTRIDER_TEST_REDIS"), format!("t{}:", MessageId::generate()));
    let connection = redis::Client::open(url.as_str()).unwrap();
    let mut connection = runtime.block_on(connection.get_multiplexed_async_connection()).unwrap();
    let streams = ["orders.placed", "orders.paid"].map(|topic| format!("{prefix}{topic}"));
    for stream in &streams {
        let mut make = redis::cmd("XGROUP");
        make.arg("CREATE").arg(stream).arg("somebody").arg("$").arg("MKSTREAM");
        runtime.block_on(make.exec_async(&mut connection)).unwrap();
    }
    let first = ["orders.placed", "orders.paid"].map(|topic| scene.enqueue(topic, &[]));
    let _relay = scene.relay(&format!("transport = \"{url}\"\n[route.redis]\nprefix = \"{prefix}\"\n"));
    wait_until("both take messages", || first.iter().all(|id| scene.why(id)[0]["code"] == "passed"));
    let mut drop_it = redis::cmd("DEL");
    runtime.block_on(drop_it.arg(&streams[1]).exec_async(&mut connection)).unwrap();
    let id = scene.enqueue("orders.paid", &[]);
    wait_until("others have gone through", || {
        let other = scene.enqueue("orders.placed", &[]);
        wait_until("it is on record", || scene.why(&other)[0]["code"] == "passed");
        scene.why(&id)[0]["code"] == "destination-unavailable"
    });
    scene.assert_told(
        &id,
        &Told {
            why: ("destination-unavailable", "(no-stream: there is no stream "),
            standstill: "destination-unavailable",
            samples: &[("postrider_outbox_retrying", &[("route", "orders")], 1.0)],
        },
    );
    let status = scene.status();
    let told = status["findings"].to_string();
    assert!(told.contains("1 message waits for its own destination and is tried again (no-stream: "), "{status}");
    assert_eq!(status["routes"][0]["parked"]["dead"], 0, "and nothing is given up");
    runtime.block_on(redis::cmd("DEL").arg(&streams[0]).exec_async(&mut connection)).unwrap();
}

/// The replay is over and in no overview any more; what it has given up waits for an operator all the same.
#[test]
fn a_message_that_a_replay_has_given_up() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let refuses = Arc::new(AtomicBool::new(false));
    let told_to = Arc::clone(&refuses);
    let endpoint = endpoint("http", "", move |stream| {
        let head = if told_to.load(Ordering::SeqCst) { "422 Unprocessable Content" } else { "204 No Content" };
        answering_once(head, stream);
    });
    let _relay = scene.relay(&format!("{endpoint}[route.retry]\nattempts_max = 1\n"));
    wait_until("it is delivered", || scene.why(&id)[0]["code"] == "passed");
    refuses.store(true, Ordering::SeqCst);
    assert_eq!(scene.run(&["replay", "--route", "orders"]).code, 0);
    wait_until("the replay has ended", || {
        let routes = scene.status()["routes"].as_array().unwrap().len();
        routes == 1 && scene.run(&["dead", "list"]).stdout.ends_with("1 dead\n")
    });
    let replay = [("route", "orders#replay-1")];
    scene.assert_told(
        &id,
        &Told {
            why: ("dead", "it was given up after 1 attempt"),
            standstill: "dead",
            samples: &[("postrider_dead_letters", &replay, 1.0), ("postrider_standstill", &replay, 1.0)],
        },
    );
    let checked = scene.run(&["check"]);
    assert!(checked.code == 1 && checked.stdout.contains(", 1 dead |"), "{checked:?}");
    assert!(checked.stdout.contains("orders#replay-1: 1 message was given up"), "{checked:?}");
    let (_, health) = get(scene.listen, "/healthz", None).unwrap();
    assert!(health.contains("\"code\":\"dead\""), "{health}");
}

#[test]
fn a_destination_that_hangs() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let hangs = endpoint("http", "", |mut stream| {
        // It takes the request and keeps the connection open for as long as the other side does.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let _relay = scene.relay(&format!("{hangs}timeout = \"1m\"\n"));
    scene.assert_told(
        &id,
        &Told {
            why: ("attempted", "has no answer from the destination yet"),
            standstill: "waits-for",
            samples: &[("postrider_outbox_in_flight", &[("route", "orders")], 1.0)],
        },
    );
}

#[test]
fn a_destination_that_throttles() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay(&endpoint("http", "", answering("429 Too Many Requests\r\nretry-after: 3600")));
    scene.assert_told(
        &id,
        &Told {
            why: ("throttled", "asked for a pause until 2"),
            standstill: "throttled",
            samples: &[("postrider_delivery_attempts_total", &[("outcome", "throttled")], 1.0)],
        },
    );
    let status = scene.status();
    assert!(text(&status["findings"][0]).contains("asked for a pause until 2"), "{status}");
    let left = &status["nodes"][0]["standstills"][0]["seconds_left"];
    assert!(left.as_u64().is_some_and(|left| (3500..=3600).contains(&left)), "{status}");
    let log = fs::read_to_string(scene.place().path("relay.log")).unwrap();
    assert!(log.contains("the destination asks for a pause") && log.contains("until=2"), "{log}");
}

/// Whether it or its destination is to blame nobody knows until another message comes, which need not wait for it.
#[test]
fn a_message_that_its_destination_fails_on() {
    let scene = Scene::new();
    let bad = scene.enqueue("orders.placed", &["--key", "bad"]);
    let _relay = scene.relay(&endpoint("http", "", |mut stream| {
        let mut request = [0; 16 << 10];
        while let Ok(read @ 1..) = stream.read(&mut request) {
            let bad = String::from_utf8_lossy(&request[..read]).contains("ce-partitionkey: bad");
            let status = if bad { "500 Internal Server Error" } else { "204 No Content" };
            if write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }));
    scene.assert_told(
        &bad,
        &Told {
            why: ("unavailable", "1 message cannot be delivered and nothing else went through meanwhile"),
            standstill: "unavailable",
            samples: &[("postrider_circuit_open", &[("route", "orders")], 1.0)],
        },
    );
    let good = scene.enqueue("orders.placed", &["--key", "good"]);
    wait_until("the other has arrived", || {
        let delivered = sample(&scene.metrics(), "postrider_delivered_total", &[("route", "orders")]);
        delivered == Some(1.0)
    });
    wait_until("it is on record", || scene.why(&good)[0]["code"] != "unavailable");
}

#[test]
fn a_destination_at_an_address_that_is_not_allowed() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    // An address that stands in the URL is refused at the start; what a name leads to is known when it is asked for.
    let _relay = scene.relay(&webhook("http://localhost:1/", 1, "").replace("127.0.0.1/32", "192.0.2.1/32"));
    scene.assert_told(
        &id,
        &Told {
            why: ("unavailable", "(address-blocked: "),
            standstill: "unavailable",
            samples: &[("postrider_circuit_open", &[("route", "orders")], 1.0)],
        },
    );
    let attempts = sample(&scene.metrics(), "postrider_delivery_attempts_total", &[]);
    assert_eq!(attempts, None, "nothing was sent, so nothing was attempted");
}

/// Nothing is wrong, so it is no standstill; but whoever asks is told.
#[test]
fn a_message_that_is_not_due_yet() {
    Scene::everywhere().iter().for_each(told_of_a_message_that_is_not_due_yet);
}

fn told_of_a_message_that_is_not_due_yet(scene: &Scene) {
    let id = scene.enqueue("orders.placed", &["--deliver-in", "1h"]);
    let _relay = scene.relay("transport = \"file:arrivals\"");
    Promise::begin().kept("`why` names it", || {
        let found = scene.why(&id);
        (found[0]["code"] == "scheduled" && text(&found[0]).contains("in 59m"))
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    Promise::begin().kept("`status` counts it", || {
        let status = scene.status();
        (status["routes"][0]["parked"]["scheduled"] == 1).then_some(()).ok_or(status.to_string())
    });
    Promise::begin().kept("the metrics count it", || {
        let text = scene.metrics();
        let scheduled = sample(&text, "postrider_outbox_scheduled", &[("route", "orders")]);
        (scheduled == Some(1.0)).then_some(()).ok_or(text)
    });
    // A relay that was slow for a moment may be called silent.
    wait_until("nothing is wrong", || {
        let text = scene.metrics();
        text.contains("postrider_store_up") && !text.contains("postrider_standstill{")
    });
}

#[test]
fn a_message_behind_a_dead_one_of_its_key() {
    Scene::everywhere().iter().for_each(told_of_a_message_behind_a_dead_one_of_its_key);
}

fn told_of_a_message_behind_a_dead_one_of_its_key(scene: &Scene) {
    let head = scene.enqueue("orders.placed", &["--key", "4711"]);
    let id = scene.enqueue("orders.placed", &["--key", "4711"]);
    let once = "[route.retry]\nattempts_max = 1\n";
    let _relay = scene.relay(&format!("{}{once}", endpoint("http", "", answering("422 Unprocessable Content"))));
    let orders = [("route", "orders")];
    let dead = [("route", "orders"), ("cause", "http-422")];
    scene.assert_told(
        &id,
        &Told {
            why: ("held", &format!("behind message {head} (key `4711`), which is dead, http-422")),
            standstill: "dead",
            samples: &[
                ("postrider_outbox_held", &orders, 1.0),
                ("postrider_parked_keys", &orders, 1.0),
                ("postrider_dead_letters", &dead, 1.0),
            ],
        },
    );
}

#[test]
fn a_database_that_somebody_keeps_locked() {
    let scene = Scene::new();
    scene.known_route();
    let id = scene.enqueue("orders.placed", &[]);
    let writer = Connection::open(scene.place().path("app.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    scene.assert_told(
        &id,
        &Told {
            why: ("store-locked", "the only write lock"),
            standstill: "store-locked",
            samples: &[("postrider_store_failures_total", &[], 1.0), ("postrider_store_up", &[], 1.0)],
        },
    );
    writer.execute_batch("ROLLBACK").unwrap();
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || scene.why(&id)[0]["code"] == "passed");
}

/// The relay is taken for dead then, because it cannot say otherwise. Whoever asks is told of the lock, and not to start one.
#[test]
fn a_lock_that_outlives_the_lease() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    // Nobody listens on the first port.
    let _relay = scene.relay(&webhook("http://127.0.0.1:1/", 1, ""));
    wait_until("the relay is at work", || !scene.status()["nodes"].as_array().unwrap().is_empty());
    let writer = Connection::open(scene.place().path("app.db")).unwrap();
    writer.busy_timeout(NAMED_WITHIN).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    wait_until("it is taken for dead", || scene.status()["nodes"].as_array().unwrap().is_empty());
    let findings = |found: &[Value]| {
        assert_eq!(found[0]["code"], "store-locked", "{found:?}");
        assert!(text(&found[0]).contains("the last heartbeat of a relay was written "), "{found:?}");
        let silent = found.iter().find(|finding| finding["code"] == "no-relay").expect("what is known of it");
        let said = text(silent);
        assert!(said.contains("while the store is locked") && !said.contains("start one"), "{said}");
    };
    findings(&scene.why(&id));
    findings(scene.status()["findings"].as_array().unwrap());
    writer.execute_batch("ROLLBACK").unwrap();
    wait_until("the relay is heard again", || {
        let findings = scene.status()["findings"].clone();
        matches!(findings.as_array().unwrap().as_slice(), [only] if only["code"] == "unavailable")
    });
}

#[test]
fn a_lane_that_nobody_owns() {
    let scene = Scene::new();
    let config = scene.config("orders", "transport = \"file:arrivals\"").replace("\"2s\"", "\"90s\"");
    let relay = scene.place().daemon("relay", &config);
    wait_until("it owns the lane", || !scene.status()["routes"][0]["lanes"][0]["owner"].is_null());
    // It is taken for alive for as long as its lease, and cannot take the lane again.
    relay.stop();
    let connection = Connection::open(scene.place().path("app.db")).unwrap();
    connection.busy_timeout(NAMED_WITHIN).unwrap();
    connection.execute("UPDATE postrider_lane SET owner = NULL, expires_at = NULL", []).unwrap();
    let id = scene.enqueue("orders.placed", &[]);
    let unowned =
        |found: &[Value]| found.iter().any(|f| f["code"] == "unowned" && text(f).contains("lane 0 has no owner"));
    let found = scene.why(&id);
    assert!(unowned(&found), "{found:?}");
    let findings = scene.status()["findings"].clone();
    assert!(unowned(findings.as_array().unwrap()), "{findings}");
    let metrics = scene.run(&["check", "--prometheus"]).stdout;
    assert_eq!(sample(&metrics, "postrider_standstill", &[("cause", "unowned")]), Some(1.0), "{metrics}");
    assert_eq!(sample(&metrics, "postrider_partitions_unowned", &[]), Some(1.0), "{metrics}");
}

/// A message that is not there yet, and a lock: PostgreSQL knows whose they are.
#[test]
fn a_transaction_that_somebody_keeps_open_on_postgresql() {
    let scene = Scene::on_postgres();
    scene.known_route();
    let waiting = scene.enqueue("orders.placed", &[]);
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let missing = postrider::MessageId::generate().to_string();
    let mut open = database.session(&format!(
        "BEGIN; SELECT postrider.enqueue('orders.placed', 'n', '{{}}', id => '{missing}');
         SELECT count(*) FROM (SELECT 1 FROM postrider.lane FOR UPDATE) AS lanes;"
    ));
    let _relay = scene.relay("transport = \"file:arrivals\"");
    Promise::begin().kept("`why` names the transaction of what is not there", || {
        let found = scene.why(&missing);
        let named = found.iter().any(|f| f["code"] == "open-transaction" && text(f).contains("pg_terminate_backend"));
        (found[0]["code"] == "unknown" && named).then_some(()).ok_or(format!("{found:?}"))
    });
    let told = Told { why: ("store-locked", "pg_terminate_backend"), standstill: "store-locked", samples: &[] };
    scene.assert_told(&waiting, &told);
    open.end();
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || scene.why(&waiting)[0]["code"] == "passed");
}

/// As after a part of a database was restored. Nothing can be read then, and what was never sent must not look as if it were.
#[test]
fn numbers_of_the_log_that_went_back_on_postgresql() {
    let scene = Scene::on_postgres();
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let number = |last: u32| database.admin(&format!("SELECT setval('postrider.seq', {last})")).done();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    number(1_000);
    scene.enqueue("orders.placed", &[]);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    number(100);
    let id = scene.enqueue("orders.placed", &[]);
    let told = Told { why: ("store-fails", "setval"), standstill: "store-fails", samples: &[] };
    scene.assert_told(&id, &told);
    assert_eq!(scene.run(&["check"]).code, 2, "critical");
    number(1_001);
    assert_eq!(scene.run(&["route", "rebase", "orders"]).code, 0);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 2);
    wait_until("nothing is wrong any more", || scene.why(&id)[0]["code"] == "passed");
}

/// What can be read there is well and stays so: that nobody hears of this relay any more, only it can tell.
#[test]
fn a_file_that_was_moved_away_under_a_relay() {
    let scene = Scene::new();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    let place = |name: &str| scene.place().path(name);
    let move_all = |from: &str, to: &str| {
        for end in ["", "-wal", "-shm"] {
            fs::rename(place(&format!("{from}{end}")), place(&format!("{to}{end}"))).unwrap();
        }
    };
    move_all("app.db", "moved.db");
    let promise = Promise::begin();
    promise.kept("the health endpoint names it", || {
        let (code, health) = get(scene.listen, "/healthz", None).unwrap_or_default();
        let named = health.contains("\"code\":\"store-fails\"") && health.contains("was removed or replaced");
        (code == 503 && named).then_some(()).ok_or(health)
    });
    promise.kept("the metrics name it", || {
        let text = scene.metrics();
        let named = sample(&text, "postrider_standstill", &[("cause", "store-fails")]) == Some(1.0);
        named.then_some(()).ok_or(text)
    });
    move_all("moved.db", "app.db");
    wait_until("nothing is wrong any more", || {
        get(scene.listen, "/readyz", None).is_some_and(|(code, _)| code == 200)
            && sample(&scene.metrics(), "postrider_standstill", &[("cause", "store-fails")]).is_none()
    });
}

/// Behind such a lock nobody can even look: whoever asks is told so, and is not kept waiting.
#[test]
fn a_lock_on_a_whole_table_of_postgresql() {
    let scene = Scene::on_postgres();
    let _relay = scene.relay("transport = \"file:arrivals\"");
    wait_until("the route is known", || !scene.status()["routes"][0].is_null());
    assert_eq!(scene.run(&["route", "pause", "orders"]).code, 0);
    let id = scene.enqueue("orders.placed", &[]);
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let mut open = database.session("BEGIN; LOCK TABLE postrider.lane IN ACCESS EXCLUSIVE MODE; SELECT 'locked';");
    let promise = Promise::begin();
    promise.kept("`why` names it", || {
        let found = scene.why(&id);
        let named = found.iter().any(|f| f["code"] == "store-locked" && text(f).contains("pg_terminate_backend"));
        named.then_some(()).ok_or(format!("{found:?}"))
    });
    for (arguments, code) in [(&["status"][..], 3), (&["check"], 2), (&["doctor"], 1)] {
        promise.kept(arguments[0], || {
            let told = scene.run(arguments);
            let words = format!("{}{}", told.stdout, told.stderr);
            let named = words.contains("store-locked") && words.contains("pg_terminate_backend");
            (told.code == code && named).then_some(()).ok_or(format!("{told:?}"))
        });
    }
    for metrics in [|scene: &Scene| scene.metrics(), |scene: &Scene| scene.run(&["check", "--prometheus"]).stdout] {
        promise.kept("the metrics name it", || {
            let text = metrics(&scene);
            let locked = sample(&text, "postrider_standstill", &[("cause", "store-locked")]) == Some(1.0);
            let answers = sample(&text, "postrider_store_up", &[]) == Some(1.0);
            (locked && answers).then_some(()).ok_or(text)
        });
    }
    open.end();
    assert_eq!(scene.run(&["route", "resume", "orders"]).code, 0);
    wait_until("it has arrived", || scene.place().arrivals("arrivals").len() == 1);
    wait_until("nothing is wrong any more", || {
        sample(&scene.metrics(), "postrider_standstill", &[("cause", "store-locked")]).is_none()
    });
}

/// A look that waits for a lock is not what whoever has lost their patience waits for.
#[test]
fn whoever_watches_a_locked_store_can_leave_it() {
    let scene = Scene::on_postgres();
    let Ground::Server(database) = &scene.ground else { unreachable!("it is on a server") };
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    for arguments in [["top", "--output", "ndjson"], ["tail", "--every", "20ms"]] {
        // A look gives up after a while. If this machine was busy for so long, it is tried again.
        wait_until("it ends when it is told to", || {
            let mut open =
                database.session("BEGIN; LOCK TABLE postrider.lane IN ACCESS EXCLUSIVE MODE; SELECT 'locked';");
            let mut command = scene.place().command(&[&arguments[..], &["--store", &scene.url()]].concat());
            let mut watcher = Daemon::around(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            wait_until("it waits", || database.admin(waits).done().trim() != "0" || watcher.has_ended());
            let told = !watcher.has_ended();
            if told {
                watcher.signal(Signal::INT);
            }
            let ended = watcher.wait();
            open.end();
            told && ended.code() == Some(0)
        });
    }
}
