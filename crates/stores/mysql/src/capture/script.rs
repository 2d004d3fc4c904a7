//! Captures as SQL: what makes the triggers, and what removes them.
//!
//! Both scripts can be applied again: what is there is replaced. A statement that makes or drops a trigger commits by
//! itself here, so between the two there is a moment without: apply it while nobody changes the table, or take what was
//! changed meanwhile into account.

use std::fmt::Write;

use postrider_core::{
    Error, Result,
    capture::{Capture, Event, Operation, Payload, Piece, Source, Template},
};

use super::{Column, Kind, Tables};
use crate::dialect::Mysql;

/// Tables of a store that must not be captured: a message about each message would never end.
const OWN: [&str; 10] =
    ["pending", "log", "ordering", "counter", "route", "lane", "node", "parked", "audit", "migration"];

/// The server cuts nothing, it refuses longer names.
const NAME_BYTES_MAX: usize = 64;

/// What a trigger remembers of the session that makes it: texts that can hold everything, and no value that is cut to fit.
const SESSION: &str = "SET NAMES utf8mb4;\nSET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';\n";

/// Captures of one store, checked, and their SQL.
///
/// ```
/// use postrider_store_mysql::{Mysql, capture::{Capture, Operation, Payload, Script}};
/// let orders = Capture::new("shop.orders", "orders")?
///     .key("id")?
///     .payload(Payload::Columns(vec!["id".into(), "total".into()]))?
///     .on_insert(Operation::named("order.placed")?);
/// let script = Script::new(&Mysql::default(), None, vec![orders], None)?;
/// assert!(script.create().contains("AFTER INSERT ON `shop`.`orders`"));
/// assert!(script.remove().contains("DROP TRIGGER IF EXISTS"));
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    dialect: Mysql,
    database: Option<String>,
    captures: Vec<(Capture, Vec<Column>)>,
}

impl Script {
    /// Captures into the log of a store, which is in another database than the tables if one is named.
    ///
    /// # Errors
    /// If there is none, if one captures nothing or the store's own tables, if two are of the same table, if a payload is
    /// the whole row and nobody has looked up what it has, or if rows that exist are to be taken over.
    pub fn new(
        dialect: &Mysql,
        database: Option<&str>,
        captures: Vec<Capture>,
        tables: Option<&Tables>,
    ) -> Result<Self> {
        if captures.is_empty() {
            return Err(Error::invalid("there is nothing to capture; name at least one table"));
        }
        let mut checked: Vec<(Capture, Vec<Column>)> = Vec::new();
        for capture in captures {
            let columns = tables.map(|tables| tables.columns(capture.table()).to_vec()).unwrap_or_default();
            let wrong = |what: &'static str| Err(Error::invalid(what).with("table", capture.table()));
            capture.check()?;
            if capture.existing().is_some() {
                return wrong(
                    "rows that exist cannot be taken over here: insert them into the log yourself, then make the triggers",
                );
            }
            if matches!(capture.carried(), Payload::Row | Payload::BeforeAndAfter) && columns.is_empty() {
                return wrong(
                    "a whole row needs the names of its columns: name them, or let them be looked up (--check URL)",
                );
            }
            let own = capture.table().name().strip_prefix(dialect.prefix()).unwrap_or_default();
            if OWN.contains(&own) && database.is_none_or(|database| database == capture.table().schema()) {
                return wrong("this table is the store's own; messages about messages would never end");
            }
            if checked.iter().any(|(other, _)| other.table() == capture.table()) {
                return wrong("a table is captured once; routes choose who gets the messages");
            }
            checked.push((capture, columns));
        }
        Ok(Self { dialect: dialect.clone(), database: database.map(str::to_owned), captures: checked })
    }

    /// The SQL that makes the triggers, or replaces them by these.
    #[must_use]
    pub fn create(&self) -> String {
        let mut sql = format!(
            "-- Changes become messages in {}. Apply it with the right to make triggers, to enqueue, and to read the tables.\n\
             {SESSION}",
            self.log()
        );
        for (capture, columns) in &self.captures {
            let table = quoted_table(capture);
            let _ = writeln!(sql, "\n-- {table}");
            self.drop_triggers(capture, &mut sql);
            for (event, operation) in capture.operations() {
                let _ = writeln!(
                    sql,
                    "CREATE TRIGGER {} AFTER {} ON {table} FOR EACH ROW\n{};",
                    self.trigger(capture, event),
                    event.sql(),
                    self.insert(capture, columns, event, operation)
                );
            }
        }
        sql
    }

    /// The SQL that removes the triggers. Messages that were captured stay.
    #[must_use]
    pub fn remove(&self) -> String {
        let mut sql = String::new();
        self.captures.iter().for_each(|(capture, _)| self.drop_triggers(capture, &mut sql));
        sql
    }

    /// One statement, so that no client needs to be told where it ends.
    fn insert(&self, capture: &Capture, columns: &[Column], event: Event, operation: &Operation) -> String {
        let row = event.row();
        let mut fields = vec![
            ("topic", expression(capture.topic_template(), row)),
            ("name", expression(operation.message_name(), row)),
            ("payload", payload(capture.carried(), columns, event)),
        ];
        if let Some(key) = capture.key_column() {
            fields.push(("`key`", format!("NULLIF({}, '')", text(row, key))));
        }
        if !capture.headers().is_empty() {
            let pairs: Vec<String> = capture.headers().iter().map(|(name, source)| header(name, source, row)).collect();
            // A patch takes out what is null.
            fields.push(("headers", format!("JSON_MERGE_PATCH('{{}}', JSON_OBJECT({}))", pairs.join(", "))));
        }
        if let Some(id) = capture.id_column() {
            let id = format!("{row}.{}", identifier(id));
            // As bytes on both sides: MySQL would make text of them where the column is text.
            let bytes = format!("CAST({id} AS BINARY)");
            fields.push(("id", format!("IF(LENGTH({id}) = 16, {bytes}, UNHEX(REPLACE({id}, '-', '')))")));
        }
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let values: Vec<&str> = fields.iter().map(|(_, value)| value.as_str()).collect();
        let into = format!("INSERT INTO {} ({})", self.log(), names.join(", "));
        match condition(operation) {
            None => format!("{into}\nVALUES (\n    {})", values.join(",\n    ")),
            Some(condition) => format!("{into}\nSELECT {}\n  FROM DUAL WHERE {condition}", values.join(",\n       ")),
        }
    }

    fn log(&self) -> String {
        let log = identifier(&format!("{}log", self.dialect.prefix()));
        self.database.as_deref().map_or_else(|| log.clone(), |database| format!("{}.{log}", identifier(database)))
    }

    fn drop_triggers(&self, capture: &Capture, sql: &mut String) {
        for event in Event::ALL {
            let _ = writeln!(sql, "DROP TRIGGER IF EXISTS {};", self.trigger(capture, event));
        }
    }

    /// The same for the same table, another one for every other, and short enough.
    fn trigger(&self, capture: &Capture, event: Event) -> String {
        let (table, prefix) = (capture.table(), self.dialect.prefix());
        let hash = xxhash_rust::xxh3::xxh3_64(format!("{}\0{}", table.schema(), table.name()).as_bytes()) >> 32;
        let behind = format!("_{hash:08x}_{}", event.sql().to_lowercase());
        let before = format!("{prefix}c_");
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        let room = NAME_BYTES_MAX.saturating_sub(before.len() + behind.len());
        let stem: String = table.name().chars().map(plain).take(room).collect();
        let name: String = format!("{before}{stem}{behind}");
        format!("{}.{}", identifier(table.schema()), identifier(&name))
    }
}

fn quoted_table(capture: &Capture) -> String {
    format!("{}.{}", identifier(capture.table().schema()), identifier(capture.table().name()))
}

fn payload(payload: &Payload, columns: &[Column], event: Event) -> String {
    let row = event.row();
    match payload {
        Payload::Row => object(columns, row),
        Payload::Columns(named) => {
            let known = |name: &String| {
                let plain = Column { name: name.clone(), kind: Kind::Plain };
                columns.iter().find(|column| column.name == *name).cloned().unwrap_or(plain)
            };
            object(&named.iter().map(known).collect::<Vec<_>>(), row)
        }
        Payload::BeforeAndAfter => {
            let of = |there: bool, row: &str| if there { object(columns, row) } else { "NULL".to_owned() };
            let (before, after) = (of(event != Event::Insert, "OLD"), of(event != Event::Delete, "NEW"));
            format!("JSON_OBJECT('before', {before}, 'after', {after})")
        }
        Payload::Column(column) => {
            let column = format!("{row}.{}", identifier(column));
            format!("COALESCE({column}, '')")
        }
    }
}

fn object(columns: &[Column], row: &str) -> String {
    let pairs = columns.iter().map(|column| {
        let value = format!("{row}.{}", identifier(&column.name));
        let value = match column.kind {
            Kind::Plain => value,
            Kind::Json => format!("JSON_EXTRACT({value}, '$')"),
            Kind::Bytes => format!("LOWER(HEX({value}))"),
            Kind::Bits => format!("{value} + 0"),
            Kind::Shape => format!("JSON_EXTRACT(ST_AsGeoJSON({value}), '$')"),
        };
        format!("{}, {value}", literal(&column.name))
    });
    format!("JSON_OBJECT({})", pairs.collect::<Vec<_>>().join(", "))
}

/// A template as an expression over the columns of a row (`NEW` or `OLD`).
fn expression(template: &Template, row: &str) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => literal(text),
        Piece::Column(column) => text(row, column),
    };
    let pieces: Vec<String> = template.pieces().iter().map(piece).collect();
    if let [one] = pieces.as_slice() { one.clone() } else { format!("CONCAT({})", pieces.join(", ")) }
}

fn text(row: &str, column: &str) -> String {
    format!("CAST({row}.{} AS CHAR CHARACTER SET utf8mb4)", identifier(column))
}

fn header(name: &str, source: &Source, row: &str) -> String {
    let value = match source {
        Source::Column(column) => text(row, column),
        Source::Tracing(column) => {
            let lines = format!("CONCAT('\\n', REPLACE({}, '\\r', ''))", text(row, column));
            format!(
                "IF({lines} LIKE '%\\ntraceparent=%', \
                 SUBSTRING_INDEX(SUBSTRING_INDEX({lines}, '\\ntraceparent=', -1), '\\n', 1), NULL)"
            )
        }
    };
    format!("{}, {value}", literal(name))
}

fn condition(operation: &Operation) -> Option<String> {
    let changed: Vec<String> = operation
        .changed_columns()
        .iter()
        .map(|column| format!("NOT (OLD.{0} <=> NEW.{0})", identifier(column)))
        .collect();
    let mut parts: Vec<String> = Vec::new();
    if !changed.is_empty() {
        parts.push(format!("({})", changed.join(" OR ")));
    }
    parts.extend(operation.condition().iter().map(|when| format!("({when})")));
    (!parts.is_empty()).then(|| parts.join(" AND "))
}

/// `` `name` ``.
fn identifier(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// `'text'`, in a session whose mode we set.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(table: &str) -> Capture {
        let columns = Payload::Columns(vec!["id".to_owned()]);
        let capture = Capture::new(table, "orders").unwrap().payload(columns).unwrap();
        capture.on_insert(Operation::named("order.placed").unwrap())
    }

    fn refused(captures: Vec<Capture>) -> String {
        Script::new(&Mysql::default(), None, captures, None).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(refused(Vec::new()).contains("nothing to capture"));
        assert!(refused(vec![Capture::new("a.b", "t").unwrap()]).contains("insert, update or delete"));
        assert!(refused(vec![capture("a.b"), capture("a.b")]).contains("captured once"));
        assert!(refused(vec![capture("a.postrider_log")]).contains("the store's own"));
        assert!(refused(vec![capture("a.b").payload(Payload::Row).unwrap()]).contains("names of its columns"));
        assert!(refused(vec![capture("a.b").with_existing(None).unwrap()]).contains("rows that exist"));
    }

    #[test]
    fn names_are_short_enough_and_nothing_escapes_its_quotes() {
        let prefix = format!("{}_", "p".repeat(40));
        let long = capture(&format!("shop.{}", "ü".repeat(31)));
        let script =
            Script::new(&Mysql::with_prefix(&prefix).unwrap(), Some("o`dd"), vec![long.clone()], None).unwrap();
        let name = script.trigger(&long, Event::Insert);
        let name = name.split_once('.').unwrap().1.trim_matches('`');
        assert!(name.len() <= NAME_BYTES_MAX, "{name}");
        assert!(script.create().contains("INSERT INTO `o``dd`.`"), "{}", script.create());
        assert_eq!(literal("it's \\"), "'it''s \\\\'");
    }
}
