//! The file of `postrider capture`: which changes of which tables become messages.
//!
//! ```toml
//! [[capture]]
//! table = "public.orders"
//! topic = "orders"
//! key = "id"
//! payload = "row"                       # or "before-and-after", or ["id", "total"], or { column = "body" }
//! headers = { tenant = "tenant_id" }
//! insert = { name = "order.placed" }
//! update = { name = "order.paid", changed = ["status"], when = "NEW.status = 'paid'" }
//! delete = { name = "order.removed" }
//!
//! [[capture]]
//! layout = "debezium"
//! table = "public.outbox"
//! ```
//!
//! As with the daemon's file, all problems are reported at once.

use std::path::Path;

use postrider::{
    Error,
    core::capture::{Capture, Operation, Payload, Source},
};
use toml::de::DeValue;

use super::{
    Problem, Problems,
    overrides::Overrides,
    reader::{Document, Section},
    shapes::{boolean, one_of, text, texts},
};
use crate::{
    bounded,
    exit::{Code, Failure},
};

/// Reads and checks a file.
pub(crate) fn load(path: &Path) -> Result<Vec<Capture>, Failure> {
    let text = bounded::text(path, super::FILE_BYTES_MAX).map_err(|error| {
        Failure::because(Code::Usage, format!("the mapping {} cannot be read", path.display()), &error)
    })?;
    parse(&text).map_err(|problems| {
        let listed = Problems { file: &path.display().to_string(), problems: &problems };
        Failure::usage(format!("the mapping is not usable\n{listed}"))
    })
}

fn parse(text: &str) -> Result<Vec<Capture>, Vec<Problem>> {
    // The environment has nothing to say about a mapping.
    let nothing_else = Overrides::default();
    let (document, table) = Document::parse(text, &[], &nothing_else)?;
    let mut top = document.top(&table);
    let sections = top.sections("capture");
    if sections.is_empty() {
        top.object("capture", "missing: name at least one table in a `[[capture]]`");
    }
    let captures: Vec<Capture> = sections.into_iter().filter_map(read).collect();
    top.close();
    let problems = document.into_problems();
    if problems.is_empty() { Ok(captures) } else { Err(problems) }
}

fn read(mut section: Section<'_, '_>) -> Option<Capture> {
    let debezium = section.get("layout", one_of(&[("debezium", ())])).is_some();
    let table = section.require("table", checked(|table| Capture::debezium(table).map(|_| table.to_owned())));
    let topic = |value: &DeValue<'_>| checked(|topic| Capture::new("s.t", topic).map(|_| topic.to_owned()))(value);
    let topic = if debezium { section.get("topic", topic) } else { section.require("topic", topic) };
    let begun = table.and_then(|table| match topic {
        Some(topic) if debezium => Capture::debezium(&table).and_then(|capture| capture.topic(&topic)).ok(),
        Some(topic) => Capture::new(&table, &topic).ok(),
        None => Capture::debezium(&table).ok(),
    });
    let mut draft = Draft { capture: begun, section: &mut section };
    draft.take("key", text, |capture, column| capture.key(&column));
    draft.take("id", text, |capture, column| capture.id(&column));
    draft.take("payload", payload, Capture::payload);
    draft.take("headers", headers, |capture, headers| {
        headers.into_iter().try_fold(capture, |capture, (name, source)| capture.header(&name, source))
    });
    draft.operation("insert", Capture::on_insert);
    draft.operation("update", Capture::on_update);
    draft.operation("delete", Capture::on_delete);
    let order_by = draft.section.get("order_by", text);
    let existing = draft.section.get("with_existing", boolean).unwrap_or(false);
    if existing {
        draft.apply("order_by", |capture| capture.with_existing(order_by.as_deref()));
    } else if order_by.is_some() {
        draft.section.object("order_by", "is for the rows that exist already; it needs `with_existing = true`");
    }
    let capture = draft.capture.take();
    section.close();
    capture
}

/// A capture in the making, and where the problems with it are told. Once something is wrong there is none any more, but
/// the rest is still read.
struct Draft<'s, 'd, 'i> {
    capture: Option<Capture>,
    section: &'s mut Section<'d, 'i>,
}

impl<'i> Draft<'_, '_, 'i> {
    fn take<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, String>,
        set: impl FnOnce(Capture, T) -> Result<Capture, Error>,
    ) {
        if let Some(value) = self.section.get(key, read) {
            self.apply(key, |capture| set(capture, value));
        }
    }

    fn apply(&mut self, key: &'static str, set: impl FnOnce(Capture) -> Result<Capture, Error>) {
        let Some(capture) = self.capture.clone() else { return };
        match set(capture) {
            Ok(capture) => self.capture = Some(capture),
            Err(error) => self.section.object(key, error.to_string()),
        }
    }

    fn operation(&mut self, key: &'static str, set: impl FnOnce(Capture, Operation) -> Capture) {
        let Some(mut section) = self.section.section(key) else { return };
        let operation = section.require("name", checked(Operation::named));
        let when = section.get("when", text);
        let changed = section.get("changed", texts);
        let operation = operation.and_then(|operation| {
            let with_when = when.iter().try_fold(operation, |operation, when| operation.when(when));
            let with_when = with_when.map_err(|error| section.object("when", error.to_string())).ok()?;
            let whole = changed.iter().try_fold(with_when, |operation, columns| operation.changed(columns));
            whole.map_err(|error| section.object("changed", error.to_string())).ok()
        });
        section.close();
        if let (Some(capture), Some(operation)) = (self.capture.take(), operation) {
            self.capture = Some(set(capture, operation));
        }
    }
}

/// A text that the library accepts.
fn checked<T>(read: impl Fn(&str) -> Result<T, Error>) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| read(&text(value)?).map_err(|error| error.to_string())
}

fn payload(value: &DeValue<'_>) -> Result<Payload, String> {
    const FORMS: &str = "is \"row\", \"before-and-after\", a list of columns, or { column = \"body\" }";
    match value {
        DeValue::Array(_) => texts(value).map(Payload::Columns),
        DeValue::Table(table) if table.len() == 1 => {
            let column = table.get("column").ok_or(FORMS)?;
            text(column.get_ref()).map(Payload::Column)
        }
        DeValue::String(word) if word == "row" => Ok(Payload::Row),
        DeValue::String(word) if word == "before-and-after" => Ok(Payload::BeforeAndAfter),
        _ => Err(FORMS.to_owned()),
    }
}

fn headers(value: &DeValue<'_>) -> Result<Vec<(String, Source)>, String> {
    const FORMS: &str = "is a table of names and columns, such as { tenant = \"tenant_id\" }";
    let DeValue::Table(table) = value else { return Err(FORMS.to_owned()) };
    let source = |value: &DeValue<'_>| match value {
        DeValue::String(column) => Ok(Source::Column(column.to_string())),
        DeValue::Table(table) if table.len() == 1 => {
            let column = table.get("tracing").ok_or("a header's column is a text, or { tracing = \"column\" }")?;
            text(column.get_ref()).map(Source::Tracing)
        }
        _ => Err(FORMS.to_owned()),
    };
    table.iter().map(|(name, value)| Ok((name.get_ref().to_string(), source(value.get_ref())?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let problems = parse(text).unwrap_err();
        problems.iter().map(|problem| format!("{}: {} {}", problem.origin, problem.key, problem.what)).collect()
    }

    #[test]
    fn the_example_is_read() {
        let example = include_str!("capture.rs").split("```").nth(1).unwrap().replace("//! ", "").replace("//!", "");
        let captures = parse(example.strip_prefix("toml").unwrap()).unwrap();
        let tables: Vec<String> = captures.iter().map(|capture| capture.table().to_string()).collect();
        assert_eq!(tables, ["\"public\".\"orders\"", "\"public\".\"outbox\""]);
    }

    #[test]
    fn every_problem_is_told_with_its_line() {
        let text = "[[capture]]\ntable = \"orders\"\ntopic = \"a b\"\npayload = 7\ntopics = \"x\"\n\
                    [[capture]]\ntable = \"public.orders\"\ntopic = \"t\"\nkey = \"\"\nheaders = { Tenant = \"x\" }\n\
                    order_by = \"at\"\n[capture.insert]\nwhen = \"true) OR (true\"\nname = \"n\"\n";
        let found = problems(text);
        let expected = [
            "line 2: capture.table a table is written with its schema",
            "line 3: capture.topic a name has 1 to 255",
            "line 4: capture.payload is \"row\"",
            "line 5: capture.topics unknown key; did you mean `topic`?",
            "line 9: capture.key a column has 1 to 63 bytes",
            "line 10: capture.headers header name must be lower-case",
            "line 11: capture.order_by is for the rows that exist already",
            "line 13: capture.insert.when a condition closes a parenthesis",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
        assert_eq!(problems(""), ["line 1: capture missing: name at least one table in a `[[capture]]`"]);
    }
}
