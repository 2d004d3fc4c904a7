//! The server to test with, and topics of one's own on it.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test that fails here has found something; not every test uses all"
)]

pub(crate) mod rights;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use postrider_core::cloudevents::Received;
use postrider_testkit::{
    fault::{Proxy, Server, Traffic, free_port},
    service,
};
use postrider_transport_kafka::{Access, KafkaSubscriber, SubscriberBuilder, read};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, Consumer},
    error::RDKafkaErrorCode,
    message::OwnedMessage,
};

const VARIABLE: &str = "POSTRIDER_TEST_KAFKA";

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The server: the one that the environment names, or the one that the workshop has started.
pub(crate) fn url() -> String {
    service::url(VARIABLE)
}

/// The program, for a server of one's own.
pub(crate) fn program() -> PathBuf {
    service::program(VARIABLE, "kafka-server")
}

/// The server through a slow network. A broker tells its clients where it is, so it must know of the proxy: the workshop's
/// server has a listener that it announces at another port, where the proxy of this process is.
pub(crate) fn slow_url() -> String {
    static ANNOUNCED: OnceLock<String> = OnceLock::new();
    let announced = ANNOUNCED.get_or_init(|| {
        let text = fs::read_to_string(directory().join("proxied")).unwrap();
        let (listener, announced) = text.trim().split_once(' ').unwrap();
        let (listener, port) = (listener.to_owned(), announced.rsplit_once(':').unwrap().1.parse().unwrap());
        let (ready, begun) = mpsc::channel();
        // On a thread of its own, because the runtime of a test ends with the test.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let proxy = Proxy::at(port, &listener).await;
                proxy.set(Traffic::Delayed(Duration::from_millis(1)));
                ready.send(()).unwrap();
                std::future::pending::<()>().await;
            });
        });
        begun.recv().expect("the proxy begins");
        announced.to_owned()
    });
    format!("kafka://{announced}")
}

fn directory() -> PathBuf {
    service::url(&format!("{VARIABLE}_DIR")).into()
}

/// A server of one's own on this folder. What `settings` makes of its port and that of its controller goes before the others.
pub(crate) fn start(folder: &Path, settings: impl FnOnce(u16, u16) -> String) -> Server {
    let controller = free_port();
    Server::start(&program(), |port| {
        fs::write(folder.join("extra.properties"), settings(port, controller)).unwrap();
        vec![folder.display().to_string(), port.to_string(), controller.to_string()]
    })
}

pub(crate) fn access() -> Access {
    Access::new(&url()).unwrap()
}

/// Waits until a server serves, which it does not yet when it listens.
pub(crate) async fn serves(url: &str) {
    let config = config(url);
    let waiting = tokio::task::spawn_blocking(move || {
        let (consumer, begun): (BaseConsumer, _) = (config.create().unwrap(), Instant::now());
        while consumer.fetch_metadata(None, PATIENCE).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the server does not serve");
            thread::sleep(Duration::from_millis(20));
        }
    });
    waiting.await.unwrap();
}

/// Subscribes; what takes too long on a slow machine is tried again.
pub(crate) async fn subscribed(builder: SubscriberBuilder) -> KafkaSubscriber {
    let begun = Instant::now();
    loop {
        match builder.clone().subscribe().await {
            Ok(subscriber) => return subscriber,
            Err(error) => assert!(error.is_transient() && begun.elapsed() < PATIENCE, "{}", error.chain()),
        }
    }
}

/// Waits until whoever has these settings is told this of a topic, or that nothing is wrong with it.
pub(crate) async fn told(settings: ClientConfig, topic: &str, expected: Option<RDKafkaErrorCode>) {
    let topic = topic.to_owned();
    let waiting = tokio::task::spawn_blocking(move || {
        let (consumer, begun): (BaseConsumer, _) = (settings.create().unwrap(), Instant::now());
        loop {
            let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE);
            let said = metadata.ok().map(|metadata| metadata.topics()[0].error().map(RDKafkaErrorCode::from));
            if said == Some(expected) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "of {topic} it is told {said:?}, not {expected:?}");
            thread::sleep(Duration::from_millis(20));
        }
    });
    waiting.await.unwrap();
}

/// How many members a group has.
pub(crate) async fn members(url: &str, group: &str) -> usize {
    let (config, group) = (config(url), group.to_owned());
    let count = move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let list = consumer.fetch_group_list(Some(&group), PATIENCE).unwrap();
        list.groups().iter().map(|group| group.members().len()).sum()
    };
    tokio::task::spawn_blocking(count).await.unwrap()
}

/// A topic of one's own, with three partitions.
pub(crate) struct Own {
    pub(crate) topic: String,
    pub(crate) url: String,
}

impl Own {
    pub(crate) async fn new() -> Self {
        Self::with(&url(), &[]).await
    }

    pub(crate) async fn on(url: &str) -> Self {
        Self::with(url, &[]).await
    }

    pub(crate) async fn with(url: &str, settings: &[(&str, &str)]) -> Self {
        let own = Self { topic: fresh_name(), url: url.to_owned() };
        own.create_with(settings).await;
        own
    }

    /// One with this name.
    pub(crate) async fn named(url: &str, topic: &str) -> Self {
        let own = Self { topic: topic.to_owned(), url: url.to_owned() };
        own.create().await;
        own
    }

    /// Makes the topic once more after it was deleted.
    pub(crate) async fn create(&self) {
        self.create_with(&[]).await;
    }

    async fn create_with(&self, settings: &[(&str, &str)]) {
        let admin: AdminClient<DefaultClientContext> = config(&self.url).create().unwrap();
        let mut topic = NewTopic::new(&self.topic, 3, TopicReplication::Fixed(1));
        for (name, value) in settings {
            topic = topic.set(name, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        admin.create_topics([&topic], &options).await.unwrap().remove(0).unwrap();
        // Whoever asks a broker that has not heard of it yet is told that there is none.
        let (consumer, name): (BaseConsumer, _) = (config(&self.url).create().unwrap(), self.topic.clone());
        let known = move || {
            let metadata = consumer.fetch_metadata(Some(&name), PATIENCE).unwrap();
            let partitions = metadata.topics()[0].partitions();
            partitions.len() == 3 && partitions.iter().all(|partition| partition.leader() >= 0)
        };
        let waiting = tokio::task::spawn_blocking(move || {
            let deadline = Instant::now() + PATIENCE;
            while !known() {
                assert!(Instant::now() < deadline, "the topic is not known to its broker");
                thread::sleep(Duration::from_millis(20));
            }
        });
        waiting.await.unwrap();
    }

    pub(crate) async fn delete(&self) {
        let admin: AdminClient<DefaultClientContext> = config(&self.url).create().unwrap();
        let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
        admin.delete_topics(&[&self.topic], &options).await.unwrap().remove(0).unwrap();
    }

    /// Everything in the topic, partition by partition.
    pub(crate) async fn events(&self) -> Vec<Received> {
        self.messages().await.iter().map(|message| read(message).unwrap()).collect()
    }

    pub(crate) async fn messages(&self) -> Vec<OwnedMessage> {
        messages(&self.url, &self.topic).await
    }
}

/// Everything in a topic that a reader of what is committed sees, partition by partition.
pub(crate) async fn messages(url: &str, topic: &str) -> Vec<OwnedMessage> {
    let (config, topic) = (config(url), topic.to_owned());
    let read = move || {
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(Some(&topic), PATIENCE).unwrap();
        let mut messages = Vec::new();
        for partition in 0..i32::try_from(metadata.topics()[0].partitions().len()).unwrap() {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(&topic, partition, Offset::Beginning).unwrap();
            consumer.assign(&list).unwrap();
            let begun = Instant::now();
            // Until the client tells of the end, because the last offsets may hold no message.
            loop {
                assert!(begun.elapsed() < PATIENCE, "{topic}/{partition} cannot be read to its end");
                match consumer.poll(Duration::from_millis(100)) {
                    Some(Ok(message)) => messages.push(message.detach()),
                    Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => break,
                    _ => {}
                }
            }
        }
        messages
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

pub(crate) fn config(url: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", url.trim_start_matches("kafka://"))
        .set("group.id", "reads-without-a-group")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("allow.auto.create.topics", "false");
    config
}

/// A name that nobody else has.
pub(crate) fn fresh_name() -> String {
    format!("t{}", uuid::Uuid::now_v7().simple())
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
