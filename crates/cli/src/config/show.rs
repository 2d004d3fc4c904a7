//! What a configuration comes down to: every value, where it comes from, and nothing secret.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde::Serialize;
use serde_json::{Value, json};
use toml::de::DeValue;

use super::keys::{Fallback, Key, Kind, REPEATED};

/// What stands in place of a secret.
const HIDDEN: &str = "(hidden)";

/// Where a value comes from. In this order problems are told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nobody has said anything.
    Default,
    /// The file.
    File {
        /// From 1.
        line: usize,
    },
    /// Said beside the file, by `env NAME` or `--set key`.
    Given(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { line } => write!(f, "line {line}"),
            Self::Given(source) => f.write_str(source),
        }
    }
}

impl Origin {
    /// With the name of the file.
    pub(crate) fn in_file(&self, file: &str) -> String {
        match self {
            Self::File { line } => format!("{file}:{line}"),
            other => other.to_string(),
        }
    }
}

/// One value of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(super) section_rank: usize,
    pub(super) instance: usize,
    pub(super) rank: usize,
    pub(crate) key: &'static Key,
    /// The name of its section, if there may be several of them.
    pub(crate) name: String,
    /// Another value has another one, also if both are hidden, or stand elsewhere and were looked up.
    pub(crate) fingerprint: u64,
    /// Without secrets. `None`: nothing is set, and the key's words say what holds.
    pub(crate) value: Option<Value>,
    pub(crate) origin: Origin,
}

impl Shown {
    pub(super) fn new(
        rank: usize,
        key: &'static Key,
        instance: usize,
        given: Option<&DeValue<'_>>,
        origin: Origin,
    ) -> Self {
        let fallback = || key.value().and_then(|text| DeValue::parse(text).ok());
        let value =
            given.map_or_else(|| fallback().map(|value| as_json(value.get_ref())), |given| Some(as_json(given)));
        let mut hasher = DefaultHasher::new();
        value.as_ref().map(Value::to_string).hash(&mut hasher);
        let top = key.path.split('.').next().unwrap_or(key.path);
        let section_rank = super::keys::KEYS.iter().position(|other| other.path.starts_with(top)).unwrap_or(rank);
        Self {
            section_rank,
            instance,
            rank,
            key,
            name: String::new(),
            fingerprint: hasher.finish(),
            value: value.map(|value| redacted(&key.kind, value)),
            origin,
        }
    }
}

impl Shown {
    /// A secret that stands elsewhere is another one if what stands there has changed.
    pub(super) fn is_made_of(&mut self, secret: &str) {
        let mut hasher = DefaultHasher::new();
        (self.fingerprint, secret).hash(&mut hasher);
        self.fingerprint = hasher.finish();
    }
}

/// Sorts all values of a configuration and gives them the names of their sections.
pub(super) fn in_order(mut shown: Vec<Shown>) -> Vec<Shown> {
    shown.sort_by_key(|value| (value.section_rank, value.instance, value.rank));
    let mut name = String::new();
    for value in &mut shown {
        // The name is the first key of every section that may stand several times.
        if value.key.name() == "name" && REPEATED.contains(&value.key.section()) {
            name = value.value.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
        }
        let top = value.key.path.split('.').next().unwrap_or_default();
        value.name = if REPEATED.contains(&top) { name.clone() } else { String::new() };
    }
    shown
}

/// As a file with the origin of every value beside it. It is TOML; what is not set is a comment.
pub(crate) fn as_text(file: &str, shown: &[Shown]) -> String {
    let mut text = String::new();
    let mut last = ("", usize::MAX);
    let several = shown.iter().any(|value| value.key.section() == "store" && value.instance > 0);
    for value in shown {
        let section = (value.key.section(), value.instance);
        if section != last {
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{}\n", header(section.0, several)));
            last = section;
        }
        let name = value.key.name();
        let line = match (&value.value, &value.key.fallback) {
            (Some(set), _) => format!("{name} = {}", as_toml(set)),
            (None, Fallback::Words(words)) => format!("# {name}: {words}"),
            (None, _) => format!("# {name}"),
        };
        text.push_str(&format!("{line:<48}  # {}\n", value.origin.in_file(file)));
    }
    text
}

/// The same for programs: one object, with a list of all values.
pub(crate) fn as_object(file: &str, shown: &[Shown]) -> Value {
    #[derive(Serialize)]
    struct Line<'a> {
        key: &'static str,
        name: Option<&'a str>,
        value: &'a Option<Value>,
        origin: Value,
        reloadable: bool,
    }
    let lines = shown.iter().map(|value| Line {
        key: value.key.path,
        name: Some(value.name.as_str()).filter(|name| !name.is_empty()),
        value: &value.value,
        origin: match &value.origin {
            Origin::Default => json!({ "kind": "default" }),
            Origin::File { line } => json!({ "kind": "file", "file": file, "line": line }),
            Origin::Given(source) => match source.split_once(' ') {
                Some(("env", name)) => json!({ "kind": "env", "name": name }),
                _ => json!({ "kind": "flag", "name": source }),
            },
        },
        reloadable: value.key.live,
    });
    json!({ "file": file, "values": lines.collect::<Vec<_>>() })
}

/// How a section begins in a file that names every one of them.
pub(super) fn header(section: &str, several_stores: bool) -> String {
    if section == "route" || section == "store" && several_stores {
        format!("[[{section}]]")
    } else {
        format!("[{section}]")
    }
}

pub(super) fn as_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Boolean(on) => json!(on),
        DeValue::Integer(digits) => {
            i64::from_str_radix(digits.as_str(), digits.radix()).map_or(Value::Null, Value::from)
        }
        DeValue::Float(digits) => digits.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(at) => json!(at.to_string()),
        DeValue::Array(items) => items.iter().map(|item| as_json(item.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), as_json(value.get_ref()))).collect()
        }
    }
}

/// A JSON text is a TOML text; a list of values and a table of them differ in a letter.
fn as_toml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(as_toml).collect::<Vec<_>>().join(", ")),
        Value::Object(table) => {
            let entries = table.iter().map(|(key, value)| format!("{} = {}", as_key(key), as_toml(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn as_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { json!(key).to_string() }
}

fn redacted(kind: &Kind, value: Value) -> Value {
    match (kind, value) {
        (Kind::Secret | Kind::Secrets, value) => secret(value),
        (Kind::SecretTable, Value::Object(table)) => {
            table.into_iter().map(|(name, value)| (name, secret(value))).collect()
        }
        (Kind::StoreUrl, Value::String(url)) => json!(store_url(&url)),
        (Kind::StoreUrl, elsewhere) => secret(elsewhere),
        (Kind::TransportUrl, Value::String(url)) => json!(transport_url(&url)),
        (_, value) => value,
    }
}

/// Where it is may be seen; what it is, not.
fn secret(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(secret).collect(),
        Value::Object(table) => {
            let shown = |name: &str, value| if name == "env" || name == "file" { value } else { json!(HIDDEN) };
            table.into_iter().map(|(name, value)| (name.clone(), shown(&name, value))).collect()
        }
        _ => json!(HIDDEN),
    }
}

/// Without the password, wherever it stands in the URL. What could be one is hidden rather than shown.
pub(crate) fn store_url(url: &str) -> String {
    let url = match url.rsplit_once('@') {
        Some((user, host)) => {
            let (scheme, user) = user.split_once("//").unwrap_or(("", user));
            let user = user.split_once(':').map_or_else(|| user.to_owned(), |(name, _)| format!("{name}:{HIDDEN}"));
            format!("{scheme}//{user}@{host}")
        }
        None => url.to_owned(),
    };
    let hide = |part: &str| match part.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().ends_with("password") => format!("{name}={HIDDEN}"),
        _ => part.to_owned(),
    };
    url.split('&').map(hide).collect::<Vec<_>>().join("&")
}

/// The path of a webhook is often a secret itself.
fn transport_url(url: &str) -> String {
    let Some((scheme @ ("http" | "https"), rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = if path.len() > 1 { format!("/{HIDDEN}") } else { path.to_owned() };
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_what_is_secret() {
        for (url, shown) in [
            ("postgres://me:canary@h:5/d?sslmode=disable", "postgres://me:(hidden)@h:5/d?sslmode=disable"),
            ("postgres://me:can@ry@h/d", "postgres://me:(hidden)@h/d"),
            ("postgres://h/d?user=me&password=canary", "postgres://h/d?user=me&password=(hidden)"),
            ("postgres://me:can?ary@h/d", "postgres://me:(hidden)@h/d"),
            ("postgres://h/d?password=canary", "postgres://h/d?password=(hidden)"),
            ("postgres://me@h/d", "postgres://me@h/d"),
            ("sqlite:app.db", "sqlite:app.db"),
        ] {
            assert_eq!(store_url(url), shown);
        }
        for (url, shown) in [
            ("https://me:canary@h:8443/canary?x=canary", "https://h:8443/(hidden)"),
            ("https://h?canary", "https://h/(hidden)"),
            ("https://h/", "https://h/"),
            ("file:out.ndjson", "file:out.ndjson"),
        ] {
            assert_eq!(transport_url(url), shown);
        }
    }

    #[test]
    fn secrets_are_hidden_and_their_places_are_not() {
        let given = json!(["canary", { "env": "NAME" }, { "file": "path" }, { "value": "canary" }]);
        let shown = redacted(&Kind::Secrets, given);
        assert_eq!(shown, json!([HIDDEN, { "env": "NAME" }, { "file": "path" }, { "value": HIDDEN }]));
        let headers = redacted(&Kind::SecretTable, json!({ "authorization": "canary", "x": { "env": "X" } }));
        assert_eq!(headers, json!({ "authorization": HIDDEN, "x": { "env": "X" } }));
    }

    #[test]
    fn values_are_written_as_toml() {
        let value = json!({ "a b": [1, 2.5, true, "x\"y"], "c": {} });
        let text = format!("v = {}", as_toml(&value));
        let read: toml::Table = text.parse().unwrap();
        assert_eq!(serde_json::to_value(&read["v"]).unwrap(), value);
    }
}
