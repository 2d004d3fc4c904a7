//! What is said beside the file: `POSTRIDER__…` in the environment, `--set` on the command line, and `DATABASE_URL`.
//!
//! Two underscores separate the parts of a key, and of several sections the name says which: `POSTRIDER__RELAY__LEASE_LIFE`,
//! `POSTRIDER__ROUTE__BILLING__RATE`. On the command line it is `--set relay.lease_life=30s`. In a name, everything but
//! letters and digits is one underscore, and case does not count. A flag goes before the environment, that before the file,
//! that before the defaults. `DATABASE_URL` counts only if nothing else says where the one store is. An override sets a value
//! of a section; it does not make a route.

use std::{borrow::Cow, ffi::OsString};

use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{
    keys::{self, Kind, REPEATED},
    show::store_url,
};

const PREFIX: &str = "POSTRIDER__";
const DATABASE_URL: &str = "DATABASE_URL";

/// Everything that was said beside the file, the last of a key counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides(Vec<Override>);

#[derive(Clone)]
struct Override {
    /// Who says it, for people.
    source: String,
    /// The key, part by part, in lower case.
    path: Vec<String>,
    value: String,
    /// Counts only where nothing else is said.
    weak: bool,
}

/// Values may be secrets.
impl std::fmt::Debug for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.source)
    }
}

/// Where (an offset behind the text), which key, and what is wrong.
type Trouble = (usize, String, String);

impl Overrides {
    /// From the environment and from `--set`.
    pub(crate) fn gather(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        set: &[String],
    ) -> Result<Self, String> {
        let mut found = Vec::new();
        for (name, value) in environment {
            let Some(name) = name.to_str().map(str::to_owned) else { continue };
            let (path, weak) = match name.strip_prefix(PREFIX) {
                Some(rest) => (rest.split("__").map(str::to_lowercase).collect(), false),
                None if name == DATABASE_URL && !value.is_empty() => (vec!["store".to_owned(), "url".to_owned()], true),
                None => continue,
            };
            let value = value.into_string().map_err(|_| format!("the value of {name} is not UTF-8"))?;
            found.push(Override { source: format!("env {name}"), path, value, weak });
        }
        // An environment has no order of its own; what is told of it should have one.
        found.sort_by(|a, b| (a.weak, &a.source).cmp(&(b.weak, &b.source)));
        for given in set {
            let (key, value) =
                given.split_once('=').ok_or_else(|| format!("--set: `{}` is not `key=value`", given.escape_debug()))?;
            let path: Vec<String> = key.split('.').map(str::to_lowercase).collect();
            found.push(Override { source: format!("--set {key}"), path, value: value.to_owned(), weak: false });
        }
        Ok(Self(found))
    }

    /// Those of one section alone.
    pub(super) fn of_section(mut self, section: &str) -> Self {
        self.0.retain(|given| given.path.first().is_some_and(|first| first == section));
        self
    }

    /// Whether anything is said of a key, be it only where its value stands.
    pub(super) fn say(&self, section: &str, key: &str) -> bool {
        self.0.iter().any(|given| given.path.iter().take(2).eq([section, key]))
    }

    /// Who said the override of this number.
    pub(super) fn source(&self, number: usize) -> String {
        self.0.get(number).map_or_else(String::new, |given| given.source.clone())
    }

    /// Sets all of them into the document, each at the offset `from` plus its number.
    pub(super) fn apply<'i>(&'i self, from: usize, table: &mut DeTable<'i>) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        let strong = self.0.iter().enumerate().filter(|(_, given)| !given.weak);
        // Last, so that it finds whatever else was said.
        let weak = self.0.iter().enumerate().filter(|(_, given)| given.weak);
        for (number, given) in strong.chain(weak) {
            if let Err(what) = given.apply(from + number, table) {
                troubles.push((from + number, given.path.join("."), what));
            }
        }
        troubles
    }
}

impl Override {
    fn apply<'i>(&'i self, at: usize, table: &mut DeTable<'i>) -> Result<(), String> {
        let Some((section, rest)) = self.path.split_first() else { return Ok(()) };
        if self.source.starts_with("--set") && holds_secret(&self.path, &self.value) {
            return Err("is a secret, and everybody can see a command line: use the environment or a file".to_owned());
        }
        if self.weak {
            match table.get(section.as_str()).map(Spanned::get_ref) {
                None => {}
                Some(DeValue::Table(store)) if !store.contains_key("url") => {}
                Some(_) => return Ok(()),
            }
        }
        let several = matches!(table.get(section.as_str()).map(Spanned::get_ref), Some(DeValue::Array(_)));
        if rest.is_empty() {
            table.insert(spanned(at, section), Spanned::new(at..at, self.text()));
            return Ok(());
        }
        if several || section == "route" {
            let (name, rest) = rest.split_first().unwrap_or((section, rest));
            return self.set(at, named(table, section, name)?, section, rest);
        }
        self.set(at, inner(table, section, at)?, section, rest)
    }

    /// Sets the value below a table of the section `path`.
    fn set<'i>(&'i self, at: usize, table: &mut DeTable<'i>, path: &str, rest: &[String]) -> Result<(), String> {
        let Some((key, rest)) = rest.split_first() else {
            return Err(format!("names a section and no key of it: {}", example(path)));
        };
        let path = format!("{path}.{key}");
        let kind = keys::find(&path).map(|(_, key)| &key.kind);
        let value = match (kind, rest) {
            (_, []) => self.value(kind),
            (Some(Kind::Secret | Kind::Secrets | Kind::StoreUrl), [place]) => {
                DeValue::Table(DeTable::from_iter([(spanned(at, place), Spanned::new(at..at, self.text()))]))
            }
            (Some(Kind::SecretTable | Kind::TextTable), [name]) => {
                // What an environment variable cannot be called: a header, or a property of librdkafka.
                let name = match key.as_str() {
                    "headers" => name.replace('_', "-"),
                    "properties" => name.replace('_', "."),
                    _ => name.clone(),
                };
                let entries = inner(table, key, at)?;
                entries.insert(spanned(at, &name), Spanned::new(at..at, self.text()));
                return Ok(());
            }
            (Some(_), _) => return Err(format!("`{path}` is a value and has no keys of its own")),
            (None, rest) => return self.set(at, inner(table, key, at)?, &path, rest),
        };
        table.insert(spanned(at, key), Spanned::new(at..at, value));
        Ok(())
    }

    /// The environment knows texts only; the kind of the key says what they mean.
    fn value<'i>(&'i self, kind: Option<&Kind>) -> DeValue<'i> {
        let toml = |text: &'i str| DeValue::parse(text.trim()).map(Spanned::into_inner).ok();
        let list = |item: &dyn Fn(&'i str) -> DeValue<'i>| {
            let mut items = DeArray::new();
            for part in self.value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                items.push(Spanned::new(0..0, item(part)));
            }
            DeValue::Array(items)
        };
        let plain = |part: &'i str| DeValue::String(Cow::Borrowed(part));
        match kind {
            Some(Kind::Number(..) | Kind::Decimal | Kind::Boolean) => toml(&self.value).unwrap_or_else(|| self.text()),
            Some(Kind::DurationOrSwitch(_)) if matches!(self.value.trim(), "true" | "false") => {
                toml(&self.value).unwrap_or_else(|| self.text())
            }
            Some(Kind::Texts | Kind::Numbers(..) | Kind::Secrets) if self.value.trim_start().starts_with('[') => {
                toml(&self.value).unwrap_or_else(|| self.text())
            }
            Some(Kind::Texts) => list(&plain),
            Some(Kind::Numbers(..)) => list(&|part| toml(part).unwrap_or_else(|| plain(part))),
            _ => self.text(),
        }
    }

    fn text(&self) -> DeValue<'_> {
        DeValue::String(Cow::Borrowed(&self.value))
    }
}

fn spanned<'i>(at: usize, key: &str) -> Spanned<Cow<'i, str>> {
    Spanned::new(at..at, Cow::Owned(key.to_owned()))
}

/// The table of this name, made if there is none.
fn inner<'t, 'i>(table: &'t mut DeTable<'i>, key: &str, at: usize) -> Result<&'t mut DeTable<'i>, String> {
    if !table.contains_key(key) {
        table.insert(spanned(at, key), Spanned::new(at..at, DeValue::Table(DeTable::new())));
    }
    match table.get_mut(key).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => Ok(inner),
        _ => Err(format!("`{key}` is not a table in the file")),
    }
}

/// The table of an array whose `name` is meant.
fn named<'t, 'i>(table: &'t mut DeTable<'i>, section: &str, name: &str) -> Result<&'t mut DeTable<'i>, String> {
    let Some(DeValue::Array(array)) = table.get_mut(section).map(Spanned::get_mut) else {
        return Err(format!("there is no `[[{section}]]` in the file"));
    };
    let mut names = Vec::new();
    let mut meant = Vec::new();
    for item in array.iter_mut() {
        let DeValue::Table(inner) = item.get_mut() else { continue };
        let Some(DeValue::String(given)) = inner.get("name").map(Spanned::get_ref) else { continue };
        let given = given.to_string();
        if comparable(&given) == comparable(name) {
            meant.push(inner);
        }
        names.push(given);
    }
    match (meant.pop(), meant.pop()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(format!("more than one `[[{section}]]` is meant by `{name}`; set it in the file")),
        (None, _) => Err(format!("there is no `[[{section}]]` named `{name}`; there are {}", names.join(", "))),
    }
}

/// A name as an environment variable can hold it.
fn comparable(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(str::to_lowercase).collect::<Vec<_>>().join("_")
}

/// The URL of a store is one only if it has a password in it.
fn holds_secret(path: &[String], value: &str) -> bool {
    let Some((section, rest)) = path.split_first() else { return false };
    let whole = |rest: &[String]| format!("{section}.{}", rest.join("."));
    let named = REPEATED.contains(&section.as_str()).then(|| whole(rest.get(1..).unwrap_or_default()));
    let of_kind = |kind: &Kind| match kind {
        Kind::Secret | Kind::Secrets | Kind::SecretTable => true,
        Kind::StoreUrl => store_url(value) != value,
        _ => false,
    };
    let is_secret = |path: &String| {
        keys::KEYS.iter().any(|key| {
            of_kind(&key.kind)
                && (path == key.path || path.strip_prefix(key.path).is_some_and(|rest| rest.starts_with('.')))
                && !path.ends_with(".file")
                && !path.ends_with(".env")
        })
    };
    is_secret(&whole(rest)) || named.as_ref().is_some_and(is_secret)
}

fn example(section: &str) -> String {
    let key = keys::KEYS.iter().find(|key| key.section() == section);
    key.map_or_else(String::new, |key| format!("its first is `{}`", key.name()))
}
