//! `[[route]]`: which topics go where, and by which policies.

use std::{collections::BTreeSet, time::Duration};

use postrider::{
    core::{
        lease::{Order, Start},
        retry::RetryPolicy,
        topic::{TopicPattern, check_name},
    },
    relay::OnDead,
    routing::Topics,
};
use toml::de::DeValue;

use super::{
    destination,
    http::{self, HttpConfig},
    kafka::{self, KafkaConfig},
    nats::{self, NatsConfig},
    rabbitmq::{self, RabbitmqConfig},
    reader::Section,
    redis::{self, RedisConfig},
    retry,
    shapes::{text, texts},
    store::StoreConfig,
};
use crate::registry;

/// One route.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RouteConfig {
    pub(crate) name: String,
    /// The name of the store that it reads.
    pub(crate) store: String,
    pub(crate) topics: Vec<String>,
    pub(crate) transport: String,
    pub(crate) lanes: u32,
    pub(crate) order: Order,
    pub(crate) start: Start,
    pub(crate) on_dead: OnDead,
    pub(crate) rate: Option<u32>,
    pub(crate) window: u32,
    pub(crate) window_bytes: usize,
    pub(crate) publish_timeout: Duration,
    pub(crate) page: u32,
    pub(crate) batch: u32,
    pub(crate) batches: u32,
    pub(crate) settle_every: u32,
    pub(crate) settle_after: Duration,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    pub(crate) breaker_first: Duration,
    pub(crate) breaker_max: Duration,
    pub(crate) retry: RetryPolicy,
    /// `[route.destination]`, if it has rules.
    pub(crate) destination: Option<Topics>,
    /// `[route.http]`, if the transport is a webhook.
    pub(crate) http: Option<HttpConfig>,
    /// `[route.nats]`, if the transport is NATS.
    pub(crate) nats: Option<NatsConfig>,
    /// `[route.rabbitmq]`, if the transport is RabbitMQ.
    pub(crate) rabbitmq: Option<RabbitmqConfig>,
    /// `[route.redis]`, if the transport is Redis.
    pub(crate) redis: Option<RedisConfig>,
    /// `[route.kafka]`, if the transport is Kafka.
    pub(crate) kafka: Option<KafkaConfig>,
}

/// Reads all of them. None at all is a problem, and so is a store that none of them reads.
pub(super) fn read(top: &mut Section<'_, '_>, stores: &[StoreConfig]) -> Vec<RouteConfig> {
    let sections = top.sections("route");
    if top.has_none("route") {
        top.object("route", "missing: a relay needs at least one `[[route]]`");
    }
    let mut routes: Vec<RouteConfig> = Vec::new();
    for mut section in sections {
        let route = read_one(&mut section, stores);
        if !route.name.is_empty() && routes.iter().any(|other| other.name == route.name) {
            section.object("name", format!("two routes are named `{}`", route.name));
        }
        section.close();
        routes.push(route);
    }
    let read: BTreeSet<&str> = routes.iter().map(|route| route.store.as_str()).collect();
    if stores.len() > 1 {
        for (number, idle) in stores.iter().enumerate().filter(|(_, store)| !read.contains(store.name.as_str())) {
            let what = format!("no route reads the store `{}`; write `store = \"{0}\"` in one", idle.name);
            top.object_to("store", number, what);
        }
    }
    routes
}

fn read_one(section: &mut Section<'_, '_>, stores: &[StoreConfig]) -> RouteConfig {
    const ORDERS: &[(&str, Order)] = &[("key", Order::Key), ("total", Order::Total)];
    const STARTS: &[(&str, Start)] = &[("oldest", Start::Oldest), ("now", Start::Now)];
    const ON_DEAD: &[(&str, OnDead)] = &[("hold", OnDead::Hold), ("continue", OnDead::Continue)];

    let name = section.require("name", |value| {
        let name = text(value)?;
        check_name("route", &name).map(|()| name).map_err(|error| error.to_string())
    });
    let store = read_store(section, stores);
    let topics = section.value("topics", topics);
    let transport = section.require("transport", |value| {
        let url = text(value)?;
        registry::transport(&url)?;
        Ok(url)
    });
    let http = http::read(section, transport.as_deref());
    let nats = nats::read(section, transport.as_deref());
    let rabbitmq = rabbitmq::read(section, transport.as_deref());
    let redis = redis::read(section, transport.as_deref());
    let kafka = kafka::read(section, transport.as_deref());
    let lanes = section.number_or_default("lanes");
    let order = section.word_or_default("order", ORDERS);
    if order == Order::Total && lanes > 1 {
        section.object("lanes", "a route with total order has one lane, because lanes have no order among each other");
    }
    let publish_timeout = section.duration("publish_timeout");
    if publish_timeout.zip(http.as_ref()).is_some_and(|(timeout, http)| timeout < http.timeout * 2) {
        section.object("publish_timeout", "must be at least twice `http.timeout`, which is \"15s\" by default");
    }
    let unless_told = || http.as_ref().map_or(Duration::from_secs(30), HttpConfig::publish_timeout);
    let publish_timeout = publish_timeout.unwrap_or_else(unless_told);
    let brokers = [
        ("nats", nats.as_ref().map(|nats| nats.timeout)),
        ("rabbitmq", rabbitmq.as_ref().map(|rabbitmq| rabbitmq.timeout)),
        ("redis", redis.as_ref().map(|redis| redis.timeout)),
        ("kafka", kafka.as_ref().map(|kafka| kafka.timeout)),
    ];
    for (broker, timeout) in brokers.into_iter().filter_map(|(broker, timeout)| Some((broker, timeout?))) {
        check_timeout(section, broker, timeout, publish_timeout);
    }
    let route = RouteConfig {
        name: name.unwrap_or_default(),
        store,
        topics,
        transport: transport.unwrap_or_default(),
        lanes,
        order,
        start: section.word_or_default("start", STARTS),
        on_dead: section.word_or_default("on_dead", ON_DEAD),
        rate: section.number("rate"),
        window: section.number_or_default("window"),
        window_bytes: section.size_or_default("window_bytes"),
        publish_timeout,
        page: section.number_or_default("page"),
        batch: section.number_or_default("batch"),
        batches: section.number_or_default("batches"),
        settle_every: section.number_or_default("settle_every"),
        settle_after: section.duration_or_default("settle_after"),
        poll_min: section.duration_or_default("poll_min"),
        poll_max: section.duration_or_default("poll_max"),
        breaker_first: section.duration_or_default("breaker_first"),
        breaker_max: section.duration_or_default("breaker_max"),
        retry: retry::read(section),
        destination: destination::read(section),
        http,
        nats,
        rabbitmq,
        redis,
        kafka,
    };
    for (shorter, longer, fine) in [
        ("poll_min", "poll_max", route.poll_min <= route.poll_max),
        ("breaker_first", "breaker_max", route.breaker_first <= route.breaker_max),
    ] {
        if !fine {
            let at = if section.has(longer) { longer } else { shorter };
            section.object(at, format!("`{shorter}` must not be longer than `{longer}`"));
        }
    }
    route
}

/// A publisher has to answer before the route stops waiting: otherwise all of a batch counts as unknown and is sent again, and
/// what the publisher knew of it is lost. Kafka's takes up to twice its timeout.
fn check_timeout(section: &Section<'_, '_>, broker: &'static str, timeout: Duration, publish_timeout: Duration) {
    let (fine, longer, shorter) = match broker {
        "kafka" => (publish_timeout >= timeout.saturating_mul(2), "at least twice", "at most half of"),
        _ => (publish_timeout > timeout, "longer than", "shorter than"),
    };
    if fine {
        return;
    }
    if section.has("publish_timeout") {
        section.object("publish_timeout", format!("must be {longer} `{broker}.timeout`, which is \"10s\" by default"));
    } else {
        let advice = "which is \"30s\" by default: raise that too, or lower this";
        section.object_inside(broker, "timeout", format!("must be {shorter} the route's `publish_timeout`, {advice}"));
    }
}

/// Which store; of several it must be said.
fn read_store(section: &mut Section<'_, '_>, stores: &[StoreConfig]) -> String {
    let names: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
    let known = |value: &DeValue<'_>| {
        let name = text(value)?;
        if stores.is_empty() || names.contains(&name.as_str()) {
            return Ok(name);
        }
        Err(format!("there is no store `{}`; there are {}", name.escape_debug(), names.join(", ")))
    };
    let said = if stores.len() > 1 { section.require("store", known) } else { section.get("store", known) };
    said.or_else(|| names.first().map(|&name| name.to_owned())).unwrap_or_default()
}

fn topics(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let patterns = texts(value)?;
    if patterns.is_empty() {
        return Err("is empty; `[\"**\"]` stands for all topics".to_owned());
    }
    let wrong: Vec<String> = patterns
        .iter()
        .filter_map(|pattern| Some(format!("`{pattern}`: {}", TopicPattern::new(pattern).err()?)))
        .collect();
    if wrong.is_empty() { Ok(patterns) } else { Err(wrong.join("; ")) }
}
