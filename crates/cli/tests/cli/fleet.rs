//! Several daemons on one database: one that sleeps for longer than its lease lives, restarts one after the other while the
//! application writes, and kills in the middle of the work. On every store.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use postrider::{
    Envelope, MessageId,
    core::{admin::StoreAdmin, limits::Limits},
    mongodb::MongoStore,
    mysql::MysqlStore,
    postgres::PostgresStore,
};
use postrider_testkit::checker::{self, Enqueued, Verdict};
use rusqlite::Connection;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    admin::{free_port, get},
    mongodb::Database as MongodbDatabase,
    mysql::Database as MysqlDatabase,
    postgres::Database as PostgresDatabase,
    support::{Daemon, Producer, Workplace, wait_until},
};

const ARRIVALS: &str = "arrivals.ndjson";

/// Messages beyond the stored cursor: what a crash or a lost lease may double, of each lane.
const WINDOW: u64 = 50;

/// How far an application that writes all the time runs ahead of what has arrived.
const AHEAD: u64 = 500;

/// A database that daemons share.
enum Fleet {
    Sqlite(Workplace),
    Postgres(PostgresDatabase),
    Mysql(MysqlDatabase, Workplace),
    Mongodb(MongodbDatabase, Workplace),
}

impl Fleet {
    fn sqlite() -> Self {
        let workplace = Workplace::new();
        drop(workplace.migrated());
        Self::Sqlite(workplace)
    }

    fn postgres() -> Self {
        Self::Postgres(PostgresDatabase::migrated())
    }

    fn mysql() -> Self {
        Self::Mysql(MysqlDatabase::fresh(&Self::name()), Workplace::new()).migrated()
    }

    fn mongodb() -> Self {
        Self::Mongodb(MongodbDatabase::fresh(&Self::name()), Workplace::new()).migrated()
    }

    /// Another one each time.
    fn name() -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        format!("fleet_{}", NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    fn migrated(self) -> Self {
        let up = self.workplace().run(&["migrate", "up", "--store", &self.url("migrate")]);
        assert_eq!(up.code, 0, "{up:?}");
        self
    }

    fn workplace(&self) -> &Workplace {
        match self {
            Self::Sqlite(workplace) | Self::Mysql(_, workplace) | Self::Mongodb(_, workplace) => workplace,
            Self::Postgres(database) => &database.workplace,
        }
    }

    /// The URL, with the name of whoever connects, where a server can be told.
    fn url(&self, name: &str) -> String {
        match self {
            Self::Sqlite(_) => "sqlite:app.db".to_owned(),
            Self::Postgres(database) => format!("{}?application_name={name}", database.url()),
            Self::Mysql(database, _) => database.url(),
            Self::Mongodb(database, _) => database.url(),
        }
    }

    /// One of the daemons; they share a route of two lanes. A lease that nobody shall lose is longer than any busy machine
    /// can take.
    fn daemon(&self, name: &str, listen: SocketAddr, lease: &str, rate: &str) -> Daemon {
        let text = format!(
            "[store]\nurl = \"{}\"\n[relay]\nname = \"{name}\"\nlease_life = \"{lease}\"\nheartbeat_every = \"200ms\"\n\
             [admin]\nlisten = \"{listen}\"\n[[route]]\nname = \"orders\"\ntransport = \"file:{ARRIVALS}\"\nlanes = 2\n\
             window = {WINDOW}\npage = {WINDOW}\n{rate}\n",
            self.url(name)
        );
        self.workplace().daemon(name, &text)
    }

    fn application(&self) -> Application {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let url = self.url("application");
        let admin: Box<dyn StoreAdmin> = match self {
            Self::Sqlite(workplace) => return Application::Sqlite(Box::new(workplace.producer())),
            Self::Postgres(_) => Box::new(runtime.block_on(PostgresStore::open(&url)).unwrap()),
            Self::Mysql(..) => Box::new(runtime.block_on(MysqlStore::open(&url)).unwrap()),
            Self::Mongodb(..) => Box::new(runtime.block_on(MongoStore::open(&url)).unwrap()),
        };
        Application::Server(Box::new(Server { runtime, admin, enqueued: Vec::new() }))
    }

    fn arrivals(&self) -> Vec<MessageId> {
        self.workplace().arrivals(ARRIVALS)
    }

    fn route(&self) -> Value {
        let status = self.workplace().status_of(&self.url("status"));
        status["routes"][0].clone()
    }

    /// Who owns each lane that is owned.
    fn owners(&self) -> Vec<String> {
        let lanes = self.route()["lanes"].clone();
        let owner = |lane: &Value| Some(lane["owner"].as_str()?.to_owned());
        lanes.as_array().into_iter().flatten().filter_map(owner).collect()
    }

    fn wait_until_shared(&self) {
        wait_until("each owns a lane", || matches!(&self.owners()[..], [one, other] if one != other));
    }

    fn wait_until_alone(&self) {
        wait_until("one owns both lanes", || matches!(&self.owners()[..], [one, other] if one == other));
    }

    /// Stops a daemon where it holds no lock, neither of the database nor of the file that both write to: one that sleeps
    /// with a lock in its hands keeps others from working, whoever wrote it, and that is not what is shown here.
    fn stop(&self, daemon: &Daemon, name: &str) {
        wait_until("it is stopped between two writes", || {
            daemon.stop();
            let free = self.holds_nothing(name);
            if !free {
                daemon.signal(Signal::CONT);
                // One that is stopped again at once gets nowhere on a busy machine, and has the same lock in its hands each time.
                wait_until("it has ended what it was at", || self.holds_nothing(name));
            }
            free
        });
    }

    /// Whether a daemon has no lock in its hands, as far as can be seen from outside.
    fn holds_nothing(&self, name: &str) -> bool {
        let is_file_free = std::fs::File::open(self.workplace().path(ARRIVALS)).unwrap().try_lock().is_ok();
        is_file_free
            && match self {
                Self::Sqlite(workplace) => {
                    let connection = Connection::open(workplace.path("app.db")).unwrap();
                    connection.busy_timeout(Duration::from_secs(2)).unwrap();
                    connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
                }
                Self::Postgres(database) => {
                    let busy = "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND application_name";
                    database.admin(&format!("{busy} = '{name}'")).done().trim() == "0"
                }
                Self::Mysql(database, _) => all_end(|| database.open_transactions()),
                Self::Mongodb(database, _) => all_end(|| database.open_transactions()),
            }
    }
}

/// Whether every transaction that is open now ends: one of a daemon that sleeps does not, those of others do.
fn all_end(open: impl Fn() -> BTreeSet<String>) -> bool {
    let (begun, deadline) = (open(), Instant::now() + Duration::from_secs(5));
    while !begun.is_disjoint(&open()) {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Writes messages in transactions, and remembers what it did.
enum Application {
    Sqlite(Box<Producer>),
    Server(Box<Server>),
}

/// A server's store, by which messages are enqueued in transactions of their own.
struct Server {
    runtime: tokio::runtime::Runtime,
    admin: Box<dyn StoreAdmin>,
    enqueued: Vec<Enqueued>,
}

impl Server {
    fn enqueue(&mut self, messages: u64, keys: u64) {
        self.runtime.block_on(async {
            for _ in 0..messages.div_ceil(10) {
                let mut envelopes = Vec::new();
                for _ in 0..10 {
                    let sequence = self.enqueued.len() as u64;
                    let key = format!("key-{}", sequence % keys);
                    let envelope = Envelope::new("orders.placed", "order.placed", "{}").with_key(key.clone());
                    self.enqueued.push(Enqueued { id: envelope.id, key: Some(key), sequence, committed: true });
                    envelopes.push(envelope);
                }
                let batch = Limits::default().check(envelopes).unwrap();
                self.admin.enqueue(batch, None).await.unwrap();
            }
        });
    }
}

impl Application {
    fn enqueue(&mut self, messages: u64) {
        match self {
            Self::Sqlite(producer) => producer.enqueue(messages, 20),
            Self::Server(server) => server.enqueue(messages, 20),
        }
    }

    fn verdict(&self, arrivals: &[MessageId]) -> Verdict {
        match self {
            Self::Sqlite(producer) => producer.verdict(arrivals),
            Self::Server(server) => checker::check(&server.enqueued, arrivals),
        }
    }

    fn wait_until_all_arrived(&self, fleet: &Fleet) {
        wait_until("all have arrived", || self.verdict(&fleet.arrivals()).lost == 0);
    }
}

/// What a counter of the route shows; 0 if it is not there yet.
fn counter(listen: SocketAddr, name: &str) -> f64 {
    let text = get(listen, "/metrics", None).map_or_else(String::new, |(_, text)| text);
    let line = format!("{name}{{store=\"default\",route=\"orders\"}} ");
    text.lines().find_map(|found| found.strip_prefix(&line)?.parse().ok()).unwrap_or(0.0)
}

fn a_daemon_that_sleeps_beyond_its_lease_is_refused(fleet: &Fleet) {
    const SLEEPS: u32 = 3;
    let (of_sleeper, of_other) = (free_port(), free_port());
    let sleeper = fleet.daemon("sleeper", of_sleeper, "1s", "rate = 100");
    let _other = fleet.daemon("other", of_other, "1s", "rate = 100");
    let mut application = fleet.application();
    for sleep in 1..=SLEEPS {
        fleet.wait_until_shared();
        let before = fleet.arrivals().len();
        application.enqueue(200);
        // The rate makes sure that it has work in its hands when it falls asleep.
        wait_until("some have arrived", || fleet.arrivals().len() >= before + 40);
        fleet.stop(&sleeper, "sleeper");
        fleet.wait_until_alone();
        application.wait_until_all_arrived(fleet);
        wait_until("all is settled", || fleet.route()["pending"] == 0);
        let epochs = fleet.route()["lanes"].clone();

        sleeper.signal(Signal::CONT);
        let refused = || counter(of_sleeper, "postrider_stale_epoch_rejections_total");
        wait_until("its lane is refused to it, and counted", || refused() >= f64::from(sleep));
        let route = fleet.route();
        assert_eq!(route["pending"], 0, "what it had in its hands when it slept moves no cursor: {route}");
        for (now, then) in route["lanes"].as_array().unwrap().iter().zip(epochs.as_array().unwrap()) {
            assert!(now["epoch"].as_u64() >= then["epoch"].as_u64(), "epochs never fall: {route}");
        }
    }
    fleet.wait_until_shared();
    application.enqueue(50);
    application.wait_until_all_arrived(fleet);
    let verdict = application.verdict(&fleet.arrivals());
    assert!(verdict.is_good(), "{verdict:?}");
    // A busy machine may have put them to sleep more often than this test has.
    let lost = [of_sleeper, of_other]
        .map(|listen| counter(listen, "postrider_stale_epoch_rejections_total"))
        .iter()
        .sum::<f64>();
    assert!(verdict.duplicates as f64 <= lost * WINDOW as f64, "{verdict:?}");
    assert!(counter(of_other, "postrider_lease_takeovers_total") > f64::from(SLEEPS));
}

fn a_rolling_restart_under_load_loses_and_doubles_nothing(fleet: &Fleet) {
    let (first, second) = (free_port(), free_port());
    let mut daemons =
        [("first", first), ("second", second)].map(|(name, at)| (name, at, fleet.daemon(name, at, "60s", "")));
    fleet.wait_until_shared();
    let (writing, arrived) = (AtomicBool::new(true), AtomicU64::new(0));
    let arrivals = || {
        let count = fleet.arrivals().len() as u64;
        arrived.store(count, Ordering::SeqCst);
        count
    };
    let application = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut application, mut written) = (fleet.application(), 0);
            while writing.load(Ordering::SeqCst) {
                // There is always something to do, and never more than can be done.
                if written < arrived.load(Ordering::SeqCst) + AHEAD {
                    application.enqueue(10);
                    written += 10;
                } else {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            application
        });
        for _ in 0..3 {
            for (name, at, daemon) in &mut daemons {
                let before = arrivals();
                wait_until("messages flow", || arrivals() >= before + 50);
                daemon.signal(Signal::TERM);
                assert_eq!(daemon.wait().code(), Some(0), "the drain was complete");
                *daemon = fleet.daemon(name, *at, "60s", "");
                fleet.wait_until_shared();
            }
        }
        writing.store(false, Ordering::SeqCst);
        writer.join().unwrap()
    });
    application.wait_until_all_arrived(fleet);
    let verdict = application.verdict(&fleet.arrivals());
    assert!(verdict.is_good(), "{verdict:?}");
    assert_eq!(verdict.duplicates, 0, "none on a clean drain: {verdict:?}");
    assert!(verdict.committed >= 300, "{verdict:?}");
}

/// Killed again and again while the application writes: what one had in its hands the next one sends.
fn kills_in_the_middle_lose_nothing(fleet: &Fleet) {
    const KILLS: u64 = 4;
    let mut application = fleet.application();
    let mut daemon = fleet.daemon("killed", free_port(), "1s", "rate = 200");
    for _ in 0..KILLS {
        let before = fleet.arrivals().len();
        application.enqueue(200);
        wait_until("some have arrived", || fleet.arrivals().len() >= before + 40);
        daemon.kill();
        assert!(application.verdict(&fleet.arrivals()).lost > 0, "the kill came in the middle");
        daemon = fleet.daemon("killed", free_port(), "1s", "rate = 200");
    }
    application.wait_until_all_arrived(fleet);
    wait_until("all is settled", || fleet.route()["pending"] == 0);
    let verdict = application.verdict(&fleet.arrivals());
    assert!(verdict.is_good() && verdict.committed == KILLS * 200, "{verdict:?}");
    assert!(verdict.duplicates <= KILLS * 2 * WINDOW, "{verdict:?}");
}

/// On every store, with a database of its own.
macro_rules! on_every_store {
    ($name:ident) => {
        mod $name {
            use super::Fleet;

            #[test]
            fn sqlite() {
                super::$name(&Fleet::sqlite());
            }

            #[test]
            fn postgres() {
                super::$name(&Fleet::postgres());
            }

            #[test]
            fn mysql() {
                super::$name(&Fleet::mysql());
            }

            #[test]
            fn mongodb() {
                super::$name(&Fleet::mongodb());
            }
        }
    };
}

on_every_store!(a_daemon_that_sleeps_beyond_its_lease_is_refused);
on_every_store!(a_rolling_restart_under_load_loses_and_doubles_nothing);
on_every_store!(kills_in_the_middle_lose_nothing);
