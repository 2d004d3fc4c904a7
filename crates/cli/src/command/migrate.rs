//! `postrider migrate`: the schema of a store, looked at, planned, applied or printed.

use clap::{Args, Subcommand};
use postrider::core::migration::Standing;
use serde_json::{Value, json};

use super::store::{ActorArguments, StoreArguments};
use crate::{
    exit::{Code, Outcome},
    output::{OutputArguments, print},
    registry::{Place, Roles, StoreAdapter},
};

const UP_TO_DATE: &str = "nothing to do: the schema is up to date\n";

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Every migration and whether it is applied. Exit code 1 while some are pending.
    Status(Look),
    /// What `up` would apply; changes nothing.
    Plan(Look),
    /// Applies what is pending: on SQLite and PostgreSQL all or nothing, on MySQL and MongoDB step by step, and the next run
    /// goes on. Makes the file of SQLite, and the database of MongoDB, if there is none.
    Up(Up),
    /// Prints all migrations as a script, for people who apply them by hand.
    Sql(StoreArguments),
    /// Prints a script that gives four database roles what each needs and no more; connects to nothing.
    Roles(RoleArguments),
}

#[derive(Args)]
pub(crate) struct Look {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
pub(crate) struct Up {
    /// Makes a store although the schema has one under another table prefix (PostgreSQL, MySQL, MongoDB).
    #[arg(long)]
    new_store: bool,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Args)]
pub(crate) struct RoleArguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Enqueues, and reads nothing.
    #[arg(long, value_name = "ROLE", default_value = "postrider_app")]
    app: String,
    /// Runs the relay, and acts for operators.
    #[arg(long, value_name = "ROLE", default_value = "postrider_relay")]
    relay: String,
    /// Looks at the status, without payloads.
    #[arg(long, value_name = "ROLE", default_value = "postrider_viewer")]
    viewer: String,
    /// Owns the tables and migrates them.
    #[arg(long, value_name = "ROLE", default_value = "postrider_migrate")]
    migrate: String,
}

pub(crate) fn run(action: &Action) -> Outcome {
    match action {
        Action::Status(look) => status(look),
        Action::Plan(look) => plan(look),
        Action::Up(arguments) => up(arguments),
        Action::Sql(store) => {
            let (adapter, place) = store.find()?;
            print(adapter.migration_script(&place)?);
            Ok(Code::Done)
        }
        Action::Roles(arguments) => {
            let RoleArguments { store, app, relay, viewer, migrate } = arguments;
            let (adapter, place) = store.find()?;
            print(adapter.role_script(&place, &Roles { app, relay, viewer, migrate })?);
            Ok(Code::Done)
        }
    }
}

fn status(look: &Look) -> Outcome {
    let (adapter, place) = look.store.find()?;
    let migrations = adapter.migrations(&place)?;
    tell_missing(adapter, &place);
    look.output.list(|| as_json(&migrations), || migrations.iter().map(|standing| format!("{standing}\n")).collect());
    let complete = migrations.iter().all(|standing| standing.applied_at.is_some());
    Ok(if complete { Code::Done } else { Code::Problem })
}

/// That everything is pending may also mean that the path is mistyped.
fn tell_missing(adapter: &dyn StoreAdapter, place: &Place) {
    if adapter.is_missing(place) {
        eprintln!("there is no such database yet: {}; `postrider migrate up` makes it", place.path);
    }
}

fn plan(look: &Look) -> Outcome {
    let (adapter, place) = look.store.find()?;
    let mut pending = adapter.migrations(&place)?;
    tell_missing(adapter, &place);
    pending.retain(|standing| standing.applied_at.is_none());
    look.output.list(
        || as_json(&pending),
        || match pending.as_slice() {
            [] => UP_TO_DATE.to_owned(),
            pending => pending.iter().map(|standing| format!("{standing}\n")).collect(),
        },
    );
    Ok(Code::Done)
}

fn as_json(migrations: &[Standing]) -> Vec<Value> {
    let one = |standing: &Standing| {
        json!({
            "version": standing.version, "name": standing.name, "checksum": standing.checksum,
            "applied_at": standing.applied_at.map(|at| at.to_string()),
        })
    };
    migrations.iter().map(one).collect()
}

fn up(arguments: &Up) -> Outcome {
    let (adapter, place) = arguments.store.find()?;
    let applied = adapter.migrate(&place, arguments.new_store, &arguments.actor.actor())?;
    arguments.output.list(
        || as_json(&applied),
        || match applied.as_slice() {
            [] => UP_TO_DATE.to_owned(),
            applied => applied.iter().map(|done| format!("applied {:04} {}\n", done.version, done.name)).collect(),
        },
    );
    Ok(Code::Done)
}
