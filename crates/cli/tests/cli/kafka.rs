//! Kafka from the binary: what `[route.kafka]` and `[route.destination]` say is what a consumer group gets.

use std::time::Duration;

use postrider::{
    MessageId,
    core::transport::Subscriber,
    kafka::{Access, KafkaSubscriber},
};
use postrider_testkit::service;

use crate::support::{Workplace, wait_until};

#[test]
fn the_daemon_publishes_what_was_committed() {
    let (url, prefix) = (service::url("POSTRIDER_TEST_KAFKA"), format!("t{}.", MessageId::generate()));
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(60, 5);
    let config = format!(
        "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"events\"\ntransport = \"{url}\"\n\
         [route.destination]\nmap = {{ \"order.placed\" = \"everything\" }}\n\
         [route.kafka]\nprefix = \"{prefix}\"\nsource = \"shop\"\npartitions = 3\ncompression = \"lz4\"\n\
         properties = {{ \"client.rack\" = \"r1\" }}\n"
    );
    let _daemon = workplace.daemon("kafka", &config);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (access, topic) = (Access::new(&url).unwrap(), format!("{prefix}everything"));
    let mut joined = None;
    wait_until("the topic is made", || {
        let builder = KafkaSubscriber::builder(access.clone(), &topic, [&topic]);
        joined = runtime.block_on(builder.subscribe()).ok();
        joined.is_some()
    });
    let subscriber = joined.unwrap();
    let mut arrived: Vec<MessageId> = Vec::new();
    wait_until("everything has arrived", || {
        let received = async { tokio::time::timeout(Duration::from_secs(1), subscriber.receive(60)).await };
        if let Ok(received) = runtime.block_on(received) {
            arrived.extend(received.unwrap().iter().map(|delivery| delivery.envelope.id));
        }
        producer.all_arrived(&arrived)
    });
    let verdict = producer.verdict(&arrived);
    assert_eq!((verdict.lost, verdict.ghosts, verdict.out_of_order), (0, 0, 0));
}
