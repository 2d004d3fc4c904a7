//! Traces, as a collector gets them: the real binary exports to a receiver that decodes what OpenTelemetry's protocol says.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use postrider::{Message, Outbox, sqlite::Sqlite};
use rusqlite::Connection;
use rustix::process::Signal;

use crate::support::{Workplace, wait_until};

const FIRST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SECOND: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// A request that arrived: its first line and headers, and its body.
type Request = (String, Vec<u8>);

/// A server that keeps every request and answers each in the same way.
fn server(answer: &'static str) -> (u16, Arc<Mutex<Vec<Request>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let kept = Arc::clone(&kept);
            thread::spawn(move || while take(&stream, answer, &kept).is_some() {});
        }
    });
    (port, requests)
}

fn take(stream: &TcpStream, answer: &str, kept: &Mutex<Vec<Request>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
        let line = head[start..].trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    kept.lock().unwrap().push((head, body));
    let mut stream = stream;
    write!(stream, "HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").ok()
}

/// One field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message with their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return value;
            }
        }
    }
    fn cut<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (piece, rest) = bytes.split_at(length);
        *bytes = rest;
        piece
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(u64::from_le_bytes(cut(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes) as usize;
                Field::Bytes(cut(&mut bytes, length))
            }
            5 => Field::Number(u64::from(u32::from_le_bytes(cut(&mut bytes, 4).try_into().unwrap()))),
            other => panic!("no wire type {other} in this protocol"),
        };
        found.push((tag >> 3, field));
    }
    found
}

fn all(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let bytes_of = |(n, field)| match field {
        Field::Bytes(bytes) if n == number => Some(bytes),
        _ => None,
    };
    fields(bytes).into_iter().filter_map(bytes_of).collect()
}

fn text(bytes: &[u8], number: u64) -> String {
    all(bytes, number).first().map_or_else(String::new, |bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

fn number(bytes: &[u8], wanted: u64) -> u64 {
    let of = |(n, field)| match field {
        Field::Number(value) if n == wanted => Some(value),
        _ => None,
    };
    fields(bytes).into_iter().find_map(of).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `key=value`, sorted.
fn attributes(bytes: &[u8], number_of_field: u64) -> Vec<String> {
    let shown = |pair: &&[u8]| {
        let value = all(pair, 2)[0];
        let shown = if all(value, 1).is_empty() { number(value, 3).to_string() } else { text(value, 1) };
        format!("{}={shown}", text(pair, 1))
    };
    let mut attributes: Vec<String> = all(bytes, number_of_field).iter().map(shown).collect();
    attributes.sort();
    attributes
}

/// What a test looks at.
#[derive(Debug)]
struct Span {
    resource: Vec<String>,
    name: String,
    kind: u64,
    parent: String,
    attributes: Vec<String>,
    /// Trace and span, as in a `traceparent`, and attributes.
    links: Vec<(String, Vec<String>)>,
    status: u64,
    nanos: u64,
}

impl Span {
    fn has(&self, attribute: &str) -> bool {
        self.attributes.iter().any(|a| a == attribute)
    }
}

fn spans(requests: &Mutex<Vec<Request>>) -> Vec<Span> {
    let requests = requests.lock().unwrap();
    let mut spans = Vec::new();
    for (head, body) in requests.iter() {
        assert!(head.starts_with("POST /v1/traces "), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: application/x-protobuf"), "{head}");
        for of_resource in all(body, 1) {
            let resource = attributes(all(of_resource, 1)[0], 1);
            let in_scopes = all(of_resource, 2).into_iter().flat_map(|scope| all(scope, 2));
            spans.extend(in_scopes.map(|span| read(span, &resource)));
        }
    }
    spans
}

fn read(span: &[u8], resource: &[String]) -> Span {
    let link = |link: &&[u8]| {
        let context = format!("00-{}-{}-01", hex(all(link, 1)[0]), hex(all(link, 2)[0]));
        (context, attributes(link, 4))
    };
    Span {
        resource: resource.to_vec(),
        name: text(span, 5),
        kind: number(span, 6),
        parent: all(span, 4).first().map_or_else(String::new, |id| hex(id)),
        attributes: attributes(span, 9),
        links: all(span, 13).iter().map(link).collect(),
        status: all(span, 15).first().map_or(0, |status| number(status, 3)),
        nanos: number(span, 8).saturating_sub(number(span, 7)),
    }
}

fn enqueue(place: &Workplace, topic: &str, context: &str) -> String {
    let header = format!("traceparent={context}");
    let message =
        ["enqueue", "--store", "sqlite:app.db", "--topic", topic, "--name", "order.placed", "--payload", "{}"];
    let more = ["--header", &header, "--header", "correlation-id=order-4711"];
    let finished = place.run(&[&message[..], &more].concat());
    assert_eq!(finished.code, 0, "{finished:?}");
    finished.stdout.trim_end().to_owned()
}

fn config(collector: u16, routes: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[telemetry]\notlp_endpoint = \"http://127.0.0.1:{collector}/\"\n\
         service_name = \"shop-relay\"\n{routes}"
    )
}

const FILES: &str = "[[route]]\nname = \"orders\"\ntopics = [\"orders.*\"]\ntransport = \"file:arrivals\"\n\
                     [[route]]\nname = \"quiet\"\ntopics = [\"quiet\"]\ntransport = \"file:quiet\"\n";

/// Until everything was delivered; then the daemon stops, and with it everything is exported.
fn run_until(place: &Workplace, config: &str, delivered: impl FnMut() -> bool) {
    let mut daemon = place.daemon("relay", config);
    wait_until("everything was delivered", delivered);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", std::fs::read_to_string(place.path("relay.log")).unwrap());
}

#[test]
fn a_publish_is_linked_to_the_context_of_every_message() {
    let place = Workplace::new();
    drop(place.migrated());
    let ids = [enqueue(&place, "orders.placed", FIRST), enqueue(&place, "orders.placed", SECOND)];
    enqueue(&place, "quiet", UNSAMPLED);
    let (collector, requests) = server("200 OK");
    run_until(&place, &config(collector, FILES), || {
        place.arrivals("arrivals").len() == 2 && place.arrivals("quiet").len() == 1
    });
    let spans = spans(&requests);
    assert!(!spans.is_empty(), "{}", std::fs::read_to_string(place.path("relay.log")).unwrap());
    for span in &spans {
        assert_eq!((span.name.as_str(), span.kind, span.status), ("send orders.placed", 3, 0), "{span:?}");
        assert_eq!(span.parent, "", "a batch is the child of none of its creators");
        assert!(span.nanos > 0, "{span:?}");
        for attribute in [
            "messaging.system=file",
            "messaging.operation.name=send",
            "messaging.operation.type=send",
            "messaging.destination.name=orders.placed",
            "postrider.route=orders",
        ] {
            assert!(span.has(attribute), "{attribute}: {span:?}");
        }
        assert!(span.resource.contains(&"service.name=shop-relay".to_owned()), "{span:?}");
    }
    let mut links: Vec<_> = spans.iter().flat_map(|span| span.links.clone()).collect();
    links.sort();
    let expected = [(FIRST, &ids[0]), (SECOND, &ids[1])];
    assert_eq!(links, expected.map(|(context, id)| (context.to_owned(), vec![format!("messaging.message.id={id}")])));
}

/// Keeps the spans of an application.
#[derive(Clone, Debug, Default)]
struct Exported(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Exported {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

#[derive(serde::Serialize)]
struct Placed;

impl Message for Placed {
    const NAME: &'static str = "orders.placed";
}

#[test]
fn a_publish_is_linked_to_the_span_in_which_the_application_created_the_message() {
    let place = Workplace::new();
    drop(place.migrated());
    let exported = Exported::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exported.clone()).build();
    let outbox = Outbox::new(Sqlite::default()).with_tracer(provider.tracer("shop"));
    let mut connection = Connection::open(place.path("app.db")).unwrap();
    let mut transaction = connection.transaction().unwrap();
    outbox.enqueue(&mut transaction, &Placed).unwrap();
    transaction.commit().unwrap();
    let (collector, requests) = server("200 OK");
    run_until(&place, &config(collector, FILES), || place.arrivals("arrivals").len() == 1);

    let (created, sent) = (exported.0.lock().unwrap(), spans(&requests));
    let ([created], [sent]) = (created.as_slice(), sent.as_slice()) else { panic!("{created:?} {sent:?}") };
    assert_eq!((&*created.name, &created.span_kind), ("create orders.placed", &SpanKind::Producer));
    let context = &created.span_context;
    let [(linked, _)] = sent.links.as_slice() else { panic!("{sent:?}") };
    assert_eq!(*linked, format!("00-{}-{}-01", context.trace_id(), context.span_id()));
    assert_eq!(sent.name, "send orders.placed");
}

#[test]
fn a_refusal_is_an_error_with_its_cause_and_the_destination_gets_the_context_as_it_was() {
    let place = Workplace::new();
    drop(place.migrated());
    let id = enqueue(&place, "orders.placed", FIRST);
    let ((collector, requests), (port, posted)) = (server("200 OK"), server("422 Unprocessable Content"));
    let route = format!(
        "[[route]]\nname = \"hook\"\ntransport = \"http://127.0.0.1:{port}/canary-path\"\n[route.retry]\nattempts_max = 1\n\
         [route.http]\nunsigned = true\nallow_http = true\nallow = [\"127.0.0.1\"]\nports = [{port}]\n"
    );
    run_until(&place, &config(collector, &route), || place.status()["routes"][0]["parked"]["dead"] == 1);
    let spans = spans(&requests);
    let [span] = spans.as_slice() else { panic!("one attempt is one span: {spans:?}") };
    assert_eq!((span.name.as_str(), span.status), ("send orders.placed", 2), "{span:?}");
    for attribute in [
        "error.type=http-422",
        "messaging.system=http",
        "server.address=127.0.0.1",
        &format!("server.port={port}"),
        &format!("messaging.message.id={id}"),
        "messaging.message.conversation_id=order-4711",
    ] {
        assert!(span.has(attribute), "{attribute}: {span:?}");
    }
    assert!(!format!("{span:?}").contains("canary"), "the path of a webhook may be a secret");
    let (head, _) = &posted.lock().unwrap()[0];
    assert!(head.contains(&format!("traceparent: {FIRST}\r\n")), "{head}");
}

#[test]
fn a_collector_that_is_down_is_in_nobodys_way() {
    let place = Workplace::new();
    drop(place.migrated());
    enqueue(&place, "orders.placed", FIRST);
    // Nobody listens on the first port.
    run_until(&place, &config(1, FILES), || place.arrivals("arrivals").len() == 1);
}
