//! Receivers that misbehave: nothing that they do takes more than its limit, and no answer is taken for another.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use postrider_core::{
    envelope::Envelope,
    transport::{Outcome, Publisher},
};
use postrider_testkit::transport::record;
use postrider_transport_http::HttpPublisher;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};

use support::{Receiver, local, raw};

/// For those who never answer: long enough for a connection on a busy machine.
const SHORT: Duration = Duration::from_millis(800);

async fn outcome(publisher: &HttpPublisher) -> Outcome {
    let batch = vec![record(&Envelope::new("orders", "order.placed", "{}"))];
    publisher.publish(batch).await.remove(0)
}

fn of(outcome: &Outcome) -> (&'static str, String) {
    let cause = match outcome {
        Outcome::Rejected(cause) | Outcome::Unavailable(cause) | Outcome::Unknown(cause) => cause.code().to_owned(),
        Outcome::Durable | Outcome::Throttled(_) => String::new(),
    };
    (outcome.name(), cause)
}

/// Writes until the other side has had enough.
async fn write_for_ever(stream: &mut TcpStream, bytes: &[u8], pause: Duration) -> usize {
    let mut written = 0;
    while stream.write_all(bytes).await.is_ok() {
        written += bytes.len();
        tokio::time::sleep(pause).await;
    }
    written
}

/// The system takes the connection; nobody answers the handshake.
#[tokio::test]
async fn a_handshake_that_is_not_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let publisher = local(&format!("https://{address}/"), address.port()).timeout(SHORT).build().unwrap();
    assert_eq!(of(&outcome(&publisher).await), ("unavailable", "tls".into()));
}

#[tokio::test]
async fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let publisher = local(&format!("http://{address}/"), address.port()).build().unwrap();
    assert_eq!(of(&outcome(&publisher).await), ("unavailable", "connect".into()));
}

#[tokio::test]
async fn the_connection_is_cut_after_the_request() {
    let (builder, _server) = raw(|stream| async move { drop(stream) }).await;
    assert_eq!(of(&outcome(&builder.build().unwrap()).await), ("unknown", "connection-lost".into()));
}

#[tokio::test]
async fn the_connection_is_cut_in_the_middle_of_the_answer() {
    let (builder, _server) = raw(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le").await.unwrap();
    })
    .await;
    assert_eq!(of(&outcome(&builder.build().unwrap()).await), ("unknown", "connection-lost".into()));
}

#[tokio::test]
async fn there_is_never_an_answer() {
    let (builder, _server) = raw(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    assert_eq!(of(&outcome(&builder.timeout(SHORT).build().unwrap()).await), ("unknown", "timeout".into()));
}

#[tokio::test]
async fn the_head_comes_byte_by_byte_and_never_ends() {
    let (builder, _server) = raw(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await.unwrap();
        write_for_ever(&mut stream, b"x: y\r\n", Duration::from_millis(20)).await;
    })
    .await;
    assert_eq!(of(&outcome(&builder.timeout(SHORT).build().unwrap()).await), ("unknown", "timeout".into()));
}

#[tokio::test]
async fn interim_answers_never_end() {
    let (builder, _server) = raw(|mut stream| async move {
        write_for_ever(&mut stream, b"HTTP/1.1 103 Early Hints\r\n\r\n", Duration::from_millis(5)).await;
    })
    .await;
    assert_eq!(of(&outcome(&builder.timeout(SHORT).build().unwrap()).await), ("unknown", "timeout".into()));
}

#[tokio::test]
async fn the_head_is_larger_than_the_limit() {
    for (bytes, expected) in [(30 << 10, ("durable", "")), (40 << 10, ("unknown", "bad-response"))] {
        let (builder, _server) = raw(move |mut stream| async move {
            let head = format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(bytes));
            // The other side may stop reading.
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.shutdown().await;
        })
        .await;
        let (name, cause) = of(&outcome(&builder.build().unwrap()).await);
        assert_eq!((name, cause.as_str()), expected, "{bytes} bytes");
    }
}

#[tokio::test]
async fn what_comes_back_is_not_http() {
    let (builder, _server) = raw(|mut stream| async move {
        stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").await.unwrap();
    })
    .await;
    assert_eq!(of(&outcome(&builder.build().unwrap()).await), ("unknown", "bad-response".into()));
}

#[tokio::test]
async fn a_body_without_end_is_left_unread() {
    for (head, expected) in [("200 OK", "durable"), ("400 Bad Request", "rejected")] {
        let (written, stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, ended) = (Arc::clone(&written), Arc::clone(&stopped));
        let (builder, _server) = raw(move |mut stream| {
            let (counted, ended) = (Arc::clone(&counted), Arc::clone(&ended));
            async move {
                stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).await.unwrap();
                counted.fetch_add(write_for_ever(&mut stream, &[b'a'; 4096], Duration::ZERO).await, Ordering::SeqCst);
                ended.fetch_add(1, Ordering::SeqCst);
            }
        })
        .await;
        let publisher = builder.build().unwrap();
        assert_eq!(outcome(&publisher).await.name(), expected);
        support::until("the connection is closed", || stopped.load(Ordering::SeqCst) == 1).await;
        // What the sockets' buffers took; far from what an endless body would be.
        assert!(written.load(Ordering::SeqCst) < 64 << 20, "{written:?}");
    }
}

#[tokio::test]
async fn a_body_that_drips_decides_nothing() {
    for (head, expected) in [("200 OK", "durable"), ("404 Not Found", "rejected")] {
        let (builder, _server) = raw(move |mut stream| async move {
            stream.write_all(format!("HTTP/1.1 {head}\r\ncontent-length: 9999\r\n\r\n").as_bytes()).await.unwrap();
            write_for_ever(&mut stream, b".", Duration::from_millis(50)).await;
        })
        .await;
        assert_eq!(outcome(&builder.build().unwrap()).await.name(), expected);
    }
}

#[tokio::test]
async fn a_compressed_body_is_not_unpacked() {
    let receiver = Receiver::answering(|_| support::Answer {
        status: 400,
        headers: vec![("content-encoding", "gzip".into())],
        body: vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0].into(),
    })
    .await;
    assert_eq!(of(&outcome(&receiver.builder().build().unwrap()).await), ("rejected", "http-400".into()));
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_nothing() {
    // Answers once per connection without saying that it will close it, and closes it.
    let (builder, _server) = raw(|mut stream| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
    })
    .await;
    let publisher = builder.build().unwrap();
    for _ in 0..20 {
        let mut last = outcome(&publisher).await;
        // Whether the close is noticed before the next request is a race; then it is unknown, never anything worse, and
        // the engine sends it again.
        while last != Outcome::Durable {
            assert_eq!(last.name(), "unknown", "{last:?}");
            last = outcome(&publisher).await;
        }
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let accepted = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (behind, counted) = (Receiver::good().await, Arc::clone(&accepted));
    let inside = behind.address;
    // A proxy that counts connections.
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(inside).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    let publisher = local(&format!("http://{address}/"), address.port()).build().unwrap();
    for _ in 0..20 {
        assert_eq!(outcome(&publisher).await, Outcome::Durable);
    }
    assert_eq!(behind.seen().len(), 20);
    // A pause of more than the idle time between two requests would open another; twenty would mean none was kept.
    assert!(accepted.load(Ordering::SeqCst) < 10, "{accepted:?}");
}
