//! `[store]`, or several `[[store]]`: where the messages are.
//!
//! What can be wrong with a URL or a name of tables is found here, before anything is connected to or made. The URL may hold a
//! password, so it can be given like a secret: as a text, or by where it is; or the password alone is.

use postrider::core::topic::check_name;

use super::{
    collect::{self, CollectConfig},
    reader::Section,
    secret,
    shapes::text,
};
use crate::registry::{self, Place};

/// What the only store of a daemon is called.
pub(crate) const DEFAULT_NAME: &str = "default";

/// One store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoreConfig {
    /// What it is called in metrics and by routes.
    pub(crate) name: String,
    /// Which database: `sqlite:app.db`, or where that is written.
    pub(crate) url: secret::Place,
    /// The password, if the URL does not hold it.
    password: Option<secret::Place>,
    /// What the names of its tables begin with, if not with the default.
    table_prefix: Option<String>,
    /// The schema of its tables, if not the default; for a server that has schemas.
    schema: Option<String>,
    /// Connections of its pool, if not the default; for a server.
    connections: Option<u32>,
    /// Whether to bring the schema up to date at the start. Default yes.
    pub(crate) migrate: bool,
    /// Mail of documents that is carried into it.
    pub(crate) collect: Option<CollectConfig>,
}

impl StoreConfig {
    /// The adapter, and the place as it wants it. Secrets are looked up.
    pub(crate) fn find(&self) -> Result<(&'static dyn registry::StoreAdapter, Place), String> {
        let url = self.url.get().map_err(|error| error.chain())?;
        let password = self.password.as_ref().map(secret::Place::get).transpose().map_err(|error| error.chain())?;
        self.at(&url, password.as_deref())
    }

    fn at(&self, url: &str, password: Option<&str>) -> Result<(&'static dyn registry::StoreAdapter, Place), String> {
        let (adapter, mut path) = registry::store(url)?;
        if let Some(password) = password {
            path = with_password(&path, password)?;
        }
        let (table_prefix, schema) = (self.table_prefix.clone(), self.schema.clone());
        Ok((adapter, Place { path, table_prefix, schema, connections: self.connections }))
    }
}

/// Reads all of them. None at all is a problem.
pub(super) fn read(top: &mut Section<'_, '_>) -> Vec<StoreConfig> {
    let sections = top.one_or_more("store");
    if top.has_none("store") {
        top.object(
            "store",
            "missing: say where the messages are, such as `[store]` with `url = \"sqlite:app.db\"`, or set DATABASE_URL",
        );
    }
    let several = sections.len() > 1;
    let mut stores: Vec<StoreConfig> = Vec::new();
    for mut section in sections {
        let store = read_one(&mut section, several);
        let named = section.has("name");
        if named && stores.iter().any(|other| other.name == store.name) {
            section.object("name", format!("two stores are named `{}`", store.name));
        } else if stores.iter().any(|other| other.is_same_place(&store)) {
            section.object("url", "is the same store as another one; give all routes to one of them");
        }
        section.close();
        stores.push(store);
    }
    stores
}

fn read_one(section: &mut Section<'_, '_>, several: bool) -> StoreConfig {
    let read_name = |value: &_| {
        let name = text(value)?;
        check_name("store", &name).map(|()| name).map_err(|error| error.to_string())
    };
    let name = if several { section.require("name", read_name) } else { section.get("name", read_name) };
    let url = section.require("url", |value| {
        let place = secret::Place::read(value)?;
        if let secret::Place::Value(url) = &place {
            registry::store(url)?;
        }
        Ok(place)
    });
    if let Some(elsewhere @ (secret::Place::Env(_) | secret::Place::File(_))) = &url {
        section.check_later("url", std::slice::from_ref(elsewhere), check_url);
    }
    let store = StoreConfig {
        name: name.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
        url: url.unwrap_or_else(|| secret::Place::Value(String::new())),
        password: section.secret("password"),
        table_prefix: section.text("table_prefix"),
        schema: section.text("schema"),
        connections: section.number("connections"),
        migrate: section.boolean_or_default("migrate"),
        collect: collect::read(section),
    };
    // What stands elsewhere is judged when it is looked up.
    let secret::Place::Value(url) = &store.url else { return store };
    for (key, given) in [("schema", store.schema.is_some()), ("connections", store.connections.is_some())] {
        if given && url.starts_with("sqlite:") {
            section.object(key, "is for a database server; SQLite has none of that");
            return store;
        }
    }
    if let Some((key, what)) = store.trouble(url) {
        section.object(key, what);
    }
    store
}

/// Whether a URL that stood elsewhere can be right, as far as that shows without connecting to anything.
fn check_url(url: &str) -> Result<(), String> {
    let (adapter, path) = registry::store(url)?;
    let place = Place { path, table_prefix: None, schema: None, connections: None };
    adapter.check(&place).map_err(|error| error.chain())
}

/// What stands behind the scheme, with a password behind the name of the user.
fn with_password(path: &str, password: &str) -> Result<String, String> {
    let named = path.strip_prefix("//").and_then(|rest| rest.split_once('@'));
    let Some((user, host)) = named.filter(|(user, _)| !user.is_empty()) else {
        return Err("is given, but the URL names no user: write `scheme://user@host/…`".to_owned());
    };
    if user.contains(':') {
        return Err("is given, but the URL has one too; leave one of them out".to_owned());
    }
    Ok(format!("//{user}:{}@{host}", percent_encoded(password)))
}

/// As the part of a URL that names a user has it: letters, digits and four signs stand for themselves.
fn percent_encoded(text: &str) -> String {
    let stands = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if stands(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

impl StoreConfig {
    /// What the store itself would object to, and to which key: one after the other, since it names only the first. Any
    /// password will do for that.
    fn trouble(&self, url: &str) -> Option<(&'static str, String)> {
        let (adapter, whole) = match self.at(url, self.password.as_ref().map(|_| "x")) {
            Ok(found) => found,
            // What is wrong with the URL alone is told already.
            Err(what) => return self.password.as_ref().map(|_| ("password", what)),
        };
        let place = Place { table_prefix: None, schema: None, connections: None, ..whole.clone() };
        let with_prefix = Place { table_prefix: whole.table_prefix.clone(), ..place.clone() };
        let steps = [("url", place), ("table_prefix", with_prefix), ("schema", whole)];
        steps.into_iter().find_map(|(key, place)| Some((key, adapter.check(&place).err()?.chain())))
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (&self.url, &self.table_prefix, &self.schema) == (&other.url, &other.table_prefix, &other.schema)
    }
}
