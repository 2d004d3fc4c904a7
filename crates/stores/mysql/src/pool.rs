//! Connections, lent out one piece of work at a time.
//!
//! One that does not come back clean is closed and never mended: whatever was under way on it, an answer half read or a
//! transaction half done, ends with it at the server. (The client's own pool mends such connections beside the work; when
//! servers were killed under it, it now and then lent no connection ever again.)

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use deadpool::{
    Runtime,
    managed::{self, Metrics, PoolError, RecycleResult},
};
use mysql_async::{Conn, Opts, prelude::Queryable};
use postrider_core::{Error, ErrorKind, Result};

use crate::{
    error::Fault,
    identity::{Identity, Leases, is_mariadb},
};

/// How long making a connection may take, or asking one whether it still lives.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait until another piece of work is done with its connection: longer than any of them waits for an answer.
const WAIT_PATIENCE: Duration = Duration::from_secs(120);

/// A connection that was used just now is taken as it is; an older one is asked first.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

pub(crate) type Pool = managed::Pool<Connections>;
pub(crate) type Lent = managed::Object<Connections>;

/// Makes them.
pub(crate) struct Connections {
    options: Opts,
    leases: Arc<Leases>,
}

/// One of them.
pub(crate) struct Connection {
    client: Conn,
    /// Where it leads.
    pub(crate) server: Identity,
    /// And of which kind that is.
    pub(crate) is_mariadb: bool,
    /// What was taken through any of them.
    pub(crate) leases: Arc<Leases>,
}

impl Deref for Connection {
    type Target = Conn;

    fn deref(&self) -> &Conn {
        &self.client
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.client
    }
}

impl managed::Manager for Connections {
    type Type = Connection;
    type Error = mysql_async::Error;

    async fn create(&self) -> mysql_async::Result<Connection> {
        let mut client = Conn::new(self.options.clone()).await?;
        let is_mariadb = is_mariadb(&mut client).await?;
        let server = Identity::of(&mut client, is_mariadb).await?;
        Ok(Connection { client, server, is_mariadb, leases: Arc::clone(&self.leases) })
    }

    async fn recycle(&self, connection: &mut Connection, metrics: &Metrics) -> RecycleResult<mysql_async::Error> {
        if metrics.last_used() > TRUSTED_FOR {
            connection.ping().await?;
        }
        Ok(())
    }
}

/// None is made before it is asked for.
pub(crate) fn pool(options: impl Into<Opts>, connections_max: usize) -> Result<Pool> {
    Pool::builder(Connections { options: options.into(), leases: Arc::default() })
        .max_size(connections_max)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(WAIT_PATIENCE))
        .create_timeout(Some(CONNECT_PATIENCE))
        .recycle_timeout(Some(CONNECT_PATIENCE))
        .build()
        .map_err(|error| Error::invalid("the connections cannot be pooled").caused_by(error))
}

impl From<PoolError<mysql_async::Error>> for Fault {
    fn from(error: PoolError<mysql_async::Error>) -> Self {
        match error {
            PoolError::Backend(error) => Self::Mysql(error),
            other => Self::Ours(Error::new(ErrorKind::Unavailable, "no connection in time").caused_by(other)),
        }
    }
}
