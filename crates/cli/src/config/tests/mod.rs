//! What a file may say, and what is said about one that is wrong.

mod beside;
mod table;
mod typos;

use postrider::core::retry::{Backoff, Jitter};

use std::time::Duration;

use postrider::{
    core::lease::Order,
    core::retry::RetryPolicy,
    relay::{OnDead, options::Options},
};

use super::*;

const SMALLEST: &str = "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"all\"\ntransport = \"stdout\"\n";

fn parsed(text: &str) -> Result<Config, Vec<Problem>> {
    parse(text, &Overrides::default(), false).map(|loaded| loaded.config)
}

fn problems(text: &str) -> String {
    let problems = parsed(text).unwrap_err();
    Problems { file: "p.toml", problems: &problems }.to_string()
}

#[test]
fn the_smallest_file_has_the_engines_defaults() {
    let config = parsed(SMALLEST).unwrap();
    assert_eq!(config.relay.options, Options::default());
    assert!(config.stores[0].migrate && !config.relay.allow_unrouted);
    let [route] = &config.routes[..] else { panic!("one route") };
    assert_eq!((route.lanes, route.order, route.on_dead), (1, Order::Key, OnDead::Hold));
    assert_eq!(route.retry, RetryPolicy::default());
    assert_eq!(route.topics, ["**"]);
}

#[test]
fn everything_can_be_said() {
    let config = parsed(
        r#"
        [store]
        url = "sqlite:shop.db"
        table_prefix = "shop_"
        migrate = false
        [relay]
        name = "east-1"
        lease_life = "3s"
        heartbeat_every = "500ms"
        drain_deadline = "10s"
        keep_delivered = "forever"
        purge_every = "1h"
        [[route]]
        name = "billing"
        topics = ["orders.*", "refunds.**"]
        transport = "file:billing.ndjson"
        lanes = 4
        start = "now"
        on_dead = "continue"
        rate = 500
        window = 100
        window_bytes = "16MiB"
        publish_timeout = "5s"
        retry = { attempts_max = 3, backoff = "fixed", wait = "250ms", jitter = "none" }
        [[route]]
        name = "audit"
        transport = "discard"
        order = "total"
        "#,
    )
    .unwrap();
    assert_eq!(config.relay.name.as_deref(), Some("east-1"));
    assert_eq!(config.stores[0].find().unwrap().1.table_prefix.as_deref(), Some("shop_"));
    assert_eq!(config.relay.options.keep_delivered, None);
    assert_eq!(config.relay.options.heartbeat_every, Duration::from_millis(500));
    let billing = &config.routes[0];
    assert_eq!(billing.window_bytes, 16 << 20);
    let fixed = Backoff::Fixed { wait: Duration::from_millis(250) };
    assert_eq!(billing.retry, RetryPolicy { attempts_max: 3, backoff: fixed, jitter: Jitter::None });
    assert_eq!(config.routes[1].order, Order::Total);
}

#[test]
fn dead_messages_wait_for_ever_or_ten_days_or_as_long_as_is_said() {
    let days = |days: u64| Some(Duration::from_hours(24 * days));
    let kept = |line: &str| parsed(&format!("{SMALLEST}[relay]\n{line}\n")).unwrap().relay.keep_dead;
    let said = ["", "keep_dead = false", "keep_dead = true", "keep_dead = \"3d\"", "keep_dead = \"forever\""];
    assert_eq!(said.map(kept), [None, None, days(10), days(3), None]);
    let overridden = |value: &str| {
        let set = Overrides::gather([], &[format!("relay.keep_dead={value}")]).unwrap();
        parse(SMALLEST, &set, false).unwrap().config.relay.keep_dead
    };
    assert_eq!(["true", "false", "3d"].map(overridden), [days(10), None, days(3)]);
    let told = problems(&format!("{SMALLEST}[relay]\nkeep_dead = 10\n"));
    assert!(told.contains("`relay.keep_dead` `10` is not a duration") && told.contains("or \"forever\""), "{told}");
}

#[test]
fn a_short_lease_brings_a_short_heartbeat() {
    let config = parsed(&format!("{SMALLEST}[relay]\nlease_life = \"1s\"\n")).unwrap();
    assert_eq!(config.relay.options.heartbeat_every, Duration::from_millis(250));
}

#[test]
fn every_problem_is_told_with_line_and_key() {
    let told = problems(
        "[store]\nurl = \"sqlit:app.db\"\n[relay]\nlease_live = \"3s\"\ndrain_deadline = 30\n[[route]]\n\
         name = \"a b\"\ntransport = \"stdout\"\nlanes = 0\norder = \"some\"\ncolour = 1\n[[route]]\nretry = 3\n",
    );
    let expected = "\
  p.toml:2: `store.url` `sqlit:` is not a store that is known here; did you mean `sqlite:`?
  p.toml:4: `relay.lease_live` unknown key; did you mean `lease_life`?
  p.toml:5: `relay.drain_deadline` `30` is not a duration; write a number with a unit (us, ms, s, m, h or d), such as \"30s\"
  p.toml:7: `route.name` a name has 1 to 255 letters, digits, `.`, `-`, `_`, `/` or `:` and no empty segment (route: a b)
  p.toml:9: `route.lanes` is 0; it lies between 1 and 256
  p.toml:10: `route.order` is \"some\"; it is one of \"key\", \"total\"
  p.toml:11: `route.colour` unknown key; known are name, store, topics, transport, http, nats, rabbitmq, redis, kafka, lanes, order, publish_timeout, start, on_dead, rate, window, window_bytes, page, batch, batches, settle_every, settle_after, poll_min, poll_max, breaker_first, breaker_max, retry, destination
  p.toml:12: `route.name` missing, and there is no default
  p.toml:12: `route.transport` missing, and there is no default
  p.toml:13: `route.retry` must be a table (`[route.retry]`), not a number";
    assert_eq!(told.trim_start(), expected);
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    let told = problems(
        "[store]\nurl = \"sqlite:a\"\n[relay]\nlease_life = \"50ms\"\nheartbeat_every = \"1s\"\n[[route]]\nname = \"a\"\n\
         transport = \"stdout\"\norder = \"total\"\nlanes = 2\n[[route]]\nname = \"a\"\ntransport = \"stdout\"\n\
         retry = { backoff = \"fixed\", factor = 2.0 }\n",
    );
    let expected = "\
  p.toml:4: `relay.lease_life` must be at least \"100ms\"
  p.toml:5: `relay.heartbeat_every` must be more than nothing and at most a third of `lease_life`
  p.toml:10: `route.lanes` a route with total order has one lane, because lanes have no order among each other
  p.toml:12: `route.name` two routes are named `a`
  p.toml:14: `route.retry.factor` goes with `backoff = \"exponential\"`; here it is \"fixed\", which has `wait`";
    assert_eq!(told.trim_start(), expected);
}

#[test]
fn a_file_that_is_no_toml_or_empty_is_refused() {
    assert!(problems("[store]\nurl = sqlite\n").starts_with("  p.toml:2: not TOML: "));
    let told = problems("store = []\nroute = []\n");
    assert!(told.contains("p.toml:1: `store` missing") && told.contains("p.toml:2: `route` missing"), "{told}");
    let told = problems("");
    assert!(told.contains("p.toml:1: `store` missing") && told.contains("p.toml:1: `route` missing"), "{told}");
}

const WEBHOOK: &str = "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"partner\"\n";

#[test]
fn a_webhook_can_be_told_everything() {
    let told = r#"
        transport = "http://hooks.internal:8080/orders"
        publish_timeout = "40s"
        [route.http]
        secret = ["whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", { env = "OLD_SECRET" }, { file = "secrets/older" }]
        mode = "structured"
        source = "shop"
        concurrency = 8
        timeout = "20s"
        payload_max = "256KiB"
        allow = ["10.0.0.0/8", "fd00::/8"]
        allow_private = true
        allow_http = true
        ports = [8080]
        headers = { x-team = "shop", authorization = { env = "TOKEN" } }
    "#;
    let config = parsed(&format!("{WEBHOOK}{told}")).unwrap();
    let http = config.routes[0].http.as_ref().unwrap();
    assert_eq!((http.secrets.len(), http.headers.len()), (3, 2));
    assert_eq!(http.publish_timeout(), Duration::from_secs(40));
    let printed = format!("{config:?}");
    assert!(!printed.contains("C2FV") && printed.contains("env OLD_SECRET"), "{printed}");
}

#[test]
fn a_webhook_that_is_wrong_is_told_so_with_its_line() {
    let told = problems(&format!(
        "{WEBHOOK}transport = \"http://me:canary@10.0.0.1:22/canary\"\npublish_timeout = \"10s\"\n[route.http]\n\
         secret = \"whsec_canary\"\nmodus = 1\nconcurrency = 0\nallow = [\"10.0.0.1/8\"]\nports = [0]\n\
         headers = {{ a = {{ fil = \"canary\" }} }}\n[[route]]\nname = \"b\"\ntransport = \"stdout\"\nhttp = {{}}\n\
         [[route]]\nname = \"c\"\ntransport = \"https://hooks.example.com/\"\n[[route]]\nname = \"d\"\n\
         transport = \"https://hooks.example.com/\"\nhttp = {{}}\n[[route]]\nname = \"e\"\n\
         transport = \"https://hooks.example.com/\"\nhttp = {{ secret = {{ env = \"X\" }}, unsigned = true }}\n"
    ));
    for line in [
        "p.toml:5: `route.transport` the webhook cannot be set up: the URL is plain `http`; write `https`, or allow it with \
         `allow_http`; the URL holds a user name or password; send it as a header instead; the port 22 is not allowed; \
         allow it with `ports`; the address 10.0.0.1 is private; allow it with `allow` or `allow_private`",
        "p.toml:6: `route.publish_timeout` must be at least twice",
        "p.toml:8: `route.http.secret` what stands behind the prefix is not Base64",
        "p.toml:9: `route.http.modus` unknown key; did you mean `mode`?",
        "p.toml:10: `route.http.concurrency` is 0; it lies between 1 and 64",
        "p.toml:11: `route.http.allow` not a network",
        "p.toml:12: `route.http.ports` is 0; it lies between 1 and 65535",
        "p.toml:13: `route.http.headers` `a` unknown key `fil`; did you mean `file`?",
        "p.toml:17: `route.http` is for a transport that begins with `https:`",
        "p.toml:18: `route.http` missing: a webhook is signed",
        "p.toml:24: `route.http.secret` missing; or write `unsigned = true`",
        "p.toml:28: `route.http.unsigned` is true beside a `secret`",
    ] {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
    assert!(!told.contains("canary"), "{told}");
}

#[test]
fn a_broker_that_is_wrong_is_told_so_with_its_line() {
    let told = problems(&format!(
        "{WEBHOOK}transport = \"nats://me:canary@broker\"\n[route.nats]\nprefx = \"a\"\nuser = \"me\"\ntoken = \"canary\"\n\
         replicas = 9\nkey_file = \"k\"\n[[route]]\nname = \"b\"\ntransport = \"nats://broker\"\n\
         nats = {{ declare = \"S\" }}\n[[route]]\nname = \"c\"\ntransport = \"redis://:canary@broker\"\n\
         redis = {{ user = \"me\", key_file = \"k\", stream = \"s\", prefix = \"p\" }}\n[[route]]\nname = \"d\"\ntransport = \"stdout\"\nnats = {{}}\nredis = {{}}\n\
         [[route]]\nname = \"e\"\ntransport = \"amqp://me:canary@broker\"\nrabbitmq = {{ user = \"me\", key_file = \"k\", \
         queue_type = \"stream\" }}\n[[route]]\nname = \"f\"\ntransport = \"amqps://broker/shop\"\n\
         rabbitmq = {{ declare = \"orders\", routing_key = \"other\" }}\n[[route]]\nname = \"g\"\n\
         transport = \"stdout\"\nrabbitmq = {{}}\n"
    ));
    for line in [
        "p.toml:5: `route.transport` the URL of a NATS server must not hold a user or a password",
        "p.toml:7: `route.nats.prefx` unknown key; did you mean `prefix`?",
        "p.toml:8: `route.nats.user` `user` and `password` belong together",
        "p.toml:8: `route.nats.user` there is one way to log in",
        "p.toml:10: `route.nats.replicas` is 9; it lies between 1 and 5",
        "`route.nats.certificate_file` `certificate_file` and `key_file` belong together",
        "p.toml:14: `route.transport` a stream for every subject would swallow the server's own; set a `prefix`",
        "p.toml:18: `route.transport` the URL of a Redis server must not hold a user or a password",
        "p.toml:19: `route.redis.user` a `user` needs a `password`",
        "`route.redis.certificate_file` `certificate_file` and `key_file` belong together",
        "p.toml:23: `route.nats` is for a transport that begins with `nats:`",
        "p.toml:24: `route.redis` is for a transport that begins with `redis:` or `rediss:`",
        "p.toml:27: `route.transport` the URL of a RabbitMQ server must not hold a user or a password",
        "p.toml:28: `route.rabbitmq.user` `user` and `password` belong together",
        "`route.rabbitmq.certificate_file` `certificate_file` and `key_file` belong together",
        "p.toml:28: `route.rabbitmq.queue_type` is \"stream\"; it is one of \"quorum\", \"classic\"",
        "p.toml:31: `route.transport` without an `exchange` the routing key is the name of the queue",
        "p.toml:36: `route.rabbitmq` is for a transport that begins with `amqp:` or `amqps:`",
    ] {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
    assert!(!told.contains("canary"), "{told}");
}

#[test]
fn a_route_to_kafka_that_is_wrong_is_told_so_with_its_line() {
    let told = problems(&format!(
        "{WEBHOOK}transport = \"kafka://me:canary@broker\"\n[route.kafka]\ntopics = \"a\"\nuser = \"me\"\nreplicas = 3\n\
         key_file = \"k\"\nca_file = \"c\"\nmechanism = \"gssapi\"\n[[route]]\nname = \"b\"\ntransport = \"stdout\"\n\
         kafka = {{}}\n"
    ));
    let transport = match cfg!(feature = "kafka") {
        true => "p.toml:5: `route.transport` the URL of a Kafka cluster must not hold a user or a password",
        false => "p.toml:5: `route.transport` a route to Kafka needs a program that was built with the feature `kafka`",
    };
    for line in [
        transport,
        "p.toml:7: `route.kafka.topics` unknown key; did you mean `topic`?",
        "p.toml:8: `route.kafka.user` `user` and `password` belong together",
        "p.toml:9: `route.kafka.replicas` is for topics that are made",
        "`route.kafka.certificate_file` `certificate_file` and `key_file` belong together",
        "`route.kafka.tls` is false beside files with certificates",
        "p.toml:12: `route.kafka.mechanism` is \"gssapi\"; it is one of \"plain\", \"scram-sha-256\", \"scram-sha-512\"",
        "p.toml:16: `route.kafka` is for a transport that begins with `kafka:`",
    ] {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
    assert!(!told.contains("canary"), "{told}");
}

#[test]
fn a_route_can_publish_under_other_topics() {
    let rules =
        "[route.destination]\nmap = { \"order.placed\" = \"orders\" }\nnaming = \"kebab\"\nprefix = \"shop.\"\n";
    let config = parsed(&format!("{SMALLEST}{rules}")).unwrap();
    let topics = config.routes[0].destination.as_ref().unwrap();
    assert_eq!(topics.of("order.placed", "order.placed"), "orders");
    assert_eq!(topics.of("order.paid", "order.paid"), "shop.order-paid");
    assert_eq!(parsed(SMALLEST).unwrap().routes[0].destination, None);
    let told =
        problems(&format!("{SMALLEST}[route.destination]\nmap = {{ a = 1 }}\nnamning = \"kebab\"\nprefix = \"a b\"\n"));
    for line in
        ["`route.destination.map` `a` must be a text", "did you mean `naming`?", "`route.destination` the prefix"]
    {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
}

#[test]
fn every_wrong_pattern_and_every_impossible_amount_is_told() {
    let told = problems(
        "[store]\nurl = \"sqlite:a\"\nschema = \"x\"\nconnections = 0\n[relay]\ndrain_deadline = \"0s\"\n[[route]]\n\
         name = \"a\"\ntransport = \"stdout\"\ntopics = [\"a b\", \"ok\", \"c..d\"]\nwindow_bytes = \"5GiB\"\n\
         publish_timeout = \"0s\"\n",
    );
    for part in [
        "p.toml:3: `store.schema`",
        "p.toml:4: `store.connections`",
        "p.toml:6: `relay.drain_deadline` must be more than nothing",
        "a b",
        "c..d",
        "`route.window_bytes` must be at most \"4GiB\"",
        "`route.publish_timeout` must be more than nothing",
    ] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }
}

#[test]
fn timings_that_contradict_each_other_are_refused() {
    let told = problems(&format!("{SMALLEST}poll_max = \"10ms\"\nbreaker_first = \"1m\"\n"));
    assert_eq!(
        told.trim_start(),
        "p.toml:6: `route.poll_max` `poll_min` must not be longer than `poll_max`\n  \
         p.toml:7: `route.breaker_first` `breaker_first` must not be longer than `breaker_max`"
    );
}

#[test]
fn a_broker_has_to_answer_before_its_route_stops_waiting() {
    let kafka = if cfg!(feature = "kafka") { "kafka://broker:9092" } else { "stdout" };
    let brokers = [
        ("nats", "nats://broker", "longer than", "shorter than"),
        ("rabbitmq", "amqp://broker", "longer than", "shorter than"),
        ("redis", "redis://broker", "longer than", "shorter than"),
        ("kafka", kafka, "at least twice", "at most half of"),
    ];
    for (broker, url, longer, shorter) in brokers.into_iter().filter(|(_, url, ..)| *url != "stdout") {
        let told = |timeout: &str, publish_timeout: &str| {
            let set = |key: &str, value: &str| match value {
                "" => String::new(),
                value => format!("{key} = \"{value}\"\n"),
            };
            let more = if broker == "rabbitmq" { "exchange = \"shop\"\n" } else { "" };
            let route = set("publish_timeout", publish_timeout);
            let text =
                format!("{WEBHOOK}transport = \"{url}\"\n{route}[route.{broker}]\n{more}{}", set("timeout", timeout));
            let told = parsed(&text).err()?;
            Some(Problems { file: "p.toml", problems: &told }.to_string().trim_start().to_owned())
        };
        for (timeout, publish_timeout) in [("", ""), ("15s", "31s"), ("1m", "2m"), ("", "21s")] {
            assert_eq!(told(timeout, publish_timeout), None, "{broker}: {timeout}, {publish_timeout}");
        }
        let line = if broker == "rabbitmq" { 8 } else { 7 };
        assert_eq!(
            told("1m", "").unwrap(),
            format!(
                "p.toml:{line}: `route.{broker}.timeout` must be {shorter} the route's `publish_timeout`, which is \"30s\" by \
                 default: raise that too, or lower this"
            )
        );
        for (timeout, publish_timeout) in [("30s", "30s"), ("", "10s"), ("1m", "40s")] {
            assert_eq!(
                told(timeout, publish_timeout).unwrap(),
                format!(
                    "p.toml:6: `route.publish_timeout` must be {longer} `{broker}.timeout`, which is \"10s\" by default"
                ),
                "{timeout}, {publish_timeout}"
            );
        }
    }
}

#[test]
fn what_a_store_would_object_to_is_told_with_its_line() {
    let store = |more: &str| format!("[store]\n{more}\n[[route]]\nname = \"a\"\ntransport = \"stdout\"\n");
    for (more, line) in [
        ("url = \"postgres://u@h/d?sslmode=prefer\"", "p.toml:2: `store.url`"),
        ("url = \"postgres://u@h/d?sslmode=canary\"", "p.toml:2: `store.url`"),
        ("url = \"postgres://u:p@h:notaport/d\"", "p.toml:2: `store.url`"),
        ("url = \"postgres://u@h/d?sslrootcert=no/such/file\"", "p.toml:2: `store.url`"),
        ("url = \"postgres://u@localhost/d\"\ntable_prefix = \"x; DROP TABLE y\"", "p.toml:3: `store.table_prefix`"),
        ("url = \"postgres://u@localhost/d\"\nschema = \"pg_x\"", "p.toml:3: `store.schema`"),
        ("url = \"sqlite:a.db\"\ntable_prefix = \"x'y\"", "p.toml:3: `store.table_prefix`"),
    ] {
        let told = problems(&store(more));
        assert!(told.trim_start().starts_with(line) && told.lines().count() == 1, "{more}: {told}");
    }
}

#[test]
fn several_stores_have_names_and_routes_say_which() {
    let two = "[[store]]\nname = \"shop\"\nurl = \"sqlite:shop.db\"\n[[store]]\nname = \"stock\"\nurl = \"sqlite:stock.db\"\n";
    let route = |name: &str, store: &str| format!("[[route]]\nname = \"{name}\"\ntransport = \"discard\"\n{store}\n");
    let both = [route("a", "store = \"shop\""), route("b", "store = \"stock\"")].concat();
    let config = parsed(&format!("{two}{both}")).unwrap();
    let stores: Vec<&str> = config.routes.iter().map(|route| route.store.as_str()).collect();
    assert_eq!(stores, ["shop", "stock"]);

    let told = problems(&format!("{two}{}{}", route("a", ""), route("b", "store = \"stok\"")));
    for line in [
        "p.toml:7: `route.store` missing",
        "p.toml:14: `route.store` there is no store `stok`; there are shop, stock",
        "p.toml:4: `store` no route reads the store `stock`",
    ] {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
    let same = "[[store]]\nname = \"a\"\nurl = \"sqlite:x\"\n[[store]]\nname = \"a\"\nurl = \"sqlite:y\"\n\
                [[store]]\nurl = \"sqlite:x\"\n";
    let told = problems(&format!("{same}{both}"));
    for line in [
        "p.toml:5: `store.name` two stores are named `a`",
        "p.toml:7: `store.name` missing",
        "p.toml:8: `store.url` is the same",
    ] {
        assert!(told.contains(line), "{line}\n--- in ---\n{told}");
    }
}

#[test]
fn a_server_has_a_schema_and_connections() {
    let text = SMALLEST.replace(
        "url = \"sqlite:app.db\"",
        "url = \"postgres://u@localhost/d\"\nschema = \"Order-Box\"\nconnections = 4",
    );
    let (_, place) = parsed(&text).unwrap().stores[0].find().unwrap();
    assert_eq!((place.schema.as_deref(), place.connections), (Some("Order-Box"), Some(4)));
}
