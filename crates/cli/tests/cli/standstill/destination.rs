//! What stands still because of where it goes: destinations that refuse, hang, throttle, or are not there.

use std::{
    fs,
    io::{Read, Write},
};

use postrider::MessageId;
use postrider_testkit::service;
use tokio::runtime::Runtime;

use super::{
    Scene, Told,
    endpoint::{answering, endpoint, webhook},
    sample, text,
};
use crate::support::wait_until;

/// An outage: no attempt is counted, and the breaker is open.
#[track_caller]
fn assert_unavailable(route: &str, cause: &str) {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay(route);
    let attempts = [("outcome", "unavailable"), ("cause", cause)];
    let told = Told {
        why: ("unavailable", &format!("({cause}: ")),
        standstill: "unavailable",
        samples: &[
            ("postrider_circuit_open", &[("route", "orders")], 1.0),
            ("postrider_delivery_attempts_total", &attempts, 1.0),
        ],
    };
    scene.assert_told(&id, &told);
    assert_eq!(scene.status()["routes"][0]["parked"]["dead"], 0, "an outage gives nothing up");
}

#[test]
fn a_destination_that_refuses_connections() {
    // Nobody listens on the first port.
    assert_unavailable(&webhook("http://127.0.0.1:1/", 1, ""), "connect");
}

#[test]
fn a_name_that_does_not_resolve() {
    assert_unavailable(&webhook("http://nowhere.invalid/", 80, ""), "dns");
}

#[test]
fn a_destination_that_does_not_speak_tls() {
    assert_unavailable(&endpoint("https", "", answering("400 Bad Request")), "tls");
}

#[test]
fn a_file_on_a_full_disk() {
    assert_unavailable("transport = \"file:/dev/full\"", "disk-full");
}

#[test]
fn a_destination_that_does_not_know_who_we_are() {
    assert_unavailable(&endpoint("http", "", answering("401 Unauthorized")), "http-401");
}

#[test]
fn a_destination_that_refuses_a_message() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let slowly = "[route.retry]\nbackoff = \"fixed\"\nwait = \"1h\"\n";
    let _relay = scene.relay(&format!("{}{slowly}", endpoint("http", "", answering("422 Unprocessable Content"))));
    let attempts = [("outcome", "rejected"), ("cause", "http-422")];
    scene.assert_told(
        &id,
        &Told {
            why: ("retrying", "(http-422: "),
            standstill: "retrying",
            samples: &[
                ("postrider_delivery_attempts_total", &attempts, 1.0),
                ("postrider_outbox_retrying", &[("route", "orders")], 1.0),
            ],
        },
    );
}

/// A stream that took messages and is gone is waited for, and the others of the route go on.
#[test]
fn one_destination_of_several_that_takes_nothing() {
    let (scene, runtime) = (Scene::new(), Runtime::new().unwrap());
    let (url, prefix) = (service::url("POSTRIDER_TEST_REDIS"), format!("t{}:", MessageId::generate()));
    let connection = redis::Client::open(url.as_str()).unwrap();
    let mut connection = runtime.block_on(connection.get_multiplexed_async_connection()).unwrap();
    let streams = ["orders.placed", "orders.paid"].map(|topic| format!("{prefix}{topic}"));
    for stream in &streams {
        let mut make = redis::cmd("XGROUP");
        make.arg("CREATE").arg(stream).arg("somebody").arg("$").arg("MKSTREAM");
        runtime.block_on(make.exec_async(&mut connection)).unwrap();
    }
    let first = ["orders.placed", "orders.paid"].map(|topic| scene.enqueue(topic, &[]));
    let _relay = scene.relay(&format!("transport = \"{url}\"\n[route.redis]\nprefix = \"{prefix}\"\n"));
    wait_until("both take messages", || first.iter().all(|id| scene.why(id)[0]["code"] == "passed"));
    let mut drop_it = redis::cmd("DEL");
    runtime.block_on(drop_it.arg(&streams[1]).exec_async(&mut connection)).unwrap();
    let id = scene.enqueue("orders.paid", &[]);
    wait_until("others have gone through", || {
        let other = scene.enqueue("orders.placed", &[]);
        wait_until("it is on record", || scene.why(&other)[0]["code"] == "passed");
        scene.why(&id)[0]["code"] == "destination-unavailable"
    });
    scene.assert_told(
        &id,
        &Told {
            why: ("destination-unavailable", "(no-stream: there is no stream "),
            standstill: "destination-unavailable",
            samples: &[("postrider_outbox_retrying", &[("route", "orders")], 1.0)],
        },
    );
    let status = scene.status();
    let told = status["findings"].to_string();
    assert!(told.contains("1 message waits for its own destination and is tried again (no-stream: "), "{status}");
    assert_eq!(status["routes"][0]["parked"]["dead"], 0, "and nothing is given up");
    runtime.block_on(redis::cmd("DEL").arg(&streams[0]).exec_async(&mut connection)).unwrap();
}

#[test]
fn a_destination_that_hangs() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let hangs = endpoint("http", "", |mut stream| {
        // It takes the request and keeps the connection open for as long as the other side does.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let _relay = scene.relay(&format!("{hangs}timeout = \"1m\"\n"));
    scene.assert_told(
        &id,
        &Told {
            why: ("attempted", "has no answer from the destination yet"),
            standstill: "waits-for",
            samples: &[("postrider_outbox_in_flight", &[("route", "orders")], 1.0)],
        },
    );
}

#[test]
fn a_destination_that_throttles() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    let _relay = scene.relay(&endpoint("http", "", answering("429 Too Many Requests\r\nretry-after: 3600")));
    scene.assert_told(
        &id,
        &Told {
            why: ("throttled", "asked for a pause until 2"),
            standstill: "throttled",
            samples: &[("postrider_delivery_attempts_total", &[("outcome", "throttled")], 1.0)],
        },
    );
    let status = scene.status();
    assert!(text(&status["findings"][0]).contains("asked for a pause until 2"), "{status}");
    let left = &status["nodes"][0]["standstills"][0]["seconds_left"];
    assert!(left.as_u64().is_some_and(|left| (3500..=3600).contains(&left)), "{status}");
    let log = fs::read_to_string(scene.place().path("relay.log")).unwrap();
    assert!(log.contains("the destination asks for a pause") && log.contains("until=2"), "{log}");
}

/// Whether it or its destination is to blame nobody knows until another message comes, which need not wait for it.
#[test]
fn a_message_that_its_destination_fails_on() {
    let scene = Scene::new();
    let bad = scene.enqueue("orders.placed", &["--key", "bad"]);
    let _relay = scene.relay(&endpoint("http", "", |mut stream| {
        let mut request = [0; 16 << 10];
        while let Ok(read @ 1..) = stream.read(&mut request) {
            let bad = String::from_utf8_lossy(&request[..read]).contains("ce-partitionkey: bad");
            let status = if bad { "500 Internal Server Error" } else { "204 No Content" };
            if write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }));
    scene.assert_told(
        &bad,
        &Told {
            why: ("unavailable", "1 message cannot be delivered and nothing else went through meanwhile"),
            standstill: "unavailable",
            samples: &[("postrider_circuit_open", &[("route", "orders")], 1.0)],
        },
    );
    let good = scene.enqueue("orders.placed", &["--key", "good"]);
    wait_until("the other has arrived", || {
        let delivered = sample(&scene.metrics(), "postrider_delivered_total", &[("route", "orders")]);
        delivered == Some(1.0)
    });
    wait_until("it is on record", || scene.why(&good)[0]["code"] != "unavailable");
}

#[test]
fn a_destination_at_an_address_that_is_not_allowed() {
    let scene = Scene::new();
    let id = scene.enqueue("orders.placed", &[]);
    // An address that stands in the URL is refused at the start; what a name leads to is known when it is asked for.
    let _relay = scene.relay(&webhook("http://localhost:1/", 1, "").replace("127.0.0.1/32", "192.0.2.1/32"));
    scene.assert_told(
        &id,
        &Told {
            why: ("unavailable", "(address-blocked: "),
            standstill: "unavailable",
            samples: &[("postrider_circuit_open", &[("route", "orders")], 1.0)],
        },
    );
    let attempts = sample(&scene.metrics(), "postrider_delivery_attempts_total", &[]);
    assert_eq!(attempts, None, "nothing was sent, so nothing was attempted");
}
