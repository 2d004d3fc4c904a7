//! [`DebeziumOutbox`]: an outbox for people who keep Debezium. Same calls, another table.
//!
//! Where Debezium's event router carries the messages, an application writes into the router's table instead of our log,
//! with the same `outbox.enqueue(&mut transaction, …)` and the same promise: the row commits with the data, or not at all.
//! The row is the router's contract and nothing of ours goes with it, so what the table has no column for is refused
//! rather than dropped. The other way round, a relay of ours for such a table, is [`capture`](crate::capture).

use std::sync::Arc;

use postrider_core::{
    Error, ErrorKind, Result,
    capture::{Table, check_identifier},
    envelope::Envelope,
    headers::{self, Headers},
    key::OrderingKey,
};

use crate::{
    enlist::{self, Array, Column, Kind, Layout},
    quote::identifier,
};

/// The `S` of [`Enlist<S>`](postrider_core::enlist::Enlist) for a table that Debezium's event router reads. Cheap to clone.
///
/// A message's id, topic, key, name and payload go into the columns `id`, `aggregatetype`, `aggregateid`, `type` and
/// `payload`; the names can be changed. A message without a key has `NULL` there. Delivery times, expiry and a number of
/// attempts are nothing that the router knows: a message that has one is refused, and so is a header without a column.
///
/// ```
/// use postrider_store_postgres::{DebeziumOutbox, PayloadType};
/// let outbox = DebeziumOutbox::new("public.outbox")?
///     .payload_column("payload", PayloadType::Bytea)?
///     .header_column("tenant", "tenant_id")?
///     .tracing_column("tracingspancontext")?;
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct DebeziumOutbox(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    table: Table,
    id: String,
    aggregate_type: String,
    aggregate_id: String,
    name: String,
    payload: (String, PayloadType),
    tracing: Option<String>,
    headers: Vec<(String, String)>,
    insert: String,
    insert_marked: String,
}

/// The type of the column of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadType {
    /// `jsonb`: the payload must be JSON. The default.
    Jsonb,
    /// `json`: the payload must be JSON.
    Json,
    /// `text` or `varchar`: the payload must be text in UTF-8.
    Text,
    /// `bytea`: any payload.
    Bytea,
}

impl DebeziumOutbox {
    /// The router's table (`schema.table`), with the columns that Debezium documents.
    ///
    /// # Errors
    /// If it is not a table's name with its schema.
    pub fn new(table: &str) -> Result<Self> {
        let inner = Inner {
            table: Table::parse(table)?,
            id: "id".to_owned(),
            aggregate_type: "aggregatetype".to_owned(),
            aggregate_id: "aggregateid".to_owned(),
            name: "type".to_owned(),
            payload: ("payload".to_owned(), PayloadType::Jsonb),
            tracing: None,
            headers: Vec::new(),
            insert: String::new(),
            insert_marked: String::new(),
        };
        inner.checked()
    }

    /// The column of the message's id, a `uuid`. Default `id`.
    ///
    /// # Errors
    /// If it cannot be a column's name, or is one already.
    pub fn id_column(self, column: &str) -> Result<Self> {
        self.changed(|inner| inner.id = column.to_owned())
    }

    /// The column of the topic. Default `aggregatetype`.
    ///
    /// # Errors
    /// As [`Self::id_column`].
    pub fn aggregate_type_column(self, column: &str) -> Result<Self> {
        self.changed(|inner| inner.aggregate_type = column.to_owned())
    }

    /// The column of the key. Default `aggregateid`.
    ///
    /// # Errors
    /// As [`Self::id_column`].
    pub fn aggregate_id_column(self, column: &str) -> Result<Self> {
        self.changed(|inner| inner.aggregate_id = column.to_owned())
    }

    /// The column of the name. Default `type`.
    ///
    /// # Errors
    /// As [`Self::id_column`].
    pub fn type_column(self, column: &str) -> Result<Self> {
        self.changed(|inner| inner.name = column.to_owned())
    }

    /// The column of the payload, and its type. Default `payload`, [`PayloadType::Jsonb`].
    ///
    /// # Errors
    /// As [`Self::id_column`].
    pub fn payload_column(self, column: &str, ty: PayloadType) -> Result<Self> {
        self.changed(|inner| inner.payload = (column.to_owned(), ty))
    }

    /// A text column for a header: what Debezium places with `table.fields.additional.placement`.
    ///
    /// # Errors
    /// As [`Self::id_column`], or if it is not the name of a header.
    pub fn header_column(self, header: &str, column: &str) -> Result<Self> {
        Headers::new([(header, "")])?;
        self.changed(|inner| inner.headers.push((header.to_owned(), column.to_owned())))
    }

    /// The column in which Debezium looks for the trace context, `tracingspancontext` unless it is told otherwise. The
    /// headers `traceparent` and `tracestate` go there.
    ///
    /// # Errors
    /// As [`Self::id_column`].
    pub fn tracing_column(self, column: &str) -> Result<Self> {
        self.changed(|inner| inner.tracing = Some(column.to_owned()))
    }

    fn changed(self, change: impl FnOnce(&mut Inner)) -> Result<Self> {
        let mut inner = Arc::unwrap_or_clone(self.0);
        change(&mut inner);
        inner.checked()
    }
}

impl Inner {
    /// Checks the names and writes the statements.
    fn checked(mut self) -> Result<DebeziumOutbox> {
        let columns = self.columns();
        for (index, (column, ..)) in columns.iter().enumerate() {
            check_identifier("a column", column)?;
            if columns[..index].iter().any(|(other, ..)| other == column) {
                return Err(Error::invalid("a column holds one thing").with("column", column));
            }
        }
        let column = |(name, kind, conversion): (&str, _, _)| Column { name: identifier(name), kind, conversion };
        let columns: Vec<Column> = columns.into_iter().map(column).collect();
        let table = self.table.to_string();
        let (insert, marked) = (enlist::insert(&table, &columns, false), enlist::insert(&table, &columns, true));
        (self.insert, self.insert_marked) = (insert, marked);
        Ok(DebeziumOutbox(Arc::new(self)))
    }

    /// In the order of the arrays.
    fn columns(&self) -> Vec<(&str, Kind, &'static str)> {
        let payload = match self.payload.1 {
            PayloadType::Bytea => "$",
            PayloadType::Text => "convert_from($, 'UTF8')",
            PayloadType::Json => "convert_from($, 'UTF8')::json",
            PayloadType::Jsonb => "convert_from($, 'UTF8')::jsonb",
        };
        let mut columns = vec![
            (self.id.as_str(), Kind::Id, "$"),
            (&self.aggregate_type, Kind::Text, "$"),
            (&self.aggregate_id, Kind::Text, "$"),
            (&self.name, Kind::Text, "$"),
            (&self.payload.0, Kind::Bytes, payload),
        ];
        columns.extend(self.tracing.iter().map(|column| (column.as_str(), Kind::Text, "$")));
        columns.extend(self.headers.iter().map(|(_, column)| (column.as_str(), Kind::Text, "$")));
        columns
    }

    /// What goes into the columns of headers: first that of the trace context, if there is one.
    fn headers(&self, envelope: &Envelope) -> Result<Vec<Option<String>>> {
        let given = envelope.headers.decode()?;
        let traces = |name: &str| name == headers::TRACEPARENT || name == headers::TRACESTATE;
        let has_column = |name: &str| self.headers.iter().any(|(header, _)| header == name);
        for (name, _) in &given {
            let held = has_column(name) || (self.tracing.is_some() && traces(name));
            if !held {
                return Err(refused("the outbox table has no column for this header").with("header", name));
            }
        }
        let mut values = Vec::new();
        if self.tracing.is_some() {
            // The format of Java properties, as Debezium reads it.
            let lines = given.iter().filter(|(name, _)| traces(name) && !has_column(name));
            let text: String = lines.map(|(name, value)| format!("{name}={value}\n")).collect();
            values.push((!text.is_empty()).then_some(text));
        }
        let value = |header: &str| given.iter().find(|(name, _)| name == header).map(|(_, value)| value.clone());
        values.extend(self.headers.iter().map(|(header, _)| value(header)));
        Ok(values)
    }
}

impl Layout for DebeziumOutbox {
    fn insert(&self) -> &str {
        &self.0.insert
    }

    fn insert_marked(&self) -> &str {
        &self.0.insert_marked
    }

    fn arrays<'e>(&'e self, batch: &'e [Envelope]) -> Result<Vec<Array<'e>>> {
        let mut headers: Vec<Vec<Option<String>>> = Vec::new();
        for envelope in batch {
            let named = |error: Error| error.with("message_id", envelope.id);
            representable(envelope).map_err(named)?;
            for (index, value) in self.0.headers(envelope).map_err(named)?.into_iter().enumerate() {
                if headers.len() == index {
                    headers.push(Vec::with_capacity(batch.len()));
                }
                headers[index].push(value);
            }
        }
        let mut arrays = vec![
            Array::Ids(batch.iter().map(|envelope| envelope.id.0).collect()),
            Array::Texts(batch.iter().map(|envelope| Some(&*envelope.topic)).collect()),
            Array::Texts(batch.iter().map(|envelope| envelope.key.as_ref().map(OrderingKey::as_str)).collect()),
            Array::Texts(batch.iter().map(|envelope| Some(&*envelope.name)).collect()),
            Array::Bytes(batch.iter().map(|envelope| Some(envelope.payload.as_ref())).collect()),
        ];
        arrays.extend(headers.into_iter().map(Array::OwnedTexts));
        Ok(arrays)
    }
}

fn representable(envelope: &Envelope) -> Result<()> {
    let unknown = [
        (envelope.deliver_at.is_some(), "deliver_at"),
        (envelope.expires_at.is_some(), "expires_at"),
        (envelope.attempts_max.is_some(), "attempts_max"),
    ];
    match unknown.into_iter().find(|(set, _)| *set) {
        Some((_, what)) => Err(refused("Debezium's event router knows nothing of this").with("set", what)),
        None => Ok(()),
    }
}

fn refused(what: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use postrider_core::time::Timestamp;

    use super::*;

    fn refused_with(outbox: &DebeziumOutbox, change: impl FnOnce(&mut Envelope)) -> String {
        let mut envelope = Envelope::new("order", "OrderCreated", "{}");
        change(&mut envelope);
        let error = outbox.arrays(std::slice::from_ref(&envelope)).map(|arrays| arrays.len()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        error.to_string()
    }

    #[test]
    fn what_the_table_cannot_hold_is_refused() {
        let outbox = DebeziumOutbox::new("public.outbox").unwrap();
        let at = Some(Timestamp::from_micros(1));
        assert!(refused_with(&outbox, |e| e.deliver_at = at).contains("deliver_at"));
        assert!(refused_with(&outbox, |e| e.expires_at = at).contains("expires_at"));
        assert!(refused_with(&outbox, |e| e.attempts_max = Some(3)).contains("attempts_max"));
        let tenant = Headers::new([("tenant", "acme")]).unwrap();
        assert!(refused_with(&outbox, |e| e.headers = tenant).contains("header: tenant"));
        let trace = Headers::new([("traceparent", "00")]).unwrap();
        assert!(refused_with(&outbox, |e| e.headers = trace).contains("header: traceparent"));
    }

    #[test]
    fn names_are_checked() {
        let outbox = || DebeziumOutbox::new("public.outbox").unwrap();
        assert!(DebeziumOutbox::new("outbox").is_err());
        assert!(outbox().id_column("").is_err());
        assert!(outbox().type_column("payload").is_err(), "one column for two things");
        assert!(outbox().header_column("Tenant", "tenant").is_err());
        assert!(outbox().tracing_column("x\"; DROP").unwrap().insert().contains("\"x\"\"; DROP\""));
    }
}
