//! One connection, made when it is needed and made anew after it was lost, and its channels, each lent to one user at a time.
//!
//! The client could connect again on its own. It is not let to: what was under way must become an outcome first.

use std::{
    sync::{Arc, Mutex as StdMutex},
    time::Duration,
};

use lapin::{Channel, options::ConfirmSelectOptions};
use postrider_core::parked::Cause;
use tokio::{
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{access::Access, error, topology::Topology};

/// How long connecting may take, if answers may take longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Channels of one connection at the same time. Who comes then waits for one.
const CHANNELS_MAX: usize = 64;

pub(crate) struct Connections {
    access: Access,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
    topology: Topology,
    places: Arc<Semaphore>,
    current: Mutex<Option<Arc<Open>>>,
}

/// A connection, and its channels that nobody uses just now.
struct Open {
    connection: lapin::Connection,
    idle: StdMutex<Vec<Channel>>,
}

/// A channel of one's own, with confirms.
pub(crate) struct Lent {
    pub(crate) channel: Channel,
    open: Arc<Open>,
    _place: OwnedSemaphorePermit,
}

impl Connections {
    pub(crate) fn new(access: Access, timeout: Duration, topology: Topology) -> Self {
        let places = Arc::new(Semaphore::new(CHANNELS_MAX));
        Self { access, timeout, topology, places, current: Mutex::new(None) }
    }

    /// A channel; the connection is made if there is none. Dropping the future breaks nothing.
    pub(crate) async fn lend(&self) -> Result<Lent, Cause> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|_| Cause::new("connect", "the publisher is closed"))?;
        let open = self.open().await?;
        let idle = open.idle.lock().expect("nobody panicked with the channels in hand").pop();
        let channel = match idle.filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => match timeout(self.timeout, another(&open.connection)).await {
                Ok(Ok(channel)) => channel,
                Ok(Err(error)) => {
                    self.lost(&open).await;
                    return Err(error::connecting(&error, &self.access.shown()));
                }
                Err(_) => {
                    self.lost(&open).await;
                    return Err(self.late());
                }
            },
        };
        Ok(Lent { channel, open, _place: place })
    }

    /// Gives a connection up that does not answer; the next one that needs a channel makes another.
    pub(crate) async fn give_up(&self, lent: &Lent) {
        self.lost(&lent.open).await;
    }

    /// Says goodbye to the server.
    pub(crate) async fn close(&self) -> Result<(), lapin::Error> {
        match self.current.lock().await.take() {
            Some(open) if open.connection.status().connected() => open.connection.close(200, "OK".into()).await,
            _ => Ok(()),
        }
    }

    async fn open(&self) -> Result<Arc<Open>, Cause> {
        let mut current = timeout(2 * CONNECT_TIMEOUT, self.current.lock()).await.map_err(|_| self.late())?;
        if let Some(open) = current.as_ref().filter(|open| open.connection.status().connected()) {
            if open.connection.status().blocked() {
                let detail = format!("{} takes nothing: it is out of memory or disk", self.access.shown());
                return Err(Cause::new("blocked", detail));
            }
            return Ok(Arc::clone(open));
        }
        *current = None;
        let patience = self.timeout.min(CONNECT_TIMEOUT);
        let connection = self.access.connect(patience).await?;
        timeout(self.timeout, self.topology.make(&connection)).await.map_err(|_| self.late())??;
        let open = Arc::new(Open { connection, idle: StdMutex::default() });
        *current = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn lost(&self, lost: &Arc<Open>) {
        let mut current = self.current.lock().await;
        // A late report of a loss does not end the next connection.
        if current.as_ref().is_some_and(|open| Arc::ptr_eq(open, lost)) {
            *current = None;
        }
    }

    fn late(&self) -> Cause {
        Cause::new("connect-timeout", format!("{} does not answer", self.access.shown()))
    }
}

async fn another(connection: &lapin::Connection) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

impl Lent {
    /// Gives the channel back, for the next one. Only one on which nothing is awaited any more; any other is dropped, which
    /// closes it.
    pub(crate) fn give_back(self) {
        let Self { channel, open, _place } = self;
        open.idle.lock().expect("nobody panicked with the channels in hand").push(channel);
    }

    /// How many bytes the properties of a message may have.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        match self.open.connection.configuration().frame_max() {
            0 => usize::MAX,
            max => max as usize,
        }
    }

    /// Whether the server takes nothing at the moment.
    pub(crate) fn blocked(&self) -> bool {
        self.open.connection.status().blocked()
    }
}
