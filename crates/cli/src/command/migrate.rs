//! `postrider migrate`: the schema of a store, looked at, planned, applied or printed.

use clap::Subcommand;

use super::store::StoreArguments;
use crate::exit::{Code, Outcome};

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
