//! What each answer means for the message, and what a request carries.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use postrider_core::{
    envelope::Envelope,
    headers::Headers,
    parked::Cause,
    transport::{Outcome, Publisher},
};
use postrider_testkit::transport::record;
use postrider_transport_http::{HttpPublisher, Mode, Secret, VerifyKey, webhook};
use tokio::sync::Barrier;

use support::{Answer, Receiver, SECRET, secret, status};

fn envelope() -> Envelope {
    Envelope::new("orders", "order.placed", r#"{"card":"4111-1111"}"#).with_key("größe 42")
}

async fn publish(publisher: &HttpPublisher, envelope: &Envelope) -> Outcome {
    publisher.publish(vec![record(envelope)]).await.remove(0)
}

async fn answered(answer: Answer) -> Outcome {
    let receiver = Receiver::answering(move |_| answer.clone()).await;
    let outcome = publish(&receiver.builder().build().unwrap(), &envelope()).await;
    assert_eq!(receiver.seen().len(), 1, "one message is one request");
    outcome
}

fn code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => cause.code(),
        Outcome::Durable | Outcome::Throttled(_) => "",
    }
}

#[tokio::test]
async fn each_status_has_its_outcome() {
    let expected = [
        (200, "durable", ""),
        (201, "durable", ""),
        (204, "durable", ""),
        (299, "durable", ""),
        (301, "rejected", "redirect"),
        (302, "rejected", "redirect"),
        (304, "rejected", "redirect"),
        (308, "rejected", "redirect"),
        (400, "rejected", "http-400"),
        (401, "unavailable", "http-401"),
        (403, "rejected", "http-403"),
        (404, "rejected", "http-404"),
        (407, "unavailable", "http-407"),
        (408, "unknown", "http-408"),
        (410, "unavailable", "gone"),
        (413, "rejected", "http-413"),
        (422, "rejected", "http-422"),
        (425, "throttled", ""),
        (429, "throttled", ""),
        (500, "unknown", "http-500"),
        (501, "unknown", "http-501"),
        (502, "unavailable", "http-502"),
        (503, "unavailable", "http-503"),
        (504, "unavailable", "http-504"),
        (599, "unknown", "http-599"),
    ];
    for (number, name, cause) in expected {
        let outcome = answered(status(number)).await;
        assert_eq!((outcome.name(), code(&outcome)), (name, cause), "{number}");
    }
}

#[tokio::test]
async fn a_pause_is_honoured_in_both_forms() {
    let asked = |number, value: String| {
        answered(Answer { status: number, headers: vec![("retry-after", value)], ..Answer::default() })
    };
    assert_eq!(asked(429, "7".into()).await, Outcome::Throttled(Duration::from_secs(7)));
    assert_eq!(asked(503, "120".into()).await, Outcome::Throttled(Duration::from_secs(120)));
    assert_eq!(asked(429, "soon".into()).await, Outcome::Throttled(Duration::from_secs(5)));
    for number in [425, 429, 503] {
        assert_eq!(asked(number, "0".into()).await, Outcome::Throttled(Duration::from_secs(1)), "{number}");
    }
    let date = Duration::from_secs(3600);
    let Outcome::Throttled(pause) = asked(503, httpdate::fmt_http_date(SystemTime::now() + date)).await else {
        panic!("a date is a pause")
    };
    assert!(pause <= date && pause > date - support::PATIENCE, "{pause:?}");
    assert_eq!(code(&asked(503, "soon".into()).await), "http-503", "what is no pause is none");
}

#[tokio::test]
async fn a_redirect_is_never_followed() {
    let inside = Receiver::good().await;
    let location = vec![("location", inside.url())];
    for number in [301, 302, 303, 307, 308] {
        let outcome = answered(Answer { status: number, headers: location.clone(), ..Answer::default() }).await;
        assert_eq!(code(&outcome), "redirect");
        assert!(!format!("{outcome:?}").contains(&inside.address.port().to_string()), "the target is not repeated");
    }
    assert!(inside.seen().is_empty());
}

#[tokio::test]
async fn an_endpoint_that_is_gone_gets_nothing_until_it_is_reopened() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let receiver =
        Receiver::answering(move |_| status(if counted.fetch_add(1, Ordering::SeqCst) == 0 { 410 } else { 200 })).await;
    let publisher = receiver.builder().build().unwrap();
    for number in 0..5 {
        let outcome = publish(&publisher, &envelope()).await;
        assert_eq!(code(&outcome), "gone");
        assert!(matches!(&outcome, Outcome::Unavailable(cause) if cause.is_unsent() == (number > 0)), "{outcome:?}");
    }
    assert!(publisher.is_gone());
    assert_eq!(receiver.seen().len(), 1, "only the first one went out");
    publisher.reopen();
    assert_eq!(publish(&publisher, &envelope()).await, Outcome::Durable);
    assert_eq!(receiver.seen().len(), 2);
}

#[tokio::test]
async fn a_rejection_tells_what_the_receiver_said_and_nothing_secret() {
    // The receiver sends back all that it got.
    let receiver = Receiver::answering(|seen| {
        let headers: Vec<String> = seen.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let (path, query) = seen.path.split_once('?').unwrap();
        let parts = format!("Cannot POST {path}; for {}; with {query}", path.rsplit('/').next().unwrap());
        let (headers, body) = (headers.join("\n"), String::from_utf8_lossy(&seen.body));
        let body = format!("order 4711 is unknown\n{}\n{parts}\n{headers}\n{body}", seen.path);
        Answer { status: 422, body: body.into(), ..Answer::default() }
    })
    .await;
    let url = format!("http://{}/hooks/3f2b8c1e-5d0a-4c6e-9b7f-canary000001?key=canary-2&n=1", receiver.address);
    let builder = support::local(&url, receiver.address.port())
        .header("authorization", "Bearer canary-one")
        .header("x-key", "canary two words");
    let publisher = builder.build().unwrap();
    let Outcome::Rejected(cause) = publish(&publisher, &envelope()).await else { panic!("422 is a rejection") };
    assert!(cause.detail().contains("422") && cause.detail().contains("order 4711 is unknown"), "{cause}");
    assert!(cause.detail().len() < 1200, "{} bytes", cause.detail().len());
    let signature = receiver.seen()[0].header("webhook-signature").unwrap().to_owned();
    for leak in ["canary", "3f2b8c1e", "4111-1111", &signature[3..], &SECRET[6..]] {
        for told in [format!("{cause}"), format!("{publisher:?}"), format!("{:?}", secret())] {
            assert!(!told.contains(leak), "{leak} in {told}");
        }
    }
    assert!(!format!("{publisher:?} {cause}").contains("/hooks"), "a path may hold a token");
}

#[tokio::test]
async fn a_request_is_a_signed_cloudevent() {
    let receiver = Receiver::good().await;
    let publisher = receiver.builder().header("Authorization", "Bearer x").build().unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut sent = envelope();
    sent.headers =
        Headers::new([("traceparent", trace), ("tenant", "7"), ("host", "evil"), ("ce-id", "evil")]).unwrap();
    assert_eq!(publish(&publisher, &sent).await, Outcome::Durable);
    let seen = receiver.seen().remove(0);
    let id = sent.id.to_string();
    for (name, value) in [
        ("host", receiver.address.to_string().as_str()),
        ("content-type", "application/json"),
        ("user-agent", concat!("postrider/", env!("CARGO_PKG_VERSION"))),
        ("authorization", "Bearer x"),
        ("webhook-id", &id),
        ("ce-id", &id),
        ("ce-specversion", "1.0"),
        ("ce-type", "order.placed"),
        ("ce-source", "shop"),
        ("ce-subject", "gr%C3%B6%C3%9Fe%2042"),
        ("ce-partitionkey", "gr%C3%B6%C3%9Fe%2042"),
        ("ce-tenant", "7"),
        ("ce-traceparent", trace),
        ("traceparent", trace),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
        assert_eq!(seen.headers.iter().filter(|(n, _)| n == name).count(), 1, "{name} once");
    }
    assert_eq!(seen.path, "/hooks?k=v");
    assert_eq!(seen.body, sent.payload);
    for name in ["cookie", "accept-encoding", "transfer-encoding", "evil"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn a_retry_has_the_same_id_and_rotation_signs_with_all() {
    let receiver = Receiver::good().await;
    let (new, signing) =
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=");
    let mut builder = receiver.builder().mode(Mode::Structured);
    for text in [new, signing] {
        builder = builder.secret(Secret::parse(text).unwrap());
    }
    let publisher = builder.build().unwrap();
    let sent = envelope();
    for _ in 0..2 {
        assert_eq!(publish(&publisher, &sent).await, Outcome::Durable);
    }
    let seen = receiver.seen();
    assert_eq!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    let public = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
    for key in [SECRET, new, public] {
        let keys = [VerifyKey::parse(key).unwrap()];
        webhook::verify(&keys, |name| seen[0].header(name), &seen[0].body, SystemTime::now()).unwrap();
    }
    assert_eq!(seen[0].header("webhook-signature").unwrap().split(' ').count(), 3);
}

#[tokio::test]
async fn an_unsigned_request_says_so_by_having_no_signature() {
    let receiver = Receiver::good().await;
    let port = receiver.address.port();
    let builder = HttpPublisher::builder(&receiver.url()).unsigned().guard(support::loopback(port));
    assert_eq!(publish(&builder.build().unwrap(), &envelope()).await, Outcome::Durable);
    assert!(receiver.seen()[0].headers.iter().all(|(name, _)| !name.starts_with("webhook-")));
}

#[tokio::test]
async fn no_more_requests_than_allowed_are_under_way() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    // Three at a time or nobody goes on: fewer would hang, more would be counted.
    let together = Arc::new(Barrier::new(3));
    let (running, peak) = (Arc::clone(&now), Arc::clone(&most));
    let (builder, _server) = support::raw(move |mut stream| {
        let (running, peak, together) = (Arc::clone(&running), Arc::clone(&peak), Arc::clone(&together));
        async move {
            peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            together.wait().await;
            running.fetch_sub(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        }
    })
    .await;
    let publisher = builder.concurrency(3).timeout(support::PATIENCE * 4).build().unwrap();
    let capabilities = publisher.capabilities();
    assert_eq!((capabilities.run_max, capabilities.batch_max, capabilities.batches_max), (1, Some(1), Some(3)));
    let batch: Vec<_> = (0..30).map(|_| record(&envelope())).collect();
    assert_eq!(publisher.publish(batch).await, vec![Outcome::Durable; 30]);
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_payload_over_the_limit_is_never_sent() {
    let receiver = Receiver::good().await;
    let publisher = receiver.builder().payload_bytes_max(10).build().unwrap();
    let outcome = publish(&publisher, &envelope()).await;
    let expected = Cause::new("too-large", "the payload has 20 bytes; payload_bytes_max is 10");
    assert_eq!(outcome, Outcome::Rejected(expected));
    assert!(receiver.seen().is_empty());
}
