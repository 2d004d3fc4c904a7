//! One connection, made when it is needed and made anew after it was lost, and its channels, each lent to one user at a time.
//!
//! The client could connect again on its own. It is not let to: what was under way must become an outcome first.
//!
//! A server that is out of memory or disk blocks the connections that publish: it reads nothing from them any more, and the
//! client writes nothing. Such a connection is kept, and nothing is sent while it is blocked, or each attempt would leave
//! another connection behind, and a message in it that is taken when there is room again. What was under way is still in the
//! client, and is written then. A channel with such messages is [set aside](Connections::set_aside), not closed: the client would
//! write its end before its messages, and the server would end the whole connection for that.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex as StdMutex, MutexGuard},
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
    aside: StdMutex<Aside>,
}

/// Channels with messages that may not be written yet, in the order in which they were set aside.
#[derive(Default)]
struct Aside {
    /// How many were set aside so far.
    count: u64,
    channels: VecDeque<(u64, Channel)>,
}

/// A channel of one's own, with confirms.
pub(crate) struct Lent {
    pub(crate) channel: Channel,
    open: Arc<Open>,
    /// How many channels had been set aside before.
    aside_before: u64,
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
        let aside_before = open.aside().count;
        let idle = open.idle.lock().expect("nobody panicked with the channels in hand").pop();
        let channel = match idle.filter(|channel| channel.status().connected()) {
            Some(channel) => channel,
            None => match timeout(self.timeout, another(&open.connection)).await {
                Ok(Ok(channel)) => channel,
                // Blocked meanwhile. What was asked for becomes a channel that nobody uses.
                _ if open.is_blocked() => return Err(self.blocked()),
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
        Ok(Lent { channel, open, aside_before, _place: place })
    }

    /// Gives a connection up that does not answer; the next one that needs a channel makes another.
    pub(crate) async fn give_up(&self, lent: &Lent) {
        self.lost(&lent.open).await;
    }

    /// Keeps a channel whose messages may not be written yet, and its connection.
    pub(crate) async fn set_aside(&self, lent: Lent) {
        let too_many = lent.open.aside().channels.len() >= CHANNELS_MAX;
        if too_many {
            self.lost(&lent.open).await;
            return;
        }
        let mut aside = lent.open.aside();
        aside.count += 1;
        let number = aside.count;
        aside.channels.push_back((number, lent.channel.clone()));
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
            if open.is_blocked() {
                return Err(self.blocked());
            }
            return Ok(Arc::clone(open));
        }
        *current = None;
        let patience = self.timeout.min(CONNECT_TIMEOUT);
        let connection = self.access.connect(patience).await?;
        timeout(self.timeout, self.topology.make(&connection)).await.map_err(|_| self.late())??;
        let open = Arc::new(Open { connection, idle: StdMutex::default(), aside: StdMutex::default() });
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

    fn blocked(&self) -> Cause {
        Cause::new("blocked", format!("{} takes nothing: it is out of memory or disk", self.access.shown()))
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

impl Open {
    /// Whether the server takes nothing at the moment.
    fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    fn aside(&self) -> MutexGuard<'_, Aside> {
        self.aside.lock().expect("nobody panicked with the channels in hand")
    }
}

impl Lent {
    /// Gives the channel back, for the next one. Only one on which nothing is awaited any more; any other is dropped, which
    /// closes it.
    pub(crate) fn give_back(self) {
        let Self { channel, open, aside_before, _place } = self;
        // The client writes messages in their order, and ours are confirmed: those that were set aside before are written.
        open.aside().channels.retain(|(number, _)| *number > aside_before);
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
        self.open.is_blocked()
    }
}
