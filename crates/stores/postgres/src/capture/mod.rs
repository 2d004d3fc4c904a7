//! Capture: changes of a table become messages, by triggers that are generated from a declaration.
//!
//! A [`Capture`] says which changes of a table are told and how; a [`Script`] turns captures into SQL that a person reads
//! and applies: one function and up to three triggers a table, and the SQL that removes them again.
//!
//! The triggers are `AFTER … FOR EACH ROW`: one message per row, in the order in which the statement has changed the rows,
//! inside of the transaction that changes them, and after the lock on the row that orders its messages. They are right for
//! statements of many rows, `COPY`, `INSERT … ON CONFLICT DO UPDATE` and partitions. `TRUNCATE` fires no such trigger. An
//! `UPDATE` that moves a row to another partition is, for PostgreSQL and so here, a delete and an insert.
//!
//! The function runs with the rights of whoever applies the script (`SECURITY DEFINER`, with its search path pinned), so
//! that the roles that change the table need no rights on the log; nobody else may call or attach it.

mod check;
mod script;

pub use postrider_core::capture::{Capture, DEBEZIUM_TOPIC, Operation, Payload, Source, Template};

pub use self::{check::check, script::Script};
