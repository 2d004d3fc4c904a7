//! Which server a connection leads to, and whether a lease was taken there.
//!
//! A fail-over to a replica that lags, or a crash of a machine that does not write every commit through, takes the last commits
//! back, and the last places with them: they are given again, to other messages. An owner that went on from its place in memory
//! would pass over those. So a lease counts only where it was taken: on the same server, and since that was started. Whoever
//! meets another one is fenced, takes the lane again, and begins at the place that the database has. A restart that has lost
//! nothing costs that as well, and no more.
//!
//! A proxy can lead a connection that it keeps open to another server. Whoever is about to rely on a place therefore asks
//! again who answers ([`crate::db::Db::standing`]). A restart behind such a proxy is not seen by that, and neither are two in one
//! second; a place that was never given is.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use mysql_async::{Conn, prelude::Queryable};
use postrider_core::{
    Error,
    lease::{Epoch, LaneId, Lease},
};

/// Two servers of one replication differ in it. It does not tell a restart.
pub(crate) const NAME: &str = "CONCAT_WS(' ', @@server_id, @@hostname, @@port)";

/// Both times are those of the statement, so the difference is what the server noted when it started, to the second, however
/// its clock is set meanwhile. Anybody may ask it.
const IDENTITY: &str = "
SELECT {name}, CAST(UNIX_TIMESTAMP() AS SIGNED) - CAST(variable_value AS SIGNED)
  FROM {status}.global_status
 WHERE variable_name = 'Uptime'";

/// One server, from one start to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// As [`NAME`] has it.
    pub(crate) name: String,
    /// Seconds since 1970, by its own clock. 0 where the server does not tell.
    started_at: i64,
}

/// Of the two kinds of server.
pub(crate) async fn is_mariadb(connection: &mut Conn) -> mysql_async::Result<bool> {
    let version: Option<String> = connection.query_first("SELECT VERSION()").await?;
    Ok(version.is_some_and(|version| version.to_ascii_lowercase().contains("mariadb")))
}

impl Identity {
    pub(crate) async fn of(connection: &mut Conn, is_mariadb: bool) -> mysql_async::Result<Self> {
        let status = if is_mariadb { "information_schema" } else { "performance_schema" };
        let sql = IDENTITY.replace("{name}", NAME).replace("{status}", status);
        let (name, started_at) = connection.query_first::<(String, i64), _>(sql).await?.unwrap_or_default();
        Ok(Self { name, started_at })
    }
}

/// The leases that this process has taken, and where: the last of each lane.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<HashMap<LaneId, (Epoch, Identity)>>);

impl Leases {
    pub(crate) fn note(&self, lease: &Lease, taken_at: &Identity) {
        self.all().insert(lease.lane.clone(), (lease.epoch, taken_at.clone()));
    }

    pub(crate) fn forget(&self, lease: &Lease) {
        let mut all = self.all();
        if all.get(&lease.lane).is_some_and(|(epoch, _)| *epoch == lease.epoch) {
            all.remove(&lease.lane);
        }
    }

    /// Fails if the lease was taken elsewhere. One that is not known here is left to its epoch.
    pub(crate) fn check(&self, lease: &Lease, here: &Identity) -> Result<(), Error> {
        match self.all().get(&lease.lane) {
            Some((epoch, taken_at)) if *epoch == lease.epoch && taken_at != here => Err(Error::fenced()),
            _ => Ok(()),
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<LaneId, (Epoch, Identity)>> {
        // Nothing that is done under the lock leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider_core::{
        lease::{Order, Reader},
        topic::TopicFilter,
    };

    use super::*;

    fn lease(epoch: u64) -> Lease {
        let reader = Reader { topics: TopicFilter::all(), order: Order::Key, replay: None };
        let lane = LaneId { route: "r".into(), number: 0 };
        Lease { lane, lanes: 1, epoch: Epoch(epoch), reader: Arc::new(reader) }
    }

    #[test]
    fn a_lease_counts_where_it_was_taken() {
        let server = |name: &str, started_at| Identity { name: name.to_owned(), started_at };
        let (here, leases) = (server("1 a 3306", 7), Leases::default());
        leases.note(&lease(1), &here);
        leases.check(&lease(1), &here).unwrap();
        for elsewhere in [server("2 b 3306", 7), server("1 a 3306", 8)] {
            assert!(leases.check(&lease(1), &elsewhere).unwrap_err().is_fenced());
            leases.check(&lease(2), &elsewhere).unwrap();
        }
        leases.note(&lease(2), &server("1 a 3306", 8));
        leases.forget(&lease(1));
        assert!(leases.check(&lease(2), &here).unwrap_err().is_fenced(), "the later one is not forgotten with it");
        leases.forget(&lease(2));
        leases.check(&lease(2), &here).unwrap();
    }
}
