//! Receivers on loopback: a real HTTP server that answers as it is told, and raw sockets for those that misbehave.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use postrider_core::cloudevents::Received;
use postrider_transport_http::{Builder, Guard, HttpPublisher, Secret, VerifyKey, read, webhook};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The secret of every test.
pub(crate) const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn secret() -> Secret {
    Secret::parse(SECRET).unwrap()
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The event, after its signature was checked as a receiver should.
    pub(crate) fn event(&self) -> Received {
        let keys = [VerifyKey::parse(SECRET).unwrap()];
        let verified = webhook::verify(&keys, |name| self.header(name), &self.body, SystemTime::now());
        let verified = verified.expect("every request carries a good signature");
        let received = read(self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())), self.body.clone()).unwrap();
        assert_eq!(verified.id, received.envelope.id.to_string());
        received
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Bytes,
}

pub(crate) fn status(status: u16) -> Answer {
    Answer { status, ..Answer::default() }
}

/// A server that remembers every request.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

type Answers = Arc<dyn Fn(&Seen) -> Answer + Send + Sync>;

impl Receiver {
    /// Answers everything with 204.
    pub(crate) async fn good() -> Self {
        Self::answering(|_| status(204)).await
    }

    pub(crate) async fn answering(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answer)
    }

    pub(crate) fn on(listener: TcpListener, answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (address, noted) = (listener.local_addr().unwrap(), Arc::clone(&seen));
        let answer: Answers = Arc::new(answer);
        let task = tokio::spawn(async move {
            // Ends with the test.
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&noted), Arc::clone(&answer)));
            }
        });
        Self { address, seen, task }
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks?k=v", self.address)
    }

    pub(crate) fn builder(&self) -> Builder {
        local(&self.url(), self.address.port())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves one connection, until the other side closes it.
pub(crate) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    seen: Arc<Mutex<Vec<Seen>>>,
    answer: Answers,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
        async move { Ok::<_, Infallible>(reply(request, &seen, &*answer).await) }
    });
    // A client that goes away in the middle is what some tests are about.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn reply(
    request: Request<Incoming>,
    seen: &Mutex<Vec<Seen>>,
    answer: &(dyn Fn(&Seen) -> Answer + Send + Sync),
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Response::new(Full::default()) };
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
    let request = Seen { path: head.uri.to_string(), headers, body: body.to_bytes() };
    let answer = answer(&request);
    seen.lock().unwrap().push(request);
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(answer.body)).unwrap()
}

/// A guard that lets loopback through, on this port.
pub(crate) fn loopback(port: u16) -> Guard {
    Guard::default().allow_http(true).allow_port(port).allow("127.0.0.1".parse().unwrap())
}

/// A publisher to a receiver on loopback.
pub(crate) fn local(url: &str, port: u16) -> Builder {
    HttpPublisher::builder(url).secret(secret()).source("shop").guard(loopback(port)).payload_bytes_max(2 << 20)
}

/// A server that reads one whole request per connection and then does as it is told with the socket.
pub(crate) async fn raw<F, R>(act: F) -> (Builder, JoinHandle<()>)
where
    F: Fn(TcpStream) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let act = Arc::new(act);
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let act = Arc::clone(&act);
            tokio::spawn(async move {
                read_request(&mut stream).await;
                act(stream).await;
            });
        }
    });
    (local(&format!("http://{address}/"), address.port()), task)
}

/// Reads head and body of a request with a `content-length`.
async fn read_request(stream: &mut TcpStream) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        if let Some(head) = text.find("\r\n\r\n") {
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap_or("0");
            if bytes.len() >= head + 4 + length.trim().parse::<usize>().unwrap() {
                return;
            }
        }
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
