//! Logging in by name and password, and what becomes of messages where the login is wrong or has no right.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use postrider_core::{
    ErrorKind,
    envelope::Envelope,
    transport::{Outcome, Publisher, Subscriber},
};
use postrider_testkit::{patience::in_time, transport::record};
use postrider_transport_rabbitmq::{Access, RabbitmqPublisher, RabbitmqSubscriber};

use support::{Own, control_shared, url};

async fn publish(access: &Access, own: &Own) -> String {
    let publisher = RabbitmqPublisher::builder(access.clone()).exchange(&own.name).build().unwrap();
    let outcome = publisher.publish(vec![record(&Envelope::new("orders", "n", "x"))]).await.remove(0);
    assert!(!format!("{outcome:?}").contains("canary"), "{outcome:?}");
    match &outcome {
        Outcome::Unavailable(cause) => format!("unavailable {}", cause.code()),
        other => other.name().to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_known_publishes_and_receives_where_it_may() {
    let (own, other) = (Own::new().await, Own::new().await);
    let user = format!("u{}", uuid::Uuid::now_v7().simple());
    control_shared(&["add_user", &user, "canary"]);
    let known = Access::new(&url()).unwrap().password(&user, "canary");
    assert_eq!(publish(&known, &own).await, "unavailable denied", "it may not yet enter the virtual host");
    let ours = format!("^{}$", own.name);
    control_shared(&["set_permissions", "--vhost", "/", &user, "^$", &ours, &ours]);
    assert_eq!(publish(&known, &own).await, "durable");
    assert_eq!(publish(&known, &other).await, "unavailable denied", "it may not write to that exchange");
    let wrong = Access::new(&url()).unwrap().password(&user, "canary but wrong");
    assert_eq!(publish(&wrong, &own).await, "unavailable denied");

    let subscriber = RabbitmqSubscriber::builder(known.clone(), &own.name).subscribe().await.unwrap();
    assert_eq!(&in_time(subscriber.receive(1)).await.unwrap()[0].envelope.payload[..], b"x");
    let refused = RabbitmqSubscriber::builder(known, &other.name).subscribe().await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{}", refused.chain());
    let refused = RabbitmqSubscriber::builder(wrong, &own.name).subscribe().await.err().unwrap();
    assert!(refused.chain().contains("denied") && !refused.chain().contains("canary"), "{}", refused.chain());
}
