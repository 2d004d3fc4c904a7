//! `[store]`, or several `[[store]]`: where the messages are.
//!
//! What can be wrong with a URL or a name of tables is found here, before anything is connected to or made.

use postrider::{Error, core::topic::check_name};

use super::{
    collect::{self, CollectConfig},
    reader::Section,
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
    /// Which database: `sqlite:app.db`.
    pub(crate) url: String,
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
    /// The adapter, and the place as it wants it.
    pub(crate) fn find(&self) -> Result<(&'static dyn registry::StoreAdapter, Place), String> {
        let (adapter, path) = registry::store(&self.url)?;
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
        let url = text(value)?;
        registry::store(&url)?;
        Ok(url)
    });
    let store = StoreConfig {
        name: name.unwrap_or_else(|| DEFAULT_NAME.to_owned()),
        url: url.unwrap_or_default(),
        table_prefix: section.text("table_prefix"),
        schema: section.text("schema"),
        connections: section.number("connections"),
        migrate: section.boolean_or_default("migrate"),
        collect: collect::read(section),
    };
    for (key, given) in [("schema", store.schema.is_some()), ("connections", store.connections.is_some())] {
        if given && store.url.starts_with("sqlite:") {
            section.object(key, "is for a database server; SQLite has none of that");
            return store;
        }
    }
    if let Some((key, error)) = store.trouble() {
        section.object(key, error.chain());
    }
    store
}

impl StoreConfig {
    /// What the store itself would object to, and to which key: one after the other, since it names only the first.
    fn trouble(&self) -> Option<(&'static str, Error)> {
        let (adapter, whole) = self.find().ok()?;
        let place = Place { table_prefix: None, schema: None, connections: None, ..whole.clone() };
        let with_prefix = Place { table_prefix: whole.table_prefix.clone(), ..place.clone() };
        let steps = [("url", place), ("table_prefix", with_prefix), ("schema", whole)];
        steps.into_iter().find_map(|(key, place)| Some((key, adapter.check(&place).err()?)))
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (&self.url, &self.table_prefix, &self.schema) == (&other.url, &other.table_prefix, &other.schema)
    }
}
