//! One connection that many share, made when it is needed and made anew after it was lost.

use std::time::Duration;

use postrider_core::{Result, parked::Cause};
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use tokio::{sync::Mutex, time::timeout};

use crate::{access::Access, error};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Connection {
    client: Client,
    shown: String,
    config: AsyncConnectionConfig,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// Counts connections, so that a late report of a loss does not end the next one.
    number: u64,
    connection: Option<MultiplexedConnection>,
}

/// A connection in use.
pub(crate) struct Using {
    pub(crate) number: u64,
    pub(crate) connection: MultiplexedConnection,
}

impl Connection {
    /// `answer_timeout` is how long an answer may take. The client's own default, half a second, would call a server lost
    /// that syncs its file.
    pub(crate) fn new(access: &Access, answer_timeout: Duration) -> Result<Self> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(answer_timeout));
        Ok(Self { client: access.client()?, shown: access.shown().to_owned(), config, current: Mutex::default() })
    }

    /// The connection; made if there is none. Dropping the future breaks nothing.
    pub(crate) async fn get(&self) -> Result<Using, Cause> {
        let late = || Cause::new("connect-timeout", format!("{} does not answer", self.shown));
        let mut current = timeout(2 * CONNECT_TIMEOUT, self.current.lock()).await.map_err(|_| late())?;
        if current.connection.is_none() {
            let connecting = self.client.get_multiplexed_async_connection_with_config(&self.config);
            let made = timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| late())?;
            let mut made = made.map_err(|e| error::connecting(&e, &self.shown))?;
            // Whether we may speak at all is asked with something short: a server that wants a login calls anything longer a
            // breach of the protocol instead of saying so.
            redis::cmd("PING").exec_async(&mut made).await.map_err(|e| error::connecting(&e, &self.shown))?;
            current.connection = Some(made);
            current.number += 1;
        }
        let connection = current.connection.clone().expect("there is one now");
        Ok(Using { number: current.number, connection })
    }

    /// Gives a connection up that does not answer; the next `get` makes another.
    pub(crate) async fn lost(&self, using: &Using) {
        let mut current = self.current.lock().await;
        if current.number == using.number {
            current.connection = None;
        }
    }
}
