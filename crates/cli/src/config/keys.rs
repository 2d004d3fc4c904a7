//! Every key that the file may have: what it takes, what holds without it, whether a running daemon takes a new value.
//!
//! This table is the one source of truth. The reader asks it for ranges, words and defaults, so a key that is not here cannot
//! be read, and a test sees that each one that is here is. `config schema`, `config show`, `init` and the environment
//! variables follow from it.

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    /// With its sections: `route.http.timeout`.
    pub(crate) path: &'static str,
    /// What it takes.
    pub(crate) kind: Kind,
    /// What holds without it.
    pub(crate) fallback: Fallback,
    /// Whether SIGHUP is enough for a new value.
    pub(crate) live: bool,
    /// What it means, in a sentence.
    pub(crate) doc: &'static str,
}

/// What a key takes.
#[derive(Debug)]
pub(crate) enum Kind {
    Text,
    Texts,
    Boolean,
    /// From, to.
    Number(u32, u32),
    Numbers(u32, u32),
    Decimal,
    /// May be nothing.
    Duration,
    /// Must be more than nothing.
    SomeTime,
    /// A duration, or this word.
    DurationOr(&'static str),
    /// A duration of more than nothing, or this word, or whether there is one at all: `false` is the word.
    DurationOrSwitch(&'static str),
    /// From, to.
    Size(&'static str, &'static str),
    Word(&'static [&'static str]),
    /// An address and a port.
    Address,
    /// May hold a password.
    StoreUrl,
    /// The path of a webhook may be a secret.
    TransportUrl,
    Secret,
    /// One, or several.
    Secrets,
    /// Names, and a secret for each.
    SecretTable,
    /// Names, and a text for each.
    TextTable,
}

/// What holds if a key is left out.
#[derive(Debug)]
pub(crate) enum Fallback {
    /// Nothing: it must be there.
    Required,
    /// This, as it would stand in the file.
    Value(&'static str),
    /// Something that cannot be written down as a value.
    Words(&'static str),
}

use Fallback::{Required, Value, Words};
use Kind::{
    Address, Boolean, Decimal, Duration, DurationOr, DurationOrSwitch, Number, Numbers, Secret, SecretTable, Secrets,
    Size, SomeTime, StoreUrl, Text, TextTable, Texts, TransportUrl, Word,
};

/// Sections that may stand several times, as an array of tables.
pub(crate) const REPEATED: [&str; 2] = ["store", "route"];

/// The most that any count of a route may be.
const COUNT_MAX: u32 = 1_000_000;

const fn fixed(path: &'static str, kind: Kind, fallback: Fallback, doc: &'static str) -> Key {
    Key { path, kind, fallback, live: false, doc }
}

const fn live(path: &'static str, kind: Kind, fallback: Fallback, doc: &'static str) -> Key {
    Key { path, kind, fallback, live: true, doc }
}

/// In the order in which they are shown.
pub(crate) const KEYS: &[Key] = &[
    fixed(
        "store.name",
        Text,
        Words("`default`"),
        "what it is called in metrics and by routes; each of several stores needs one",
    ),
    fixed(
        "store.url",
        StoreUrl,
        Required,
        "which database: `sqlite:path`, `postgres://user:password@host/database`, `mysql://user:password@host/database` or `mongodb://user:password@host/database`; left out, `DATABASE_URL` says it; may be given like a secret",
    ),
    fixed(
        "store.password",
        Secret,
        Words("what the URL has"),
        "the password of the user that the URL names, so that the URL itself need not be a secret",
    ),
    fixed(
        "store.table_prefix",
        Text,
        Words("`postrider_`; nothing on PostgreSQL"),
        "what the names of all tables or collections begin with",
    ),
    fixed("store.schema", Text, Words("`postrider`"), "PostgreSQL: the schema of all tables"),
    fixed(
        "store.connections",
        Number(1, 1_000),
        Words("8, on MongoDB 16"),
        "not on SQLite; PostgreSQL has one more that reads the log and one that listens",
    ),
    fixed(
        "store.migrate",
        Boolean,
        Value("true"),
        "bring the schema up to date at the start, and make a SQLite file if there is none",
    ),
    fixed(
        "store.collect.url",
        Secret,
        Required,
        "documents that carry their mail, which is carried into this store: `mongodb://user:password@host/database`, also a standalone server",
    ),
    fixed("store.collect.collections", Texts, Required, "the collections of those documents"),
    fixed("store.collect.field", Text, Value("\"_outbox\""), "the array of a document that holds its mail"),
    fixed(
        "store.collect.table_prefix",
        Text,
        Value("\"postrider_\""),
        "what the name of the collection begins with that holds the collector's leases",
    ),
    fixed(
        "store.collect.make_indexes",
        Boolean,
        Value("true"),
        "make the index by which documents with mail are found; without one, all documents are read again and again",
    ),
    fixed("relay.name", Text, Words("the process id"), "how people recognise this node"),
    fixed(
        "relay.lease_life",
        Duration,
        Value("\"15s\""),
        "how long a lease lives without a heartbeat, and the lanes of a crashed node stand still; at least 100ms",
    ),
    fixed(
        "relay.heartbeat_every",
        Duration,
        Words("3s, or a quarter of a shorter lease"),
        "how often the node says that it is alive; at most a third of `lease_life`",
    ),
    fixed(
        "relay.drain_deadline",
        SomeTime,
        Value("\"25s\""),
        "how long a drain may take; what is left is published again by the next owner",
    ),
    fixed(
        "relay.keep_delivered",
        DurationOr("forever"),
        Value("\"24h\""),
        "how long delivered records are kept, for replays",
    ),
    fixed(
        "relay.keep_delivered_max",
        Number(0, u32::MAX),
        Words("any number"),
        "how many records are kept at most: delivered ones beyond so many newer ones go, however young they are",
    ),
    fixed(
        "relay.keep_dead",
        DurationOrSwitch("forever"),
        Value("false"),
        "how long dead messages wait for an operator; then they are discarded, with an audit entry. `true` is `\"10d\"`, `false` is `\"forever\"`",
    ),
    fixed("relay.purge_every", SomeTime, Value("\"60s\""), "how often old records are looked for"),
    fixed(
        "relay.unrouted",
        Word(&["refuse", "allow"]),
        Value("\"refuse\""),
        "whether to start although the log has topics that no route reads",
    ),
    live(
        "log.level",
        Word(&["error", "warn", "info", "debug", "trace"]),
        Value("\"info\""),
        "what is logged to standard error; `RUST_LOG` goes before it",
    ),
    fixed("log.format", Word(&["text", "json"]), Value("\"text\""), "a line for people, or one JSON object per line"),
    fixed(
        "admin.listen",
        Address,
        Value("\"127.0.0.1:9464\""),
        "where probes and Prometheus are answered; any address but loopback needs a token",
    ),
    live(
        "admin.token",
        Secret,
        Words("none is asked for"),
        "what /metrics and /healthz ask for, at least 16 bytes of ASCII",
    ),
    fixed(
        "telemetry.otlp_endpoint",
        Text,
        Words("no traces"),
        "the OpenTelemetry collector that traces are sent to, over HTTP: `http://127.0.0.1:4318`; needs the feature `otlp`",
    ),
    fixed("telemetry.service_name", Text, Value("\"postrider\""), "what this service is called in traces"),
    fixed("route.name", Text, Required, "the cursor is kept under it: a renamed route is a new one"),
    fixed("route.store", Text, Words("the only store"), "which of several stores it reads"),
    fixed(
        "route.topics",
        Texts,
        Value("[\"**\"]"),
        "patterns: exact, `*` for one segment, a last `**` for one or more",
    ),
    live(
        "route.transport",
        TransportUrl,
        Required,
        "the destination: `stdout`, `file:path`, `https://host/path`, `nats://host:4222`, `amqp://host:5672/vhost`, `redis://host:6379/0`, `kafka://host:9092` or `discard`",
    ),
    fixed(
        "route.lanes",
        Number(1, 256),
        Value("1"),
        "into how many lanes the keys are split, so that several nodes share the route",
    ),
    fixed(
        "route.order",
        Word(&["key", "total"]),
        Value("\"key\""),
        "per key, or all messages of the route one after the other",
    ),
    fixed("route.start", Word(&["oldest", "now"]), Value("\"oldest\""), "where a new route begins"),
    live(
        "route.on_dead",
        Word(&["hold", "continue"]),
        Value("\"hold\""),
        "what becomes of a key whose head is given up",
    ),
    live("route.rate", Number(1, COUNT_MAX), Words("unlimited"), "messages per second and lane at most"),
    live(
        "route.window",
        Number(1, COUNT_MAX),
        Value("8192"),
        "records in memory beyond the stored cursor: the bound on duplicates after a crash",
    ),
    live("route.window_bytes", Size("4KiB", "4GiB"), Value("\"16MiB\""), "the same in bytes; it is held in memory"),
    live(
        "route.publish_timeout",
        SomeTime,
        Words("30s; of a webhook at least twice `http.timeout`"),
        "how long a publish may take before its outcome counts as unknown",
    ),
    live("route.page", Number(1, COUNT_MAX), Value("1000"), "records of one read"),
    live(
        "route.batch",
        Number(1, COUNT_MAX),
        Value("1000"),
        "messages of one publish; fewer if the transport asks for it",
    ),
    live(
        "route.batches",
        Number(1, COUNT_MAX),
        Value("8"),
        "publishes at the same time; fewer if the transport asks for it",
    ),
    live(
        "route.settle_every",
        Number(1, COUNT_MAX),
        Value("4000"),
        "messages that may be done before the cursor is moved",
    ),
    live("route.settle_after", Duration, Value("\"20ms\""), "how long moving the cursor may wait"),
    live(
        "route.poll_min",
        SomeTime,
        Value("\"50ms\""),
        "how soon the log is looked at again just after something came, without a hint",
    ),
    live(
        "route.poll_max",
        SomeTime,
        Value("\"5s\""),
        "the same when nothing comes: how late a message is seen whose hint was lost",
    ),
    live(
        "route.breaker_first",
        SomeTime,
        Value("\"100ms\""),
        "how long to wait before a destination that is down is tried again",
    ),
    live("route.breaker_max", SomeTime, Value("\"30s\""), "the longest such wait"),
    live(
        "route.retry.attempts_max",
        Number(1, u32::MAX),
        Value("10"),
        "rejections before a message is dead; a message can carry its own limit",
    ),
    live(
        "route.retry.jitter",
        Word(&["none", "half", "full"]),
        Value("\"half\""),
        "how much of each wait is left to chance",
    ),
    live(
        "route.retry.backoff",
        Word(&["fixed", "linear", "exponential"]),
        Value("\"exponential\""),
        "how the waits grow",
    ),
    live("route.retry.wait", SomeTime, Value("\"1s\""), "for `fixed`: each wait"),
    live("route.retry.step", SomeTime, Value("\"1s\""), "for `linear`: what each attempt adds"),
    live("route.retry.first", SomeTime, Value("\"200ms\""), "for `exponential`: the first wait"),
    live("route.retry.factor", Decimal, Value("2.0"), "for `exponential`: what the next wait is multiplied by"),
    live("route.retry.max", SomeTime, Value("\"5m\""), "for `linear` and `exponential`: the longest wait"),
    live(
        "route.http.secret",
        Secrets,
        Words("none: `unsigned` must say so"),
        "what requests are signed with: `whsec_…` or `whsk_…`, or several during a rotation",
    ),
    live("route.http.unsigned", Boolean, Value("false"), "send without a signature"),
    live(
        "route.http.mode",
        Word(&["binary", "structured"]),
        Value("\"binary\""),
        "attributes in `ce-` headers, or the body is the whole event",
    ),
    live("route.http.source", Text, Value("\"postrider\""), "the attribute `source` of every event: who speaks"),
    live(
        "route.http.concurrency",
        Number(1, 64),
        Value("4"),
        "requests at the same time, over all lanes of the process",
    ),
    live("route.http.timeout", SomeTime, Value("\"15s\""), "how long a request may take; 100ms to 5m"),
    live(
        "route.http.payload_max",
        Size("1B", "16MiB"),
        Value("\"64KiB\""),
        "the largest payload that is sent; a larger one is rejected",
    ),
    live(
        "route.http.headers",
        SecretTable,
        Words("none"),
        "added to every request: names and values, or where a value is",
    ),
    live("route.http.allow", Texts, Words("none"), "networks that may be connected to although they are not public"),
    live(
        "route.http.allow_private",
        Boolean,
        Value("false"),
        "the same for all loopback, private and carrier-grade NAT addresses",
    ),
    live("route.http.allow_http", Boolean, Value("false"), "plain `http`, on port 80"),
    live("route.http.ports", Numbers(1, 65_535), Words("none"), "ports beside 443"),
    live("route.http.ca_file", Text, Words("none"), "PEM certificates to trust beside those of the platform"),
    live("route.nats.prefix", Text, Words("none"), "what every subject begins with, before a dot and the topic"),
    live("route.nats.source", Text, Value("\"postrider\""), "the attribute `source` of every event: who speaks"),
    live(
        "route.nats.timeout",
        SomeTime,
        Value("\"10s\""),
        "how long an acknowledgement may take; shorter than `publish_timeout`",
    ),
    live(
        "route.nats.declare",
        Text,
        Words("nothing is made"),
        "the stream to make, if there is none of that name, for everything below the prefix",
    ),
    live("route.nats.replicas", Number(1, 5), Value("1"), "replicas of a stream that is made: 1, 3 or 5"),
    live("route.nats.tls", Boolean, Value("false"), "refuse a connection without TLS"),
    live("route.nats.ca_file", Text, Words("none"), "PEM certificates to trust beside those of the platform"),
    live("route.nats.certificate_file", Text, Words("none"), "the PEM certificate that is shown to the server"),
    live("route.nats.key_file", Text, Words("none"), "the key of that certificate"),
    live("route.nats.user", Text, Words("no login"), "who logs in, with `password`"),
    live("route.nats.password", Secret, Words("no login"), "the password of `user`"),
    live("route.nats.token", Secret, Words("no login"), "a token to log in with instead"),
    live(
        "route.nats.credentials",
        Secret,
        Words("no login"),
        "the text of a `.creds` file to log in with instead, such as `{ file = \"relay.creds\" }`",
    ),
    live(
        "route.rabbitmq.exchange",
        Text,
        Words("the default exchange, whose routing keys are names of queues"),
        "the exchange that messages go to",
    ),
    live("route.rabbitmq.routing_key", Text, Words("the topic"), "the routing key of every message"),
    live("route.rabbitmq.source", Text, Value("\"postrider\""), "the attribute `source` of every event: who speaks"),
    live(
        "route.rabbitmq.timeout",
        SomeTime,
        Value("\"10s\""),
        "how long a confirm may take; shorter than `publish_timeout`",
    ),
    live(
        "route.rabbitmq.payload_max",
        Size("1B", "128MiB"),
        Value("\"16MiB\""),
        "the largest payload that is sent; a larger one is rejected",
    ),
    live(
        "route.rabbitmq.declare",
        Text,
        Words("nothing is made"),
        "the queue to make, with the exchange and a binding between them, as far as they are missing",
    ),
    live(
        "route.rabbitmq.queue_type",
        Word(&["quorum", "classic"]),
        Value("\"quorum\""),
        "of a queue that is made: replicated, or on one server",
    ),
    live("route.rabbitmq.ca_file", Text, Words("none"), "PEM certificates to trust beside those of the platform"),
    live("route.rabbitmq.certificate_file", Text, Words("none"), "the PEM certificate that is shown to the server"),
    live("route.rabbitmq.key_file", Text, Words("none"), "the key of that certificate"),
    live("route.rabbitmq.user", Text, Words("`guest`, which works on the server's own machine"), "who logs in"),
    live("route.rabbitmq.password", Secret, Words("that of `guest`"), "the password of `user`"),
    live("route.redis.stream", Text, Words("the message's topic, behind `prefix`"), "one stream for everything"),
    live("route.redis.prefix", Text, Words("none"), "what the name of every stream begins with, before the topic"),
    live("route.redis.source", Text, Value("\"postrider\""), "the attribute `source` of every event: who speaks"),
    live(
        "route.redis.timeout",
        SomeTime,
        Value("\"10s\""),
        "how long an answer may take; shorter than `publish_timeout`",
    ),
    live(
        "route.redis.payload_max",
        Size("1B", "256MiB"),
        Value("\"8MiB\""),
        "the largest payload that is sent; a larger one is rejected",
    ),
    live("route.redis.declare", Boolean, Value("false"), "let the first message make its stream if there is none"),
    live("route.redis.replicas", Number(0, 100), Value("0"), "replicas that must have a message before it is durable"),
    live("route.redis.ca_file", Text, Words("none"), "PEM certificates to trust instead of those of the platform"),
    live("route.redis.certificate_file", Text, Words("none"), "the PEM certificate that is shown to the server"),
    live("route.redis.key_file", Text, Words("none"), "the key of that certificate"),
    live("route.redis.user", Text, Words("the default user"), "who logs in"),
    live("route.redis.password", Secret, Words("no login"), "the password to log in with"),
    live("route.kafka.topic", Text, Words("the message's topic, behind `prefix`"), "one Kafka topic for everything"),
    live("route.kafka.prefix", Text, Words("none"), "what the name of every Kafka topic begins with, before the topic"),
    live("route.kafka.source", Text, Value("\"postrider\""), "the attribute `source` of every event: who speaks"),
    live(
        "route.kafka.timeout",
        SomeTime,
        Value("\"10s\""),
        "how long an acknowledgement may take; 10ms to 5m, at most half of `publish_timeout`",
    ),
    live("route.kafka.linger", Duration, Value("\"1ms\""), "how long the client waits for more before it sends"),
    live(
        "route.kafka.message_max",
        Size("1KiB", "64MiB"),
        Value("\"976KiB\""),
        "the largest message that is sent, with headers and key; a larger one is rejected",
    ),
    live(
        "route.kafka.compression",
        Word(&["none", "gzip", "snappy", "lz4", "zstd"]),
        Value("\"none\""),
        "how what is sent is compressed",
    ),
    live(
        "route.kafka.partitions",
        Number(1, 10_000),
        Words("no topic is made"),
        "make a topic that is not there, with so many partitions",
    ),
    live(
        "route.kafka.replicas",
        Number(1, 100),
        Words("as many as the brokers say"),
        "replicas of a topic that is made",
    ),
    live(
        "route.kafka.transactional_id",
        Text,
        Words("no transactions"),
        "send each batch in a transaction under this id, which no other process may have",
    ),
    live("route.kafka.tls", Boolean, Value("false"), "speak TLS with the brokers"),
    live("route.kafka.ca_file", Text, Words("none"), "PEM certificates to trust instead of those of the platform"),
    live("route.kafka.certificate_file", Text, Words("none"), "the PEM certificate that is shown to the brokers"),
    live("route.kafka.key_file", Text, Words("none"), "the key of that certificate"),
    live(
        "route.kafka.mechanism",
        Word(&["plain", "scram-sha-256", "scram-sha-512"]),
        Value("\"plain\""),
        "how `user` and `password` are shown to the brokers",
    ),
    live("route.kafka.user", Text, Words("no login"), "who logs in, with `password`"),
    live("route.kafka.password", Secret, Words("no login"), "the password of `user`"),
    live(
        "route.kafka.properties",
        SecretTable,
        Words("none"),
        "properties of librdkafka that have no key here: names and values, or where a value is",
    ),
    live(
        "route.destination.map",
        TextTable,
        Words("none"),
        "under which topic messages of a type are published: type names, and a topic for each",
    ),
    live(
        "route.destination.naming",
        Word(&["type-name", "kebab", "snake"]),
        Value("\"type-name\""),
        "how a topic is made of a type name where a message was enqueued under just that",
    ),
    live(
        "route.destination.fallback",
        Text,
        Words("the naming convention"),
        "one topic for everything that is not mapped and was enqueued under no topic of its own",
    ),
    live(
        "route.destination.prefix",
        Text,
        Words("none"),
        "what topics begin with that come from the convention or the fallback",
    ),
];

/// The key of this path, and its place in the table.
pub(crate) fn find(path: &str) -> Option<(usize, &'static Key)> {
    KEYS.iter().enumerate().find(|(_, key)| key.path == path)
}

impl Key {
    /// Everything before the last dot.
    pub(crate) fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// What stands in the file.
    pub(crate) fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The default as a value of the file.
    pub(crate) fn value(&self) -> Option<&'static str> {
        match self.fallback {
            Value(text) => Some(text),
            Required | Words(_) => None,
        }
    }
}
