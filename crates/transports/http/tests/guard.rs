//! The guard on the wire: what the resolver answers is filtered, and exactly that is connected to.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    io,
    net::{IpAddr, TcpListener as Trap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use postrider_core::{
    BoxFuture,
    envelope::Envelope,
    transport::{Outcome, Publisher},
};
use postrider_testkit::transport::record;
use postrider_transport_http::{Guard, HttpPublisher, Resolve};
use tokio::net::TcpListener;

use support::{Receiver, secret, status};

/// Answers differently each time, as a hostile name server does. The last answer stays.
struct Rebinding {
    answers: Mutex<Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Rebinding {
    fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        Arc::new(Self { answers: Mutex::new(answers.iter().map(parse).collect()), asked: AtomicUsize::new(0) })
    }
}

impl Resolve for Rebinding {
    fn resolve<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        assert_eq!(name, "hooks.test");
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut answers = self.answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A good receiver on 127.0.0.2, which stands for a public address, and a trap on the same port of 127.0.0.1.
async fn scene(closes: bool) -> (Receiver, Trap) {
    loop {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Somebody else may have this port on the other address; then another one is taken.
        let Ok(trap) = Trap::bind(("127.0.0.1", port)) else { continue };
        trap.set_nonblocking(true).unwrap();
        let receiver = Receiver::on(listener, move |_| {
            let mut answer = status(204);
            if closes {
                answer.headers = vec![("connection", "close".into())];
            }
            answer
        });
        return (receiver, trap);
    }
}

fn publisher(receiver: &Receiver, resolver: Arc<Rebinding>) -> HttpPublisher {
    let port = receiver.address.port();
    let guard = Guard::default().allow_http(true).allow_port(port).allow("127.0.0.2".parse().unwrap());
    let builder = HttpPublisher::builder(&format!("http://hooks.test:{port}/")).secret(secret()).guard(guard);
    builder.resolver(resolver).build().unwrap()
}

async fn outcome(publisher: &HttpPublisher) -> Outcome {
    publisher.publish(vec![record(&Envelope::new("orders", "order.placed", "{}"))]).await.remove(0)
}

fn is_blocked(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unavailable(cause) if cause.code() == "address-blocked" && cause.is_unsent())
}

/// A connection stays in the listener's queue until it is accepted, so an empty queue means that there never was one.
fn nobody_came(trap: &Trap) -> bool {
    trap.accept().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[tokio::test]
async fn a_name_that_is_rebound_never_leads_inside() {
    let (receiver, trap) = scene(true).await;
    let resolver = Rebinding::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let publisher = publisher(&receiver, Arc::clone(&resolver));
    assert_eq!(outcome(&publisher).await, Outcome::Durable);
    assert_eq!(resolver.asked.load(Ordering::SeqCst), 1, "a connection is resolved once");
    for _ in 0..5 {
        let outcome = outcome(&publisher).await;
        assert!(is_blocked(&outcome), "{outcome:?}");
    }
    assert_eq!(receiver.seen().len(), 1);
    assert!(nobody_came(&trap), "the private address was connected to");
}

#[tokio::test]
async fn of_a_mixed_answer_only_the_allowed_addresses_are_used() {
    let (receiver, trap) = scene(true).await;
    let resolver = Rebinding::new(&[&["127.0.0.1", "127.0.0.2", "10.0.0.1"], &["169.254.169.254", "127.0.0.2"]]);
    let publisher = publisher(&receiver, resolver);
    for _ in 0..3 {
        assert_eq!(outcome(&publisher).await, Outcome::Durable);
    }
    assert_eq!(receiver.seen().len(), 3);
    assert!(nobody_came(&trap), "the private address was connected to");
}

#[tokio::test]
async fn a_connection_that_is_kept_is_not_resolved_again() {
    let (receiver, trap) = scene(false).await;
    let resolver = Rebinding::new(&[&["127.0.0.2"], &["127.0.0.1"]]);
    let publisher = publisher(&receiver, Arc::clone(&resolver));
    assert_eq!(outcome(&publisher).await, Outcome::Durable);
    // On a slow machine the kept connection may have grown too old; then the name is asked again, and leads nowhere.
    let second = outcome(&publisher).await;
    assert!(second == Outcome::Durable || is_blocked(&second), "{second:?}");
    assert!(nobody_came(&trap), "the private address was connected to");
}

#[tokio::test]
async fn every_special_address_is_blocked_whatever_name_it_has() {
    let special = [
        "127.0.0.1",
        "10.1.2.3",
        "172.20.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
        "198.51.100.1",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:db8::1",
        "ff02::1",
        "::127.0.0.1",
    ];
    let (receiver, trap) = scene(true).await;
    for address in special {
        let publisher = publisher(&receiver, Rebinding::new(&[&[address]]));
        let outcome = outcome(&publisher).await;
        assert!(is_blocked(&outcome), "{address}: {outcome:?}");
    }
    assert!(nobody_came(&trap) && receiver.seen().is_empty());
}

#[tokio::test]
async fn a_name_without_an_address_is_an_outage() {
    struct Nothing;
    impl Resolve for Nothing {
        fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::ready(Err(io::Error::other("no such name"))))
        }
    }
    struct Silence;
    impl Resolve for Silence {
        fn resolve<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
            Box::pin(std::future::pending())
        }
    }
    let builder =
        HttpPublisher::builder("http://hooks.test/").secret(secret()).guard(Guard::default().allow_http(true));
    let failing = builder.clone().resolver(Arc::new(Nothing)).build().unwrap();
    let silent = builder.clone().resolver(Arc::new(Silence)).timeout(Duration::from_millis(200)).build().unwrap();
    let empty = builder.resolver(Rebinding::new(&[&[]])).build().unwrap();
    for publisher in [failing, silent, empty] {
        let outcome = outcome(&publisher).await;
        assert!(matches!(&outcome, Outcome::Unavailable(cause) if cause.code() == "dns"), "{outcome:?}");
    }
}
