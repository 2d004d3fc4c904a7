//! The order service: one process that owns some customers and commits orders for them, each with its message, in one
//! transaction. About every tenth it rolls back, after the message was enqueued.
//!
//! It may be killed at any moment. It keeps nothing in memory that it could not read again from the table of orders.

use std::{
    borrow::Cow,
    fs::OpenOptions,
    hash::{BuildHasher, RandomState},
    io::{Read, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::Args;
use postrider::{Enqueue, Message, MessageId, Outbox, sqlite::Sqlite};
use rusqlite::{Connection, TransactionBehavior, params};
use serde::Serialize;

use super::{PROCESSES, files::Files};
use crate::exit::{Code, Failure, Outcome};

/// The business table. `number` counts the orders of a customer; whoever breaks the order of arrival shows by it.
pub(super) const SCHEMA: &str = "
CREATE TABLE orders (
    id       TEXT    PRIMARY KEY,
    service  INTEGER NOT NULL,
    customer TEXT    NOT NULL,
    number   INTEGER NOT NULL,
    cents    INTEGER NOT NULL,
    UNIQUE (customer, number)
) STRICT;
";

/// Runs inside an immediate transaction, so nobody else can take the same number.
const NEXT_NUMBER: &str = "SELECT coalesce(max(number), 0) + 1 FROM orders WHERE customer = ?1";

const PLACE_ORDER: &str = "INSERT INTO orders (id, service, customer, number, cents) VALUES (?1, ?2, ?3, ?4, ?5)";

/// One of so many transactions is rolled back.
const ROLL_BACK_ONE_OF: u32 = 10;

/// How long to wait for another writer before giving up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory of the run.
    #[arg(long)]
    dir: PathBuf,
    /// Which service this is.
    #[arg(long)]
    service: u32,
    /// How many customers there are; this service owns those whose number leaves `service` when divided by the services.
    #[arg(long)]
    keys: u32,
    /// How many orders this service is to have committed in the end.
    #[arg(long)]
    quota: u32,
    /// How long it thinks after each order.
    #[arg(long)]
    pause_micros: u64,
}

#[derive(Serialize)]
struct OrderPlaced {
    order: MessageId,
    customer: String,
    number: i64,
    cents: u32,
}

impl Message for OrderPlaced {
    const NAME: &'static str = "order.placed";

    fn topic(&self) -> Cow<'_, str> {
        "orders".into()
    }

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.customer.as_str().into())
    }
}

/// How many orders each service is to commit. A service without customers commits none.
pub(super) fn quotas(orders: u32, keys: u32) -> [u32; PROCESSES as usize] {
    if keys == 1 { [orders, 0] } else { [orders - orders / 2, orders / 2] }
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let parent_gone = watch_parent();
    place_orders(arguments, &parent_gone)
        .map(|()| Code::Done)
        .map_err(|error| Failure::because(Code::Problem, "the order service failed", &*error))
}

/// The parent holds the other end of standard input: when it closes, whether on purpose or because the parent is gone,
/// the work is over. So nothing is left running behind a parent that was killed.
pub(super) fn watch_parent() -> Arc<AtomicBool> {
    let gone = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&gone);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        seen.store(true, Ordering::Relaxed);
    });
    gone
}

/// Ends when the quota is committed or the parent is gone.
fn place_orders(arguments: &Arguments, parent_gone: &AtomicBool) -> Result<(), Box<dyn std::error::Error>> {
    let files = Files::of(&arguments.dir);
    let mut connection = Connection::open(files.database())?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let mut rolled_back = OpenOptions::new().create(true).append(true).open(files.rolled_back(arguments.service))?;
    let outbox = Outbox::new(Sqlite::default());
    let count = "SELECT count(*) FROM orders WHERE service = ?1";
    let mut committed: u32 = connection.query_row(count, [arguments.service], |row| row.get(0))?;

    while committed < arguments.quota && !parent_gone.load(Ordering::Relaxed) {
        let customer = format!("customer-{}", pick_customer(arguments));
        let order = MessageId::generate();
        let mut transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let number: i64 = transaction.query_row(NEXT_NUMBER, [&customer], |row| row.get(0))?;
        let cents = 100 + below(100_000);
        transaction.execute(PLACE_ORDER, params![order.to_string(), arguments.service, customer, number, cents])?;
        let message = OrderPlaced { order, customer, number, cents };
        outbox.enqueue_with(&mut transaction, &message, &Enqueue::new().id(order))?;
        if below(ROLL_BACK_ONE_OF) == 0 {
            // Noted first: a process that dies in between has rolled back as well.
            writeln!(rolled_back, "{order}")?;
            transaction.rollback()?;
        } else {
            transaction.commit()?;
            committed += 1;
        }
        thread::sleep(Duration::from_micros(arguments.pause_micros));
    }
    Ok(())
}

fn pick_customer(arguments: &Arguments) -> u32 {
    let owned = arguments.keys.saturating_sub(arguments.service).div_ceil(PROCESSES).max(1);
    below(owned) * PROCESSES + arguments.service
}

/// Any number below `bound`.
fn below(bound: u32) -> u32 {
    let random = RandomState::new().hash_one(0);
    u32::try_from(random % u64::from(bound)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_add_up_and_nobody_works_without_customers() {
        assert_eq!(quotas(1, 1), [1, 0]);
        assert_eq!(quotas(7, 1), [7, 0]);
        assert_eq!(quotas(1, 50), [1, 0]);
        assert_eq!(quotas(7, 50), [4, 3]);
    }

    #[test]
    fn a_service_has_only_its_own_customers() {
        for keys in [1, 2, 3, 50] {
            for service in 0..PROCESSES.min(keys) {
                let arguments = Arguments { dir: PathBuf::new(), service, keys, quota: 1, pause_micros: 0 };
                for _ in 0..200 {
                    let customer = pick_customer(&arguments);
                    assert!(customer < keys && customer % PROCESSES == service, "{customer} of {keys}");
                }
            }
        }
    }
}
