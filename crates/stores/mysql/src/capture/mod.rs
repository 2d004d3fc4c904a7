//! Capture: changes of a table become messages, by triggers that are generated from a declaration.
//!
//! A [`Capture`] says which changes of a table are told and how; a [`Script`] turns captures into SQL that a person reads
//! and applies: up to three triggers a table, and the SQL that removes them again. A whole row as payload needs the names
//! of its columns, which [`Tables`] looks up: unlike PostgreSQL, these servers cannot turn a row into JSON by themselves.
//!
//! The triggers are `AFTER … FOR EACH ROW`: one message per row, in the order in which the statement changes the rows,
//! inside of the transaction that changes them, and after the lock on the row that orders its messages. They run with the
//! rights of whoever applies the script, so that whoever changes the table needs none on the log. `REPLACE` is a delete and
//! an insert; `INSERT … ON DUPLICATE KEY UPDATE` is what it does to the row. Neither `TRUNCATE` nor what a foreign key
//! cascades fires a trigger.

mod columns;
mod script;

pub use postrider_core::capture::{Capture, DEBEZIUM_TOPIC, Operation, Payload, Source, Table, Template};

pub use self::{
    columns::{Column, Kind, Tables},
    script::Script,
};
