//! Reads a TOML document section by section and gathers *every* problem, each with its key and where it was given.
//!
//! Asking for a key makes it known; when a section is closed, keys that nobody asked for are problems too, with the nearest
//! known name, and what was asked for is noted for `config show`. A document with a table of [keys](super::keys) takes ranges
//! and defaults from it and cannot ask for a key that is not there. Values that were given beside the file, in the
//! environment or on the command line, stand in the same document, behind its text.

use std::cell::RefCell;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    keys::{self, Key},
    nearest::nearest,
    overrides::Overrides,
    secret::{self, Later},
    shapes::kind,
    show::{self, Origin, Shown},
};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// Where it was given.
    pub(crate) origin: Origin,
    /// The key, with its sections, if it is about one.
    pub(crate) key: String,
    /// What is wrong, and what would be right.
    pub(crate) what: String,
}

/// A document being read.
pub(super) struct Document<'i> {
    text: &'i str,
    keys: &'static [Key],
    overrides: &'i Overrides,
    /// In place of a section that is not there.
    nothing: DeTable<'i>,
    problems: RefCell<Vec<Problem>>,
    shown: RefCell<Vec<Shown>>,
    later: RefCell<Vec<Later>>,
    /// Key, which of several sections, and the secret.
    looked_up: RefCell<Vec<(String, usize, String)>>,
}

impl<'i> Document<'i> {
    /// Parses a text and sets the overrides into it; what follows borrows from both.
    pub(super) fn parse(
        text: &'i str,
        keys: &'static [Key],
        overrides: &'i Overrides,
    ) -> Result<(Self, Spanned<DeTable<'i>>), Vec<Problem>> {
        let document = Self {
            text,
            keys,
            overrides,
            nothing: DeTable::new(),
            problems: RefCell::default(),
            shown: RefCell::default(),
            later: RefCell::default(),
            looked_up: RefCell::default(),
        };
        match DeTable::parse(text) {
            Ok(mut table) => {
                for (at, key, what) in overrides.apply(text.len() + 1, table.get_mut()) {
                    document.report(at, key, what);
                }
                Ok((document, table))
            }
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                document.report(at, String::new(), format!("not TOML: {}", error.message()));
                Err(document.into_problems())
            }
        }
    }

    /// The top of the document.
    pub(super) fn top<'d>(&'d self, table: &'d Spanned<DeTable<'i>>) -> Section<'d, 'i> {
        let at = table.span().start;
        Section { document: self, table: table.get_ref(), path: String::new(), instance: 0, at, known: Vec::new() }
    }

    /// Looks up what is only named, and reports what is not there or not right.
    pub(super) fn look_up_secrets(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for Later { at, key, instance, place, check } in self.later.take() {
            match place.look_up() {
                Ok((secret, warning)) => {
                    warnings.extend(warning.map(|what| format!("{}: `{key}` {what}", self.origin(at))));
                    if let Err(what) = check(&secret) {
                        self.report(at, key.clone(), what);
                    }
                    self.looked_up.borrow_mut().push((key, instance, secret));
                }
                Err(error) => self.report(at, key, error.chain()),
            }
        }
        warnings
    }

    /// What the document comes down to, in the order of the table.
    pub(super) fn into_shown(self) -> Vec<Shown> {
        let mut shown = self.shown.into_inner();
        for (key, instance, secret) in self.looked_up.into_inner() {
            let of_it = |value: &&mut Shown| value.key.path == key && value.instance == instance;
            shown.iter_mut().filter(of_it).for_each(|value| value.is_made_of(&secret));
        }
        show::in_order(shown)
    }

    /// Whether nothing is wrong so far.
    pub(super) fn is_right(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Every problem, in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort();
        problems.dedup();
        problems
    }

    fn report(&self, at: usize, key: String, what: String) {
        self.problems.borrow_mut().push(Problem { origin: self.origin(at), key, what });
    }

    /// Offsets behind the text are overrides.
    fn origin(&self, at: usize) -> Origin {
        match at.checked_sub(self.text.len() + 1) {
            Some(number) => Origin::Given(self.overrides.source(number)),
            None => Origin::File { line: self.text[..at.min(self.text.len())].matches('\n').count() + 1 },
        }
    }
}

/// One table of a document.
pub(super) struct Section<'d, 'i> {
    document: &'d Document<'i>,
    table: &'d DeTable<'i>,
    path: String,
    /// Which of several sections of this name.
    instance: usize,
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
        self.know(key);
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

    /// As [`Self::get`]; without a good value, the default of the table.
    pub(super) fn value<T>(&mut self, key: &'static str, read: impl Fn(&DeValue<'_>) -> Result<T, String>) -> T {
        if let Some(found) = self.get(key, &read) {
            return found;
        }
        let text = self.key(key).value().expect("a key that is read like this has a default");
        let value = DeValue::parse(text).expect("a default is TOML");
        read(value.get_ref()).expect("a default is right")
    }

    /// A secret, or several. What it is, is looked up once the file is right, and then has to pass `check`.
    pub(super) fn secrets(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'i>) -> Result<Vec<secret::Place>, String>,
        check: fn(&str) -> Result<(), String>,
    ) -> Vec<secret::Place> {
        let places = self.get(key, read).unwrap_or_default();
        self.check_later(key, &places, check);
        places
    }

    /// One secret of which nothing is known but that it must not be empty.
    pub(super) fn secret(&mut self, key: &'static str) -> Option<secret::Place> {
        let some = |secret: &str| if secret.is_empty() { Err("is empty".to_owned()) } else { Ok(()) };
        self.secrets(key, |value| Ok(vec![secret::Place::read(value)?]), some).pop()
    }

    /// Has secrets looked up and checked once the file is right.
    pub(super) fn check_later(&self, key: &str, places: &[secret::Place], check: fn(&str) -> Result<(), String>) {
        let at = self.table.get(key).map_or(self.at, |value| value.span().start);
        let later = |place: &secret::Place| {
            let (key, instance, place) = (self.full(key), self.instance, place.clone());
            Later { at, key, instance, place, check }
        };
        let later = places.iter().map(later);
        self.document.later.borrow_mut().extend(later);
    }

    /// A table inside this one.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Section<'d, 'i>> {
        self.known.push(key);
        let value = self.table.get(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(self.inside(key, table, self.instance, value.span().start)),
            other => {
                let what = format!("must be a table (`[{}]`), not {}", self.full(key), kind(other));
                self.document.report(value.span().start, self.full(key), what);
                None
            }
        }
    }

    /// A table inside this one, or an empty one in its place: everything in it has a default.
    pub(super) fn section_or_empty(&mut self, key: &'static str) -> Section<'d, 'i> {
        let found = self.section(key);
        found.unwrap_or_else(|| self.inside(key, &self.document.nothing, self.instance, self.at))
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
        let tables = array.iter().enumerate().filter_map(|(instance, item)| match item.get_ref() {
            DeValue::Table(table) => Some(self.inside(key, table, instance, item.span().start)),
            other => {
                let what = format!("must be a table, not {}", kind(other));
                self.document.report(item.span().start, self.full(key), what);
                None
            }
        });
        tables.collect()
    }

    /// One table, or an array of them.
    pub(super) fn one_or_more(&mut self, key: &'static str) -> Vec<Section<'d, 'i>> {
        match self.table.get(key).map(Spanned::get_ref) {
            Some(DeValue::Array(_)) => self.sections(key),
            _ => self.section(key).into_iter().collect(),
        }
    }

    /// Whether there is no section of this name: not one, or an array without any.
    pub(super) fn has_none(&self, key: &str) -> bool {
        match self.table.get(key).map(Spanned::get_ref) {
            None => true,
            Some(DeValue::Array(array)) => array.is_empty(),
            Some(_) => false,
        }
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

    /// As [`Self::object`], about a key of a table inside this one.
    pub(super) fn object_inside(&self, section: &str, key: &str, what: impl Into<String>) {
        let value = self.table.get(section).and_then(|table| table.get_ref().get(key));
        let at = value.map_or(self.at, |value| value.span().start);
        self.document.report(at, format!("{}.{key}", self.full(section)), what.into());
    }

    /// A key of this section that has no place beside another one's value, and why.
    pub(super) fn out_of_place(&mut self, key: &'static str, why: impl Into<String>) {
        if self.has(key) {
            self.known.push(key);
            self.object(key, why);
        }
    }

    /// As [`Self::object`], about one of several sections of this name.
    pub(super) fn object_to(&self, key: &str, instance: usize, what: impl Into<String>) {
        let section = self.table.get(key).and_then(|value| match value.get_ref() {
            DeValue::Array(array) => array.get(instance),
            _ => Some(value),
        });
        self.document.report(section.map_or(self.at, |section| section.span().start), self.full(key), what.into());
    }

    /// Reports the keys that nobody asked for, and notes the others.
    pub(super) fn close(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let hint = self.hint(key.get_ref());
            self.document.report(key.span().start, self.full(key.get_ref()), format!("unknown key; {hint}"));
        }
        for name in &self.known {
            let Some((rank, key)) = keys::find(&self.full(name)).filter(|_| !self.document.keys.is_empty()) else {
                continue;
            };
            let given = self.table.get(*name);
            let origin = given.map_or(Origin::Default, |value| self.document.origin(value.span().start));
            let shown = Shown::new(rank, key, self.instance, given.map(Spanned::get_ref), origin);
            self.document.shown.borrow_mut().push(shown);
        }
    }

    /// What somebody may have meant: a name of this section, or the same name in another one.
    fn hint(&self, key: &str) -> String {
        if let Some(near) = nearest(key, &self.known) {
            return format!("did you mean `{near}`?");
        }
        if let Some(elsewhere) = self.document.keys.iter().find(|known| known.name() == key) {
            return format!("it belongs to `{}`", elsewhere.section());
        }
        format!("known are {}", self.known.join(", "))
    }

    /// What the table says of a key.
    pub(super) fn key(&self, key: &str) -> &'static Key {
        keys::find(&self.full(key)).expect("every key that is read stands in the table").1
    }

    fn know(&mut self, key: &'static str) {
        if !self.document.keys.is_empty() {
            self.key(key);
        }
        self.known.push(key);
    }

    fn inside(&self, key: &str, table: &'d DeTable<'i>, instance: usize, at: usize) -> Section<'d, 'i> {
        Section { document: self.document, table, path: self.full(key), instance, at, known: Vec::new() }
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
