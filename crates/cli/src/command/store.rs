//! Arguments that several commands share: which store, and who asks.
//!
//! An operator mostly stands next to the file of the relay, or in a container that has its environment. So the store is
//! looked for in this order: `--store`; `POSTRIDER__STORE__URL`, or the place that `…__FILE` or `…__ENV` names; the file of
//! `--config`, or `postrider.toml` if there is one; `DATABASE_URL`. The relay finds its own in the same order. What else the
//! environment says of the store, such as `POSTRIDER__STORE__SCHEMA`, counts with and without a file.

use std::{
    env,
    path::{Path, PathBuf},
};

use clap::Args;
use postrider::core::admin::Actor;

use crate::{
    config::{self, StoreConfig},
    exit::{Failure, Outcome},
    registry::{self, OpenStore, Place, StoreAdapter},
};

/// Under which `--help` lists these arguments.
pub(super) const HEADING: &str = "Store";

/// The file that is looked for where nothing else is said.
const FILE: &str = "postrider.toml";

/// Which store.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StoreArguments {
    /// Where the messages are, such as `sqlite:app.db`. Default: what the environment or the file says.
    #[arg(long, value_name = "URL", help_heading = HEADING)]
    store: Option<String>,
    /// The configuration file that names the store. Default: postrider.toml, if there is one.
    #[arg(long, value_name = "FILE", conflicts_with = "store", help_heading = HEADING)]
    config: Option<PathBuf>,
    /// Which store of the file, if it names several.
    #[arg(long, value_name = "NAME", conflicts_with = "store", help_heading = HEADING)]
    store_name: Option<String>,
    /// What the names of the store's tables begin with.
    #[arg(long, value_name = "PREFIX", help_heading = HEADING)]
    table_prefix: Option<String>,
    /// The schema of the store's tables, for PostgreSQL. Default: postrider.
    #[arg(long, value_name = "SCHEMA", help_heading = HEADING)]
    schema: Option<String>,
}

impl StoreArguments {
    /// Whether a store was named on the command line, for a command that would rather not touch the one that is found
    /// without.
    pub(crate) fn is_said(&self) -> bool {
        self.store.is_some() || self.config.is_some() || self.store_name.is_some()
    }

    /// For a command that uses a store of its own where none was named: names of tables would be of another one.
    pub(crate) fn refuse_names(&self) -> Outcome<()> {
        match (&self.table_prefix, &self.schema) {
            (None, None) => Ok(()),
            _ => Err(Failure::usage("which store? say --store URL, --config FILE or --store-name NAME too")),
        }
    }

    /// The adapter and the place that the URL means.
    pub(crate) fn find(&self) -> Outcome<(&'static dyn StoreAdapter, Place)> {
        let (adapter, found) = self.look()?;
        let table_prefix = self.table_prefix.clone().or(found.table_prefix);
        let schema = self.schema.clone().or(found.schema);
        // Whoever looks needs no pool like a relay's.
        Ok((adapter, Place { path: found.path, table_prefix, schema, connections: None }))
    }

    /// Opens the store as it is. An operator's look never changes the schema.
    pub(crate) async fn open(&self) -> Outcome<OpenStore> {
        let (adapter, place) = self.find()?;
        Ok(adapter.open(&place, false).await?)
    }

    /// What the store is called in metrics: as the file calls it, if that is where it was found.
    pub(crate) fn name(&self) -> String {
        let named = |file: &Path| Some(self.chosen(&config::stores(file).ok()?).ok()?.name.clone());
        let file = self.file().filter(|_| self.store.is_none());
        file.and_then(named).unwrap_or_else(|| config::DEFAULT_STORE_NAME.to_owned())
    }

    fn look(&self) -> Outcome<(&'static dyn StoreAdapter, Place)> {
        if let Some(url) = &self.store {
            let (adapter, path) = registry::store(url).map_err(|what| Failure::usage(format!("--store: {what}")))?;
            return Ok((adapter, Place { path, table_prefix: None, schema: None, connections: None }));
        }
        if let Some(file) = self.file() {
            return self.chosen(&config::stores(file)?)?.find().map_err(Failure::usage);
        }
        if let Some(store) = config::store_of_environment()? {
            return store.find().map_err(Failure::usage);
        }
        Err(Failure::usage(
            "which store? say --store URL (such as sqlite:app.db), --config FILE, or set DATABASE_URL; there is no \
             postrider.toml here",
        ))
    }

    fn file(&self) -> Option<&Path> {
        match &self.config {
            Some(path) => Some(path),
            None => Some(Path::new(FILE)).filter(|path| path.exists()),
        }
    }

    fn chosen<'a>(&self, stores: &'a [StoreConfig]) -> Outcome<&'a StoreConfig> {
        let names: Vec<&str> = stores.iter().map(|store| store.name.as_str()).collect();
        match (&self.store_name, stores) {
            (Some(name), _) => stores.iter().find(|store| store.name == *name).ok_or_else(|| {
                Failure::usage(format!("--store-name: the file has no store `{name}`; it has {}", names.join(", ")))
            }),
            (None, [only]) => Ok(only),
            (None, _) => {
                Err(Failure::usage(format!("the file names several stores; say --store-name: {}", names.join(", "))))
            }
        }
    }
}

/// Who does something, and why: written into the audit record.
#[derive(Args, Clone, Debug)]
pub(crate) struct ActorArguments {
    /// Who does it. Default: the name of the user who runs the command.
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ActorArguments {
    pub(crate) fn actor(&self) -> Actor {
        Actor { name: self.actor.clone().unwrap_or_else(user), reason: self.reason.clone() }
    }
}

/// Containers and cron have no `USER`; an audit record should name somebody all the same.
fn user() -> String {
    let said = |name: &str| env::var(name).ok().filter(|user| !user.is_empty());
    said("USER").or_else(|| said("USERNAME")).or_else(by_id).unwrap_or_else(|| "cli".to_owned())
}

/// The name that goes with the user id, else the id.
#[cfg(unix)]
fn by_id() -> Option<String> {
    let id = rustix::process::getuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(name_of(id, &users).unwrap_or_else(|| format!("uid {id}")))
}

#[cfg(not(unix))]
fn by_id() -> Option<String> {
    None
}

/// From lines of `name:password:id:…`.
#[cfg(unix)]
fn name_of(id: u32, users: &str) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, own) = (fields.next()?, fields.nth(1)?);
        (own.parse() == Ok(id) && !name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_known_by_the_id() {
        let users = "root:x:0:0:root:/root:/bin/sh\n# a comment\nada:x:1000:1000::/srv/ada:/bin/sh\n:x:7:7::/:\n";
        assert_eq!(name_of(1000, users).as_deref(), Some("ada"));
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        assert_eq!(name_of(7, users), None);
        assert_eq!(name_of(42, users), None);
    }
}
