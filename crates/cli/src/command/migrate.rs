//! `postrider migrate`: the schema of a store, looked at, planned, applied or printed.

use clap::{Args, Subcommand};

use super::store::StoreArguments;
use crate::{
    exit::{Code, Outcome},
    registry::Roles,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Every migration and whether it is applied. Exit code 1 while some are pending.
    Status(StoreArguments),
    /// What `up` would apply; changes nothing.
    Plan(StoreArguments),
    /// Applies what is pending, all or nothing. Makes the database if there is none.
    Up(StoreArguments),
    /// Prints all migrations as a script, for people who apply them by hand.
    Sql(StoreArguments),
    /// Prints a script that gives four database roles what each needs and no more; connects to nothing.
    Roles(RoleArguments),
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
        Action::Status(store) => status(store),
        Action::Plan(store) => plan(store),
        Action::Up(store) => up(store),
        Action::Sql(store) => {
            let (adapter, place) = store.find()?;
            print!("{}", adapter.migration_script(&place)?);
            Ok(Code::Done)
        }
        Action::Roles(arguments) => {
            let RoleArguments { store, app, relay, viewer, migrate } = arguments;
            let (adapter, place) = store.find()?;
            print!("{}", adapter.role_script(&place, &Roles { app, relay, viewer, migrate })?);
            Ok(Code::Done)
        }
    }
}

fn status(store: &StoreArguments) -> Outcome {
    let (adapter, place) = store.find()?;
    let migrations = adapter.migrations(&place)?;
    for (line, _) in &migrations {
        println!("{line}");
    }
    let complete = migrations.iter().all(|(_, applied)| *applied);
    Ok(if complete { Code::Done } else { Code::Problem })
}

fn plan(store: &StoreArguments) -> Outcome {
    let (adapter, place) = store.find()?;
    let pending: Vec<String> =
        adapter.migrations(&place)?.into_iter().filter(|(_, applied)| !applied).map(|(line, _)| line).collect();
    if pending.is_empty() {
        println!("nothing to do: the schema is up to date");
    }
    for line in pending {
        println!("{line}");
    }
    Ok(Code::Done)
}

fn up(store: &StoreArguments) -> Outcome {
    let (adapter, place) = store.find()?;
    let applied = adapter.migrate(&place)?;
    if applied.is_empty() {
        println!("nothing to do: the schema is up to date");
    }
    for line in applied {
        println!("applied {line}");
    }
    Ok(Code::Done)
}
