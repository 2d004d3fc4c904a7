//! Arguments that several commands share: which store, and who asks.

use clap::Args;
use postrider::core::admin::Actor;

use crate::{
    exit::{Failure, Outcome},
    registry::{self, OpenStore, Place, StoreAdapter},
};

/// Which store.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArguments {
    /// Where the messages are, such as `sqlite:app.db`.
    #[arg(long, value_name = "URL")]
    store: String,
    /// What the names of the store's tables begin with.
    #[arg(long, value_name = "PREFIX")]
    table_prefix: Option<String>,
    /// The schema of the store's tables, for PostgreSQL. Default: postrider.
    #[arg(long, value_name = "SCHEMA")]
    schema: Option<String>,
}

impl StoreArguments {
    /// The adapter and the place that the URL means.
    pub(crate) fn find(&self) -> Outcome<(&'static dyn StoreAdapter, Place)> {
        let (adapter, path) =
            registry::store(&self.store).map_err(|what| Failure::usage(format!("--store: {what}")))?;
        let (table_prefix, schema) = (self.table_prefix.clone(), self.schema.clone());
        Ok((adapter, Place { path, table_prefix, schema, connections: None }))
    }

    /// Opens the store as it is. An operator's look never changes the schema.
    pub(crate) async fn open(&self) -> Outcome<OpenStore> {
        let (adapter, place) = self.find()?;
        Ok(adapter.open(&place, false).await?)
    }
}

/// Who does something, and why: written into the audit record.
#[derive(Args, Clone, Debug)]
pub(crate) struct ActorArguments {
    /// Who does it. Default: the user's name.
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Why.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl ActorArguments {
    pub(crate) fn actor(&self) -> Actor {
        let user = || std::env::var("USER").or_else(|_| std::env::var("USERNAME")).unwrap_or_else(|_| "cli".to_owned());
        Actor { name: self.actor.clone().unwrap_or_else(user), reason: self.reason.clone() }
    }
}
