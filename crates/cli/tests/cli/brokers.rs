//! Each broker, the whole way through the binary: enqueued by the command line, published by the daemon as the file says, and
//! read with the broker's bare client. The names on the wire and the logins are written out, so that nothing of ours has to be
//! right for this to fail.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

use lapin::{
    Connection, ConnectionProperties,
    options::{BasicGetOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};
use postrider::MessageId;
use postrider_testkit::{fault::Server, service};
use tokio::runtime::Runtime;

use crate::support::{Daemon, Workplace, wait_until};

const PAYLOAD: &str = r#"{"customer":"ada","cents":990}"#;

/// A store with one message. Its id.
fn enqueued(workplace: &Workplace) -> String {
    drop(workplace.migrated());
    let message = ["--topic", "order.placed", "--name", "order.placed.v1", "--key", "ada", "--header", "tenant=7"];
    let enqueued =
        workplace.run(&[&["enqueue", "--store", "sqlite:app.db"][..], &message, &["--payload", PAYLOAD]].concat());
    assert_eq!(enqueued.code, 0, "{enqueued:?}");
    enqueued.stdout.trim().to_owned()
}

/// A route to this place. What stands in `settings` is the table of its transport. Leases are short, so that the daemon that
/// comes after one that was killed need not wait.
fn config(url: &str, transport: &str, settings: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nlease_life = \"1s\"\nheartbeat_every = \"200ms\"\n\
         [[route]]\nname = \"events\"\ntransport = \"{url}\"\n\
         [route.{transport}]\nsource = \"shop\"\n{settings}"
    )
}

/// A file that only we can read.
fn keep(workplace: &Workplace, name: &str, secret: &str) {
    workplace.write(name, secret);
    fs::set_permissions(workplace.path(name), fs::Permissions::from_mode(0o600)).unwrap();
}

/// Waits until it is told why the message does not go through, and ends the daemon.
fn waits(workplace: &Workplace, id: &str, daemon: Daemon, cause: &str) {
    let told = format!("({cause}: ");
    wait_until("the route waits", || {
        workplace.run(&["why", "--store", "sqlite:app.db", id, "--json"]).stdout.contains(&told)
    });
    daemon.kill();
}

/// Everything that is not different each time stands in the attributes, each behind the prefix of its broker.
fn assert_event(found: &BTreeMap<String, String>, prefix: &str, id: &str) {
    let expected = [
        ("specversion", "1.0"),
        ("id", id),
        ("source", "shop"),
        ("type", "order.placed.v1"),
        ("subject", "ada"),
        ("partitionkey", "ada"),
        ("topic", "order.placed"),
        ("tenant", "7"),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(&format!("{prefix}{name}")).map(String::as_str), Some(value), "{name} of {found:?}");
    }
}

#[test]
fn to_nats_with_a_password_from_a_file() {
    let (workplace, runtime) = (Workplace::new(), Runtime::new().unwrap());
    let id = enqueued(&workplace);
    let data = workplace.path("data").display().to_string();
    workplace.write(
        "server.conf",
        format!(
            "authorization {{ users: [ {{ user: \"relay\", password: \"canary\" }} ] }}\n\
             jetstream {{ store_dir: \"{data}\" }}\n"
        ),
    );
    let file = workplace.path("server.conf").display().to_string();
    let server = Server::start(&service::program("POSTRIDER_TEST_NATS", "nats-server"), |port| {
        ["-a", "127.0.0.1", "-p", &port.to_string(), "-c", &file].map(str::to_owned).to_vec()
    });
    keep(&workplace, "password", "canary\n");
    let url = format!("nats://{}", server.address());
    let said = "prefix = \"shop\"\ndeclare = \"SHOP\"\nuser = \"relay\"\npassword = { file = \"password\" }\n";
    // The server speaks no TLS: a password is not shown to it, nor anything else, to somebody who has asked for TLS.
    waits(&workplace, &id, workplace.daemon("tls", &config(&url, "nats", &format!("{said}tls = true\n"))), "tls");
    let _daemon = workplace.daemon("nats", &config(&url, "nats", said));
    let mut found = None;
    let client = async_nats::ConnectOptions::with_user_and_password("relay".to_owned(), "canary".to_owned());
    let jetstream = runtime.block_on(async { async_nats::jetstream::new(client.connect(&url).await.unwrap()) });
    wait_until("it has arrived", || {
        found = runtime.block_on(async { jetstream.get_stream("SHOP").await.ok()?.get_raw_message(1).await.ok() });
        found.is_some()
    });
    let message = found.unwrap();
    assert_eq!((message.subject.as_str(), &message.payload[..]), ("shop.order.placed", PAYLOAD.as_bytes()));
    let headers = message.headers.iter().map(|(name, values)| (name.to_string(), values[0].as_str().to_owned()));
    let headers: BTreeMap<String, String> = headers.collect();
    assert_event(&headers, "ce-", &id);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["Nats-Msg-Id"], format!("{id}/shop.order.placed"));
}

#[test]
fn to_rabbitmq_with_a_password_from_a_file() {
    let (workplace, runtime) = (Workplace::new(), Runtime::new().unwrap());
    let id = enqueued(&workplace);
    let (url, name) = (service::url("POSTRIDER_TEST_RABBITMQ"), format!("t{}", MessageId::generate()));
    let said = format!(
        "exchange = \"{name}\"\ndeclare = \"{name}\"\nuser = \"guest\"\npassword = {{ file = \"password\" }}\n"
    );
    let config = config(&url, "rabbitmq", &said);
    keep(&workplace, "password", "wrong");
    waits(&workplace, &id, workplace.daemon("wrong", &config), "denied");
    keep(&workplace, "password", "guest");
    let _daemon = workplace.daemon("rabbitmq", &config);
    // A question that is answered with "no" ends its channel, and sometimes more: each has a connection of its own.
    let connected = async || {
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    };
    let mut found = None;
    wait_until("it has arrived", || {
        found = runtime.block_on(async {
            let (_connection, channel) = connected().await;
            channel.basic_get(name.as_str().into(), BasicGetOptions { no_ack: true }).await.ok().flatten()
        });
        found.is_some()
    });
    let delivery = found.unwrap().delivery;
    assert_eq!((delivery.routing_key.as_str(), &delivery.data[..]), ("order.placed", PAYLOAD.as_bytes()));
    let properties = &delivery.properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    assert_eq!(properties.message_id().as_ref().map(ShortString::as_str), Some(id.as_str()));
    assert_eq!(properties.content_type().as_ref().map(ShortString::as_str), Some("application/json"));
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => format!("{other:?}"),
    };
    let headers = properties.headers().iter().flatten().map(|(name, value)| (name.to_string(), text(value)));
    assert_event(&headers.collect(), "cloudEvents:", &id);
    // Nobody has said which kind of queue; the server refuses whoever asks for another.
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    quorum.insert("x-delivery-limit".into(), AMQPValue::LongInt(i32::MAX));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    runtime.block_on(async {
        let (_connection, channel) = connected().await;
        channel.queue_declare(name.as_str().into(), durable, quorum).await.unwrap();
    });
}

#[test]
fn to_redis_with_a_password_from_the_environment() {
    let (workplace, runtime) = (Workplace::new(), Runtime::new().unwrap());
    let id = enqueued(&workplace);
    let (url, prefix) = (service::url("POSTRIDER_TEST_REDIS"), format!("t{}:", MessageId::generate()));
    let (user, stream) = (prefix.trim_end_matches(':').to_owned(), format!("{prefix}order.placed"));
    let connection = redis::Client::open(url.as_str()).unwrap();
    let mut connection = runtime.block_on(connection.get_multiplexed_async_connection()).unwrap();
    let mut rules = redis::cmd("ACL");
    rules.arg("SETUSER").arg(&user).arg(&["on", ">canary", "~*", "+@all"]);
    runtime.block_on(rules.exec_async(&mut connection)).unwrap();
    let said =
        format!("prefix = \"{prefix}\"\ndeclare = true\nuser = \"{user}\"\npassword = {{ env = \"OUR_SECRET\" }}\n");
    workplace.write("redis.toml", config(&url, "redis", &said));
    let start = |secret: &str| {
        let mut command = workplace.command(&["run", "--config", "redis.toml"]);
        Daemon::around(command.env("OUR_SECRET", secret).spawn().unwrap())
    };
    waits(&workplace, &id, start("wrong"), "denied");
    let _daemon = start("canary");
    let mut found: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    wait_until("it has arrived", || {
        let mut range = redis::cmd("XRANGE");
        found = runtime.block_on(range.arg(&stream).arg("-").arg("+").query_async(&mut connection)).unwrap();
        !found.is_empty()
    });
    let fields = &found[0].1;
    assert_event(fields, "ce_", &id);
    assert_eq!((fields["ce_datacontenttype"].as_str(), fields["data"].as_str()), ("application/json", PAYLOAD));
    for command in [redis::cmd("ACL").arg("DELUSER").arg(&user), redis::cmd("DEL").arg(&stream)] {
        runtime.block_on(command.exec_async(&mut connection)).unwrap();
    }
}

#[cfg(feature = "kafka")]
#[test]
fn to_kafka() {
    use std::time::Duration;

    use rdkafka::{
        ClientConfig, Offset, TopicPartitionList,
        consumer::{BaseConsumer, Consumer},
        message::{Headers, Message},
    };

    let workplace = Workplace::new();
    let id = enqueued(&workplace);
    let (url, prefix) = (service::url("POSTRIDER_TEST_KAFKA"), format!("t{}.", MessageId::generate()));
    let topic = format!("{prefix}order.placed");
    let said = format!("prefix = \"{prefix}\"\npartitions = 1\n");
    let _daemon = workplace.daemon("kafka", &config(&url, "kafka", &said));
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", url.trim_start_matches("kafka://")).set("group.id", "reads-without-a-group");
    client.set("enable.auto.commit", "false").set("allow.auto.create.topics", "false");
    let consumer: BaseConsumer = client.create().unwrap();
    wait_until("the topic is made", || {
        let metadata = consumer.fetch_metadata(Some(&topic), Duration::from_secs(10));
        metadata.is_ok_and(|metadata| metadata.topics()[0].partitions().iter().any(|it| it.leader() >= 0))
    });
    let mut begin = TopicPartitionList::new();
    begin.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
    consumer.assign(&begin).unwrap();
    let mut found = None;
    wait_until("it has arrived", || {
        found = consumer.poll(Duration::from_millis(100)).and_then(Result::ok).map(|message| message.detach());
        found.is_some()
    });
    let message = found.unwrap();
    assert_eq!((message.key(), message.payload()), (Some(&b"ada"[..]), Some(PAYLOAD.as_bytes())));
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    let headers = message.headers().unwrap().iter().map(|header| (header.key.to_owned(), text(header.value)));
    let headers: BTreeMap<String, String> = headers.collect();
    assert_event(&headers, "ce_", &id);
    assert_eq!(headers["content-type"], "application/json");
}
