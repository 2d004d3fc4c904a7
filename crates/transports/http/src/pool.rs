//! Connections that wait for their next request. There are never more than requests were under way at the same time.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use tokio::task::JoinHandle;

/// How long a connection may wait. Servers close idle ones, many after five seconds; a request that meets such a close has
/// an unknown outcome, so ours end sooner.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// How long a connection may live, so that a change in the DNS is noticed under constant load.
const LIFE_MAX: Duration = Duration::from_secs(300);

/// An open connection. Dropping it closes it, also in the middle of a request.
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
    opened_at: Instant,
    idle_since: Instant,
}

impl Connection {
    pub(crate) fn new(sender: SendRequest<Full<Bytes>>, task: JoinHandle<()>) -> Self {
        let now = Instant::now();
        Self { sender, task, opened_at: now, idle_since: now }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The idle connections of one endpoint.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Connection>>);

impl Pool {
    /// The connection that was used last, if one is still good.
    pub(crate) fn take(&self) -> Option<Connection> {
        let mut idle = self.0.lock().expect("nobody panics with the lock");
        idle.retain(|c| c.idle_since.elapsed() < IDLE_MAX && c.opened_at.elapsed() < LIFE_MAX && !c.sender.is_closed());
        idle.pop()
    }

    /// Keeps a connection whose last answer was read to its end.
    pub(crate) fn give_back(&self, mut connection: Connection) {
        connection.idle_since = Instant::now();
        self.0.lock().expect("nobody panics with the lock").push(connection);
    }

    /// Closes them all.
    pub(crate) fn clear(&self) {
        self.0.lock().expect("nobody panics with the lock").clear();
    }
}
