//! Reads a TOML document section by section and gathers *every* problem, each with its line and its key.
//!
//! Asking for a key makes it known; when a section is closed, keys that nobody asked for are problems too, with the
//! nearest known name. So the list of known keys is the code that reads them, and cannot fall behind it.

use std::cell::RefCell;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// From 1.
    pub(crate) line: usize,
    /// The key, with its sections, if it is about one.
    pub(crate) key: String,
    /// What is wrong, and what would be right.
    pub(crate) what: String,
}

/// A document being read.
pub(super) struct Document<'i> {
    text: &'i str,
    problems: RefCell<Vec<Problem>>,
}

impl<'i> Document<'i> {
    /// Parses the text; what follows borrows from it.
    pub(super) fn parse(text: &'i str) -> Result<(Self, Spanned<DeTable<'i>>), Vec<Problem>> {
        let document = Self { text, problems: RefCell::default() };
        match DeTable::parse(text) {
            Ok(table) => Ok((document, table)),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                document.report(at, String::new(), format!("not TOML: {}", error.message()));
                Err(document.into_problems())
            }
        }
    }

    /// The top of the document.
    pub(super) fn top<'d>(&'d self, table: &'d Spanned<DeTable<'i>>) -> Section<'d, 'i> {
        Section {
            document: self,
            table: table.get_ref(),
            path: String::new(),
            at: table.span().start,
            known: Vec::new(),
        }
    }

    fn report(&self, at: usize, key: String, what: String) {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        self.problems.borrow_mut().push(Problem { line, key, what });
    }

    /// Every problem, in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems
    }
}

/// One table of a document.
pub(super) struct Section<'d, 'i> {
    document: &'d Document<'i>,
    table: &'d DeTable<'i>,
    path: String,
    at: usize,
    known: Vec<&'static str>,
}

impl<'d, 'i> Section<'d, 'i> {
    /// The value of a key, if it is there and `read` accepts it.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, String>,
    ) -> Option<T> {
        self.known.push(key);
        let value = self.table.get(key)?;
        read(value.get_ref()).map_err(|what| self.document.report(value.span().start, self.full(key), what)).ok()
    }

    /// As [`Self::get`]; it is a problem if the key is not there.
    pub(super) fn require<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<T, String>,
    ) -> Option<T> {
        if self.table.get(key).is_none() {
            self.document.report(self.at, self.full(key), "missing, and there is no default".to_owned());
        }
        self.get(key, read)
    }

    /// A table inside this one.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'d, 'i>> {
        self.known.push(key);
        let value = self.table.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(self.inside(key, table, value.span().start)),
            other => {
                let what = format!("must be a table (`[{}]`), not {}", self.full(key), kind(other));
                self.document.report(value.span().start, self.full(key), what);
                None
            }
        }
    }

    /// The tables of an array of tables.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<Section<'d, 'i>> {
        self.known.push(key);
        let Some(value) = self.table.get(key) else { return Vec::new() };
        let DeValue::Array(array) = value.get_ref() else {
            let what = format!("must be an array of tables (`[[{}]]`), not {}", self.full(key), kind(value.get_ref()));
            self.document.report(value.span().start, self.full(key), what);
            return Vec::new();
        };
        let tables = array.iter().filter_map(|item| match item.get_ref() {
            DeValue::Table(table) => Some(self.inside(key, table, item.span().start)),
            other => {
                self.document.report(
                    item.span().start,
                    self.full(key),
                    format!("must be a table, not {}", kind(other)),
                );
                None
            }
        });
        tables.collect()
    }

    /// Whether a key is there, right or wrong.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// A problem with the value of `key`, found by comparing it with something else.
    pub(super) fn object(&self, key: &str, what: impl Into<String>) {
        let at = self.table.get(key).map_or(self.at, |value| value.span().start);
        self.document.report(at, self.full(key), what.into());
    }

    /// Reports the keys that nobody asked for.
    pub(super) fn close(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let near = nearest(key.get_ref(), &self.known);
            let hint =
                near.map_or_else(|| format!("known are {}", self.known.join(", ")), |n| format!("did you mean `{n}`?"));
            self.document.report(key.span().start, self.full(key.get_ref()), format!("unknown key; {hint}"));
        }
    }

    fn inside(&self, key: &str, table: &'d DeTable<'i>, at: usize) -> Section<'d, 'i> {
        Section { document: self.document, table, path: self.full(key), at, known: Vec::new() }
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// The known name that a mistyped one is closest to, if it is close at all.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let similarity = |other: &str| strsim::jaro_winkler(name, other);
    let best = known.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))?;
    (similarity(best) > 0.75).then_some(best)
}

pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        other => Err(format!("must be a text in quotes, not {}", kind(other))),
    }
}

/// One text, or several.
pub(super) fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(items) => items.iter().map(|item| text(item.get_ref())).collect(),
        other => text(other).map(|one| vec![one]).map_err(|_| format!("must be a list of texts, not {}", kind(other))),
    }
}

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        other => Err(format!("must be true or false, not {}", kind(other))),
    }
}

/// A whole number inside a range.
pub(super) fn number(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Result<u32, String> {
    move |value| {
        let DeValue::Integer(digits) = value else {
            return Err(format!("must be a whole number, not {}", kind(value)));
        };
        let parsed = i128::from_str_radix(digits.as_str(), digits.radix()).unwrap_or(i128::MAX);
        let inside = u32::try_from(parsed).ok().filter(|number| (least..=most).contains(number));
        inside.ok_or_else(|| format!("is {digits}; it lies between {least} and {most}"))
    }
}

/// One whole number inside a range, or several.
pub(super) fn numbers(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Result<Vec<u32>, String> {
    move |value| match value {
        DeValue::Array(items) => items.iter().map(|item| number(least, most)(item.get_ref())).collect(),
        one => number(least, most)(one).map(|number| vec![number]),
    }
}

/// A number that may have decimals.
pub(super) fn decimal(value: &DeValue<'_>) -> Result<f64, String> {
    let written = match value {
        DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str(),
        DeValue::Float(digits) => digits.as_str(),
        other => return Err(format!("must be a number, not {}", kind(other))),
    };
    written.parse().map_err(|_| format!("`{written}` is not a number"))
}

/// A text that `read` understands, such as a duration.
pub(super) fn written<T>(read: impl Fn(&str) -> Result<T, String>) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| match value {
        DeValue::String(text) => read(text),
        // A number without a unit: the same sentence as for any other text that lacks one.
        DeValue::Integer(digits) => read(&digits.to_string()),
        DeValue::Float(digits) => read(digits.as_str()),
        other => Err(format!("must be a text in quotes, not {}", kind(other))),
    }
}

/// One of a few words.
pub(super) fn one_of<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let word = text(value)?;
        let found = words.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| {
            let names: Vec<String> = words.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("is \"{word}\"; it is one of {}", names.join(", "))
        })
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_if_it_is_near() {
        let known = ["lease_life", "heartbeat_every", "drain_deadline"];
        assert_eq!(nearest("lease_live", &known), Some("lease_life"));
        assert_eq!(nearest("heartbeat", &known), Some("heartbeat_every"));
        assert_eq!(nearest("colour", &known), None);
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused_however_large() {
        for text in ["0", "300", "-1", "99999999999999999999999999999999999999999"] {
            let value = DeValue::parse(text).unwrap();
            assert!(number(1, 256)(value.get_ref()).unwrap_err().contains("between 1 and 256"), "{text}");
        }
        assert_eq!(number(1, 256)(DeValue::parse("0x10").unwrap().get_ref()), Ok(16));
    }
}
