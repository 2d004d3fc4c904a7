//! Capture: which changes of a table become messages, as a declaration.
//!
//! For applications whose code nobody wants to touch, and for tables that other programs write too. A [`Capture`] says
//! which changes of a table are told and how. Each SQL store turns captures into triggers of its own; all of them tell one
//! message per row, inside of the transaction that changes it, and after the lock on the row that orders its messages.

mod condition;
mod debezium;
mod table;
mod template;

use self::condition::check_condition;
pub use self::{
    debezium::TOPIC as DEBEZIUM_TOPIC,
    table::{Table, check_identifier},
    template::{Piece, Template},
};
use crate::{
    error::{Error, Result},
    headers::Headers,
};

/// Which changes of one table become messages.
#[derive(Clone, Debug)]
pub struct Capture {
    table: Table,
    topic: Template,
    key: Option<String>,
    id: Option<String>,
    payload: Payload,
    headers: Vec<(String, Source)>,
    insert: Option<Operation>,
    update: Option<Operation>,
    delete: Option<Operation>,
    existing: Option<Existing>,
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
    name: Template,
    when: Option<String>,
    changed: Vec<String>,
}

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is new.
    Insert,
    /// It is changed.
    Update,
    /// It is gone.
    Delete,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Insert, Self::Update, Self::Delete];

    /// As SQL calls it.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            Self::Insert => "INSERT",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }

    /// The row that a message is about, as a trigger calls it.
    #[must_use]
    pub fn row(self) -> &'static str {
        if self == Self::Delete { "OLD" } else { "NEW" }
    }
}

/// Rows that the table has already when it is first captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The column that says in which order they were written. `None`: as they lie in the table.
    pub order_by: Option<String>,
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
        check_condition(condition)?;
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

    /// What its messages are called.
    #[must_use]
    pub fn message_name(&self) -> &Template {
        &self.name
    }

    /// The condition, if there is one.
    #[must_use]
    pub fn condition(&self) -> Option<&str> {
        self.when.as_deref()
    }

    /// The columns of which one must have changed; none: no matter which.
    #[must_use]
    pub fn changed_columns(&self) -> &[String] {
        &self.changed
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

    /// Where its messages go.
    #[must_use]
    pub fn topic_template(&self) -> &Template {
        &self.topic
    }

    /// The column of the key, if there is one.
    #[must_use]
    pub fn key_column(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The column of the message's id, if there is one.
    #[must_use]
    pub fn id_column(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// What its messages carry.
    #[must_use]
    pub fn carried(&self) -> &Payload {
        &self.payload
    }

    /// Headers and their sources.
    #[must_use]
    pub fn headers(&self) -> &[(String, Source)] {
        &self.headers
    }

    /// What is captured.
    pub fn operations(&self) -> impl Iterator<Item = (Event, &Operation)> {
        let operations = [&self.insert, &self.update, &self.delete];
        Event::ALL.into_iter().zip(operations).filter_map(|(event, operation)| Some((event, operation.as_ref()?)))
    }

    /// Whether and how the rows that are there already are taken over.
    #[must_use]
    pub fn existing(&self) -> Option<&Existing> {
        self.existing.as_ref()
    }

    /// Whether this is a whole declaration.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if it captures nothing, asks which columns of a row have changed that is new
    /// or gone, or takes rows over that it would not capture.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &'static str| Err(Error::invalid(what).with("table", &self.table));
        if self.operations().next().is_none() {
            return wrong("a capture says what is captured: insert, update or delete");
        }
        if [&self.insert, &self.delete].into_iter().flatten().any(|operation| !operation.changed.is_empty()) {
            return wrong("only an update has changed columns");
        }
        if self.existing.is_some() && self.insert.is_none() {
            return wrong("rows that exist are taken over as inserts, which this capture leaves out");
        }
        Ok(())
    }

    /// Every column that is named, each once.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
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
