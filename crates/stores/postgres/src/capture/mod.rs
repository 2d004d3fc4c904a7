//! Capture: changes of a table become messages, by triggers that are generated from a declaration.
//!
//! For applications whose code nobody wants to touch, and for tables that other programs write too. A [`Capture`] says
//! which changes of a table are told and how; a [`Script`] turns captures into SQL that a person reads and applies: one
//! function and up to three triggers a table, and the SQL that removes them again.
//!
//! The triggers are `AFTER … FOR EACH ROW`: one message per row, in the order in which the statement has changed the rows,
//! inside of the transaction that changes them, and after the lock on the row that orders its messages. They are right for
//! statements of many rows, `COPY`, `INSERT … ON CONFLICT DO UPDATE` and partitions. `TRUNCATE` fires no such trigger. An
//! `UPDATE` that moves a row to another partition is, for PostgreSQL and so here, a delete and an insert.
//!
//! The function runs with the rights of whoever applies the script (`SECURITY DEFINER`, with its search path pinned), so
//! that the roles that change the table need no rights on the log; nobody else may call or attach it.

mod check;
mod debezium;
mod script;
mod template;

use postrider_core::{Error, Result, headers::Headers};

pub use self::{check::check, debezium::TOPIC as DEBEZIUM_TOPIC, script::Script, template::Template};
use crate::quote::{Table, check_identifier};

/// Which changes of one table become messages.
#[derive(Clone, Debug)]
pub struct Capture {
    pub(crate) table: Table,
    pub(crate) topic: Template,
    pub(crate) key: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) payload: Payload,
    pub(crate) headers: Vec<(String, Source)>,
    pub(crate) insert: Option<Operation>,
    pub(crate) update: Option<Operation>,
    pub(crate) delete: Option<Operation>,
    pub(crate) existing: Option<Existing>,
}

/// What a message carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The whole row as a JSON object; of a deleted row, what it was.
    Row,
    /// Some columns of it.
    Columns(Vec<String>),
    /// `{"before": …, "after": …}`, with `null` for a row that is not there.
    BeforeAndAfter,
    /// The value of one column, as it is: bytes, text or JSON. `NULL` is an empty payload.
    Column(String),
}

/// Where the value of a header comes from. A header whose value is `NULL` is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A column, as text.
    Column(String),
    /// The W3C trace context in a column in the format of Java properties, as Debezium's `tracingspancontext` is.
    Tracing(String),
}

/// One of insert, update and delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub(crate) name: Template,
    pub(crate) when: Option<String>,
    pub(crate) changed: Vec<String>,
}

/// Rows that the table has already when it is first captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Existing {
    pub(crate) order_by: Option<String>,
}

impl Operation {
    /// Captured as a message of this name, a [`Template`].
    ///
    /// # Errors
    /// If the template is not one.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self { name: Template::parse(name)?, when: None, changed: Vec::new() })
    }

    /// Only where this SQL condition holds, as in the `WHEN` of a trigger: with `NEW` and `OLD`, without sub-queries.
    ///
    /// # Errors
    /// If parentheses or quotes in it are not closed, or if it holds a comment or a semicolon.
    pub fn when(mut self, condition: &str) -> Result<Self> {
        script::check_condition(condition)?;
        self.when = Some(condition.to_owned());
        Ok(self)
    }

    /// Only where one of these columns has changed. For updates.
    ///
    /// # Errors
    /// If one of them cannot be a column's name.
    pub fn changed(mut self, columns: &[impl AsRef<str>]) -> Result<Self> {
        self.changed = names(columns)?;
        Ok(self)
    }
}

impl Capture {
    /// Changes of a table (`schema.table`) as messages on a topic, a [`Template`]. Payload: the whole row.
    ///
    /// # Errors
    /// If one of them is not what it should be.
    pub fn new(table: &str, topic: &str) -> Result<Self> {
        Ok(Self {
            table: Table::parse(table)?,
            topic: Template::parse(topic)?,
            key: None,
            id: None,
            payload: Payload::Row,
            headers: Vec::new(),
            insert: None,
            update: None,
            delete: None,
            existing: None,
        })
    }

    /// The column whose value is the ordering key. Where it is `NULL` or empty, the message has no key.
    ///
    /// # Errors
    /// If it cannot be a column's name.
    pub fn key(mut self, column: &str) -> Result<Self> {
        check_identifier("a column", column)?;
        self.key = Some(column.to_owned());
        Ok(self)
    }

    /// The column whose value is the message's id: a UUID, also as text. Default: a fresh one.
    ///
    /// # Errors
    /// If it cannot be a column's name.
    pub fn id(mut self, column: &str) -> Result<Self> {
        check_identifier("a column", column)?;
        self.id = Some(column.to_owned());
        Ok(self)
    }

    /// What a message carries.
    ///
    /// # Errors
    /// If a column in it cannot be one, or if there is none.
    pub fn payload(mut self, payload: Payload) -> Result<Self> {
        match &payload {
            Payload::Columns(columns) if columns.is_empty() => {
                return Err(Error::invalid("a payload of columns names at least one"));
            }
            Payload::Columns(columns) => drop(names(columns)?),
            Payload::Column(column) => check_identifier("a column", column)?,
            Payload::Row | Payload::BeforeAndAfter => {}
        }
        self.payload = payload;
        Ok(self)
    }

    /// A header with its source. A value with control characters is refused, and with it the change that would tell it.
    ///
    /// # Errors
    /// If the name is not one that headers have, or is there already.
    pub fn header(mut self, name: &str, source: Source) -> Result<Self> {
        Headers::new([(name, "")])?;
        if self.headers.iter().any(|(other, _)| other == name) {
            return Err(Error::invalid("a header has one source").with("header", name));
        }
        let (Source::Column(column) | Source::Tracing(column)) = &source;
        check_identifier("a column", column)?;
        self.headers.push((name.to_owned(), source));
        Ok(self)
    }

    /// Captures inserted rows.
    #[must_use]
    pub fn on_insert(mut self, operation: Operation) -> Self {
        self.insert = Some(operation);
        self
    }

    /// Captures updated rows.
    #[must_use]
    pub fn on_update(mut self, operation: Operation) -> Self {
        self.update = Some(operation);
        self
    }

    /// Captures deleted rows.
    #[must_use]
    pub fn on_delete(mut self, operation: Operation) -> Self {
        self.delete = Some(operation);
        self
    }

    /// Takes over what the table has already, as if it were inserted now: once, when the capture is first made, under a
    /// lock that keeps writers waiting until it is done. In the order of a column, or of the rows as they lie in the table.
    ///
    /// # Errors
    /// If it cannot be a column's name.
    pub fn with_existing(mut self, order_by: Option<&str>) -> Result<Self> {
        order_by.map_or(Ok(()), |column| check_identifier("a column", column))?;
        self.existing = Some(Existing { order_by: order_by.map(str::to_owned) });
        Ok(self)
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Every column that is named.
    pub(crate) fn columns(&self) -> Vec<&str> {
        let operations = || [&self.insert, &self.update, &self.delete].into_iter().flatten();
        let mut columns: Vec<&str> = self.topic.columns().collect();
        columns.extend(operations().flat_map(|operation| operation.name.columns()));
        columns.extend(operations().flat_map(|operation| operation.changed.iter().map(String::as_str)));
        columns.extend(self.key.iter().chain(&self.id).map(String::as_str));
        columns.extend(self.existing.iter().filter_map(|existing| existing.order_by.as_deref()));
        columns
            .extend(self.headers.iter().map(|(_, Source::Column(column) | Source::Tracing(column))| column.as_str()));
        match &self.payload {
            Payload::Columns(named) => columns.extend(named.iter().map(String::as_str)),
            Payload::Column(column) => columns.push(column),
            Payload::Row | Payload::BeforeAndAfter => {}
        }
        columns.sort_unstable();
        columns.dedup();
        columns
    }
}

fn names(columns: &[impl AsRef<str>]) -> Result<Vec<String>> {
    columns.iter().try_for_each(|column| check_identifier("a column", column.as_ref()))?;
    Ok(columns.iter().map(|column| column.as_ref().to_owned()).collect())
}
