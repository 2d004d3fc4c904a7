//! Captures as SQL: what makes the triggers, and what removes them.
//!
//! Both scripts are one transaction each and can be applied again: what is there is replaced. Before a trigger is made, the
//! expressions of its function are checked against the table, so that a column that does not exist, or has a type that is
//! no payload, fails the script and not the application's next write.

use std::fmt::Write;

use postrider_core::{
    Error, Result,
    capture::{Capture, Event, Operation, Payload, Piece, Source, Template},
};

use crate::{
    dialect::Postgres,
    locked::BOUNDED,
    quote::{IDENTIFIER_BYTES_MAX, body, identifier, literal},
};

/// Tables of a store that must not be captured: a message about each message would never end.
const OWN: [&str; 9] = ["log", "setting", "route", "lane", "checkpoint", "node", "parked", "audit", "migration"];

/// Room behind a function's name for the name of its triggers.
const TRIGGER_SUFFIX_BYTES: usize = "_insert".len();

/// What a capture's function has for a comment once the rows that were there are told. It goes with the function.
const TAKEN_OVER: &str = "postrider: the rows that were there have been taken over";

/// Captures of one store, checked, and their SQL.
///
/// ```
/// use postrider_store_postgres::{Postgres, capture::{Capture, Operation, Script}};
/// let orders = Capture::new("public.orders", "orders")?.key("id")?.on_insert(Operation::named("order.placed")?);
/// let script = Script::new(&Postgres::default(), vec![orders])?;
/// assert!(script.create().contains("AFTER INSERT ON \"public\".\"orders\""));
/// assert!(script.remove().contains("DROP TRIGGER IF EXISTS"));
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Script {
    dialect: Postgres,
    captures: Vec<Capture>,
}

impl Script {
    /// Captures into the log of a store.
    ///
    /// # Errors
    /// If there is none, if one captures nothing or the store's own tables, or if two are of the same table.
    pub fn new(dialect: &Postgres, captures: Vec<Capture>) -> Result<Self> {
        if captures.is_empty() {
            return Err(Error::invalid("there is nothing to capture; name at least one table"));
        }
        for (index, capture) in captures.iter().enumerate() {
            let wrong = |what: &'static str| Err(Error::invalid(what).with("table", capture.table()));
            capture.check()?;
            let own = capture.table().name().strip_prefix(dialect.prefix()).unwrap_or_default();
            if capture.table().schema() == dialect.schema() && (OWN.contains(&own) || own.starts_with("log_")) {
                return wrong("this table is the store's own; messages about messages would never end");
            }
            if captures[..index].iter().any(|other| other.table() == capture.table()) {
                return wrong("a table is captured once; routes choose who gets the messages");
            }
        }
        Ok(Self { dialect: dialect.clone(), captures })
    }

    /// The captures.
    #[must_use]
    pub fn captures(&self) -> &[Capture] {
        &self.captures
    }

    pub(super) fn dialect(&self) -> &Postgres {
        &self.dialect
    }

    /// The SQL that makes the triggers, or replaces them by these.
    #[must_use]
    pub fn create(&self) -> String {
        let mut sql = format!(
            "-- Changes become messages in {}. Apply it as the owner of the tables, with the right to enqueue:\n\
             -- psql --set=ON_ERROR_STOP=1 --file=THIS_FILE\n\
             BEGIN ISOLATION LEVEL READ COMMITTED;\n{BOUNDED}",
            self.dialect.render("{log}")
        );
        self.captures.iter().for_each(|capture| self.create_one(capture, &mut sql));
        sql.push_str("COMMIT;\n");
        sql
    }

    /// The SQL that removes the triggers. Messages that were captured stay.
    #[must_use]
    pub fn remove(&self) -> String {
        let mut sql = format!("BEGIN;\n{BOUNDED}");
        for capture in &self.captures {
            self.drop_triggers(capture, &mut sql);
            let _ = writeln!(sql, "DROP FUNCTION IF EXISTS {} ();", self.function(capture));
        }
        sql.push_str("COMMIT;\n");
        sql
    }

    fn create_one(&self, capture: &Capture, sql: &mut String) {
        let (function, table, existing) = (self.function(capture), capture.table(), self.existing(capture));
        let branches = capture.operations().map(|(event, operation)| {
            format!(
                "    IF TG_OP = '{}' THEN\n        PERFORM {};\n    END IF;\n",
                event.sql(),
                self.call(capture, event, operation)
            )
        });
        let code = format!("BEGIN\n{}    RETURN NULL;\nEND\n", branches.collect::<String>());
        let _ = write!(
            sql,
            "\n-- {table}\n{}{}CREATE OR REPLACE FUNCTION {function} () RETURNS trigger\n\
             LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS {};\n\
             REVOKE ALL ON FUNCTION {function} () FROM PUBLIC;\n{}",
            self.check(capture),
            existing,
            body(&code),
            if existing.is_empty() {
                String::new()
            } else {
                format!("COMMENT ON FUNCTION {function} () IS {};\n", literal(TAKEN_OVER))
            }
        );
        self.drop_triggers(capture, sql);
        for (event, operation) in capture.operations() {
            let _ = writeln!(
                sql,
                "CREATE TRIGGER {} AFTER {} ON {table}\n    FOR EACH ROW {}EXECUTE FUNCTION {function} ();",
                self.trigger(capture, event),
                event.sql(),
                condition(operation)
            );
        }
    }

    /// The expressions of the function, on no row: whether they fit the table.
    fn check(&self, capture: &Capture) -> String {
        let table = capture.table();
        let calls = capture.operations().map(|(event, operation)| {
            format!(
                "    PERFORM {}\n       FROM {table} AS NEW, {table} AS OLD WHERE false;\n",
                self.call(capture, event, operation)
            )
        });
        format!("DO {};\n", body(&format!("BEGIN\n{}END\n", calls.collect::<String>())))
    }

    /// What is there already. The lock comes first: then nobody else can have made the trigger, or be writing, meanwhile. Of a
    /// table that is captured without its former rows nobody can tell which of them are told: that is refused.
    fn existing(&self, capture: &Capture) -> String {
        let insert = capture.operations().find(|(event, _)| *event == Event::Insert);
        let (Some(existing), Some((_, insert))) = (capture.existing(), insert) else { return String::new() };
        let (table, trigger) = (capture.table(), self.trigger_name(capture, Event::Insert));
        let refusal = format!(
            "table {table} is captured already, and the rows that it had before were not taken over; nothing is changed"
        );
        let hint = "Apply the script without existing rows to keep the capture as it is. Or remove it (`postrider capture \
                    generate --drop`) and apply this script again: it then tells every row that the table has, also those that were told since it was captured.";
        let order = existing.order_by.as_deref().map_or_else(String::new, |column| identifier(column) + ", ");
        let only = insert.condition().map_or_else(String::new, |when| format!("\n         WHERE ({when})"));
        let code = format!(
            "BEGIN\n    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = {}::regclass AND tgname = {}) THEN\n        \
             PERFORM {}\n          FROM (SELECT * FROM {table} ORDER BY {order}tableoid, ctid) AS NEW{only};\n    \
             ELSIF obj_description(to_regprocedure({}), 'pg_proc') IS DISTINCT FROM {} THEN\n        \
             RAISE EXCEPTION USING MESSAGE = {}, HINT = {};\n    \
             END IF;\nEND\n",
            literal(&table.to_string()),
            literal(&trigger),
            self.call(capture, Event::Insert, insert),
            literal(&format!("{}()", self.function(capture))),
            literal(TAKEN_OVER),
            literal(&refusal),
            literal(hint)
        );
        format!("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE;\nDO {};\n", body(&code))
    }

    /// The call that enqueues one row.
    fn call(&self, capture: &Capture, event: Event, operation: &Operation) -> String {
        let row = event.row();
        let mut others = String::new();
        if let Some(key) = capture.key_column() {
            let _ = write!(others, ",\n            key => NULLIF({row}.{}::text, '')", identifier(key));
        }
        if !capture.headers().is_empty() {
            let pairs: Vec<String> = capture.headers().iter().map(|(name, source)| header(name, source, row)).collect();
            let _ =
                write!(others, ",\n            headers => jsonb_strip_nulls(jsonb_build_object({}))", pairs.join(", "));
        }
        if let Some(id) = capture.id_column() {
            let _ = write!(others, ",\n            id => {row}.{}::text::uuid", identifier(id));
        }
        let call = |payload: &str| {
            format!(
                "{}(\n            topic => {},\n            name => {},\n            payload => {payload}{others})",
                self.dialect.render("{enqueue}"),
                expression(capture.topic_template(), row),
                expression(operation.message_name(), row)
            )
        };
        match capture.carried() {
            Payload::Row => call(&format!("to_jsonb({row})")),
            Payload::Columns(columns) => {
                let pairs = columns.iter().map(|column| format!("{}, {row}.{}", literal(column), identifier(column)));
                call(&format!("jsonb_build_object({})", pairs.collect::<Vec<_>>().join(", ")))
            }
            Payload::BeforeAndAfter => {
                let before = if event == Event::Insert { "NULL::jsonb" } else { "to_jsonb(OLD)" };
                let after = if event == Event::Delete { "NULL::jsonb" } else { "to_jsonb(NEW)" };
                call(&format!("jsonb_build_object('before', {before}, 'after', {after})"))
            }
            // Which `enqueue` it is, the type of the column decides.
            Payload::Column(column) => {
                let column = format!("{row}.{}", identifier(column));
                format!("CASE WHEN {column} IS NULL THEN {} ELSE {} END", call("''::bytea"), call(&column))
            }
        }
    }

    fn drop_triggers(&self, capture: &Capture, sql: &mut String) {
        for event in Event::ALL {
            let _ = writeln!(sql, "DROP TRIGGER IF EXISTS {} ON {};", self.trigger(capture, event), capture.table());
        }
    }

    fn function(&self, capture: &Capture) -> String {
        format!("{}.{}", identifier(self.dialect.schema()), identifier(&self.function_name(capture)))
    }

    fn trigger(&self, capture: &Capture, event: Event) -> String {
        identifier(&self.trigger_name(capture, event))
    }

    fn trigger_name(&self, capture: &Capture, event: Event) -> String {
        format!("{}_{}", self.function_name(capture), event.sql().to_lowercase())
    }

    /// The same for the same table, another one for every other, and short enough.
    fn function_name(&self, capture: &Capture) -> String {
        let (table, prefix) = (capture.table(), self.dialect.prefix());
        let hash = xxhash_rust::xxh3::xxh3_64(format!("{}\0{}", table.schema(), table.name()).as_bytes()) >> 32;
        let hash = format!("{hash:08x}");
        let room = IDENTIFIER_BYTES_MAX - prefix.len() - "capture_".len() - hash.len() - TRIGGER_SUFFIX_BYTES;
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        // One byte of the room is for the line between the two.
        let stem: String = table.name().chars().map(plain).take(room.saturating_sub(1)).collect();
        let stem = if stem.is_empty() { stem } else { stem + "_" };
        format!("{prefix}capture_{stem}{hash}")
    }
}

/// A template as an expression over the columns of a row (`NEW` or `OLD`).
fn expression(template: &Template, row: &str) -> String {
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => literal(text),
        Piece::Column(column) => format!("{row}.{}::text", identifier(column)),
    };
    template.pieces().iter().map(piece).collect::<Vec<_>>().join(" || ")
}

fn header(name: &str, source: &Source, row: &str) -> String {
    let value = match source {
        Source::Column(column) => format!("{row}.{}::text", identifier(column)),
        Source::Tracing(column) => {
            format!("substring({row}.{}::text FROM '(?:^|\\n)\\s*traceparent\\s*[=:]\\s*(\\S+)')", identifier(column))
        }
    };
    format!("{}, {value}", literal(name))
}

fn condition(operation: &Operation) -> String {
    let changed = operation.changed_columns().iter().map(|column| {
        let column = identifier(column);
        format!("OLD.{column} IS DISTINCT FROM NEW.{column}")
    });
    let changed: Vec<String> = changed.collect();
    let mut parts: Vec<String> = Vec::new();
    if !changed.is_empty() {
        parts.push(format!("({})", changed.join(" OR ")));
    }
    parts.extend(operation.condition().iter().map(|when| format!("({when})")));
    if parts.is_empty() { String::new() } else { format!("WHEN ({})\n    ", parts.join(" AND ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(table: &str) -> Capture {
        Capture::new(table, "orders").unwrap().on_insert(Operation::named("order.placed").unwrap())
    }

    fn refused(captures: Vec<Capture>) -> String {
        Script::new(&Postgres::default(), captures).unwrap_err().to_string()
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(refused(Vec::new()).contains("nothing to capture"));
        assert!(refused(vec![Capture::new("a.b", "t").unwrap()]).contains("insert, update or delete"));
        assert!(refused(vec![capture("a.b"), capture("a.b")]).contains("captured once"));
        assert!(refused(vec![capture("postrider.log_3")]).contains("the store's own"));
        let changed = Operation::named("n").unwrap().changed(&["c"]).unwrap();
        assert!(refused(vec![capture("a.b").on_delete(changed)]).contains("only an update"));
    }

    #[test]
    fn names_are_short_enough_and_differ() {
        let prefix = "p".repeat(40);
        let script = Script::new(&Postgres::new("s", &prefix).unwrap(), vec![capture("public.orders")]).unwrap();
        let long = capture(&format!("public.{}", "ü".repeat(31)));
        for capture in [&script.captures[0], &long] {
            assert!(script.trigger_name(capture, Event::Insert).len() <= IDENTIFIER_BYTES_MAX);
        }
        let script = Script::new(&Postgres::default(), vec![capture("a_b.c")]).unwrap();
        let names = [capture("a_b.c"), capture("a.b_c"), capture("a.C"), capture("a.c")];
        let mut names = names.map(|capture| script.function_name(&capture)).to_vec();
        names.dedup();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
