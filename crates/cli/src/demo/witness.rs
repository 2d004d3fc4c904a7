//! What was committed, by the only witness that cannot be wrong about it: the table of orders in the database. A row is
//! there if and only if its transaction committed, whatever became of the process that wrote it.

use std::{collections::HashMap, fs, str::FromStr};

use postrider::MessageId;
use postrider_testkit::checker::Enqueued;
use rusqlite::{Connection, OpenFlags};

use super::{PROCESSES, files::Files};
use crate::exit::{Code, Failure, Outcome};

/// A look at the orders while the services write them.
pub(super) struct Witness {
    connection: Connection,
}

impl Witness {
    pub(super) fn open(files: &Files) -> Outcome<Self> {
        let connection = Connection::open_with_flags(files.database(), OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|error| unreadable(&error))?;
        Ok(Self { connection })
    }

    /// Orders committed by each service.
    pub(super) fn committed(&self) -> Outcome<[u32; PROCESSES as usize]> {
        let read = || -> rusqlite::Result<HashMap<u32, u32>> {
            let mut statement =
                self.connection.prepare_cached("SELECT service, count(*) FROM orders GROUP BY service")?;
            statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        };
        let counts = read().map_err(|error| unreadable(&error))?;
        Ok([0, 1].map(|service| counts.get(&service).copied().unwrap_or(0)))
    }

    fn orders(&self) -> rusqlite::Result<Vec<(String, String, u32)>> {
        let mut statement = self.connection.prepare("SELECT id, customer, number FROM orders")?;
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
    }
}

/// Every message that is known to have been enqueued, with the fate of its transaction. One that a kill cut off before
/// anybody wrote it down is not among them; if it arrives all the same, it is a ghost.
pub(super) fn enqueued(files: &Files) -> Outcome<Vec<Enqueued>> {
    let orders = Witness::open(files)?.orders().map_err(|error| unreadable(&error))?;
    let mut enqueued = Vec::new();
    for (id, customer, sequence) in orders {
        let id = MessageId::from_str(&id)?;
        enqueued.push(Enqueued { id, key: Some(customer), sequence: sequence.into(), committed: true });
    }
    for service in 0..PROCESSES {
        // A service that never ran wrote no file. A line that was cut off by a kill is no id.
        let noted = fs::read_to_string(files.rolled_back(service)).unwrap_or_default();
        let ids = noted.lines().filter_map(|line| MessageId::from_str(line).ok());
        enqueued.extend(ids.map(|id| Enqueued { id, key: None, sequence: 0, committed: false }));
    }
    Ok(enqueued)
}

fn unreadable(error: &rusqlite::Error) -> Failure {
    Failure::because(Code::Problem, "the orders cannot be read", error)
}
