//! The connections of the admin server, and what a client may ask of it: little, and soon.
//!
//! Whoever connects may be slow, silent or hostile; the relay beside it must not notice. So a connection carries one request
//! whose head is short and comes soon, and lives no longer than an answer may take. At most so many are served at once; the
//! rest waits in the queue of the system.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// Connections at once.
const CONNECTIONS_MAX: usize = 256;

/// How long a client may take to say what it wants.
const HEAD_PATIENCE: Duration = Duration::from_secs(3);

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Most headers of a request.
const HEADERS_MAX: usize = 64;

/// How long a connection may live: more than the longest look at a store.
const LIFE_MAX: Duration = Duration::from_secs(30);

/// How long to wait if the system has no connection to give, such as for want of file descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Serves until the future is dropped; connections that are open then end by themselves.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    // A client that goes away, or is cut off, is no news.
                    let _ = tokio::time::timeout(LIFE_MAX, answer(stream, router)).await;
                    drop(turn);
                });
            }
            Err(error) if is_of_one_client(&error) => {}
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

async fn answer(stream: TcpStream, router: Router) -> Result<(), hyper::Error> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
