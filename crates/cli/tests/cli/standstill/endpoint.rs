//! Destinations of these tests.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

/// An endpoint that treats each connection in its own way, and the route to it.
pub(super) fn endpoint(scheme: &str, more: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    webhook(&format!("{scheme}://127.0.0.1:{port}/"), port, more)
}

pub(super) fn webhook(url: &str, port: u16, more: &str) -> String {
    format!(
        "transport = \"{url}\"\n{more}\n[route.http]\nunsigned = true\nallow_http = true\n\
         allow = [\"127.0.0.1/32\"]\nports = [{port}]\n"
    )
}

/// Answers one request, and ends the connection.
pub(super) fn answering_once(head: &str, mut stream: TcpStream) {
    let read = stream.read(&mut [0; 16 << 10]);
    if read.is_ok_and(|read| read > 0) {
        let _ = write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
}

/// Answers every request of a connection in the same way. A request of these tests fits into one read.
pub(super) fn answering(head: &'static str) -> impl Fn(TcpStream) + Send + Sync + 'static {
    move |mut stream| {
        let mut request = [0; 16 << 10];
        while stream.read(&mut request).is_ok_and(|read| read > 0) {
            if write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }
}
