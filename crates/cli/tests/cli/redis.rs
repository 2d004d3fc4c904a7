//! Redis from the binary: what `[route.redis]` says is what a consumer group gets, also from a server that asks for a
//! certificate.

use std::time::Duration;

use postrider::{
    MessageId,
    core::transport::Subscriber,
    redis::{Access, RedisSubscriber},
};
use postrider_testkit::{fault::Server, service};

use crate::support::{Workplace, wait_until};

/// A server that speaks TLS alone and asks for a certificate.
fn start(workplace: &Workplace) -> Server {
    let file = |name: &str| workplace.path(name).display().to_string();
    Server::start(&service::program("POSTRIDER_TEST_REDIS", "redis-server"), |port| {
        let settings = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--bind", "127.0.0.1".to_owned()),
            ("--dir", file("")),
            ("--save", String::new()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("ca.pem")),
            ("--tls-auth-clients", "yes".to_owned()),
        ];
        settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    })
}

#[test]
fn the_daemon_shows_its_certificate_and_publishes_what_was_committed() {
    let workplace = Workplace::new();
    postrider_outage::certificates(&workplace.path(""));
    let server = start(&workplace);
    let url = format!("rediss://{}", server.address());
    let mut producer = workplace.migrated();
    producer.enqueue(60, 5);
    let config = |shown: &str| {
        format!(
            "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"events\"\ntransport = \"{url}\"\n\
             [route.redis]\nstream = \"everything\"\nca_file = \"ca.pem\"\ncertificate_file = \"{shown}.pem\"\n\
             key_file = \"{shown}.key\"\ndeclare = true\n"
        )
    };
    // A certificate that the server does not know is an outage, which ends with the right one.
    let stranger = workplace.daemon("stranger", &config("stranger"));
    wait_until("the route waits", || workplace.status().to_string().contains("unavailable"));
    stranger.kill();
    let _daemon = workplace.daemon("client", &config("client"));
    let access = Access::new(&url).unwrap().ca_file(workplace.path("ca.pem")).unwrap();
    let access = access.client_certificate(workplace.path("client.pem"), workplace.path("client.key")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let subscriber = RedisSubscriber::builder(access, "tests", ["everything"]).declare();
    let subscriber = runtime.block_on(subscriber.subscribe()).unwrap();
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
    // The subscriber ends inside of the runtime.
    runtime.block_on(async { drop(subscriber) });
}
