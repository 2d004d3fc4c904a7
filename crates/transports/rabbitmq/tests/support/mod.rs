//! The server to test with, and an exchange and a queue of one's own on it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails here has found something; not every test uses all"
)]

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use lapin::{
    Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};
use postrider_core::cloudevents::Received;
use postrider_testkit::{
    fault::{Server, free_port},
    service,
};
use postrider_transport_rabbitmq::read;
use tokio::sync::Mutex;

const VARIABLE: &str = "POSTRIDER_TEST_RABBITMQ";

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

/// What the proxy connects to.
pub(crate) fn address() -> String {
    url().trim_start_matches("amqp://").to_owned()
}

/// A script of the workshop: how a server of one's own is started, with a port, another one for its tools, and a directory; or
/// how it is told something, with its port, its directory, and what.
fn script(name: &str) -> PathBuf {
    let dir = service::noted(&format!("{VARIABLE}_DIR"));
    let dir =
        dir.expect("a server of one's own needs the one of the workshop: start it with `cargo xtask services up`");
    Path::new(&dir).join(name)
}

/// A server of one's own in a directory. What stands there in `rabbitmq.conf` holds.
pub(crate) fn server_in(folder: &Path) -> Server {
    let folder = folder.display().to_string();
    Server::start(&script("program"), |port| vec![port.to_string(), free_port().to_string(), folder])
}

/// Tells a server of one's own something, by `rabbitmqctl`.
pub(crate) fn control(server: &Server, folder: &Path, what: &[&str]) {
    tell(server.address().port(), folder, what);
}

/// The same for the server that all tests use: only what concerns nobody else.
pub(crate) fn control_shared(what: &[&str]) {
    let script = script("control");
    let address: SocketAddr = address().parse().unwrap();
    tell(address.port(), script.parent().unwrap(), what);
}

fn tell(port: u16, folder: &Path, what: &[&str]) {
    let mut command = Command::new(script("control"));
    command.arg(port.to_string()).arg(folder).args(what);
    let told = command.output().unwrap();
    assert!(told.status.success(), "{what:?}: {}", String::from_utf8_lossy(&told.stderr));
}

/// An exchange and a queue of the same name, which takes everything from it.
pub(crate) struct Own {
    pub(crate) name: String,
    url: String,
    /// What was taken out of the queue so far.
    seen: Mutex<Vec<Received>>,
}

impl Own {
    pub(crate) async fn new() -> Self {
        Self::on(&url()).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        Self::taking(url, "#", "quorum", &[]).await
    }

    /// A queue of this kind that takes these routing keys, with these arguments beside.
    pub(crate) async fn taking(url: &str, keys: &str, kind: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        let own =
            Self { name: format!("t{}", uuid::Uuid::now_v7().simple()), url: url.to_owned(), seen: Mutex::default() };
        let (_connection, channel) = own.channel().await;
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let (durable, name) = (ExchangeDeclareOptions { durable: true, ..Default::default() }, own.name.as_str());
        channel.exchange_declare(name.into(), ExchangeKind::Topic, durable, FieldTable::default()).await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.into(), durable, table).await.unwrap();
        own.bind(keys).await;
        own
    }

    /// From now on the queue takes these routing keys as well.
    pub(crate) async fn bind(&self, keys: &str) {
        let ((_connection, channel), name) = (self.channel().await, self.name.as_str());
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(name.into(), name.into(), keys.into(), options, none).await.unwrap();
    }

    /// From now on it does not.
    pub(crate) async fn unbind(&self, keys: &str) {
        let ((_connection, channel), name) = (self.channel().await, self.name.as_str());
        channel.queue_unbind(name.into(), name.into(), keys.into(), FieldTable::default()).await.unwrap();
    }

    pub(crate) async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    /// Everything that has come into the queue, in its order.
    pub(crate) async fn events(&self) -> Vec<Received> {
        let mut seen = self.seen.lock().await;
        let (_connection, channel) = self.channel().await;
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = channel.basic_get(self.name.as_str().into(), options).await.unwrap() {
            let delivery = message.delivery;
            seen.push(read(&delivery.properties, delivery.data.into()).unwrap());
        }
        seen.clone()
    }
}
