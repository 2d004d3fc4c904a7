//! `postrider version`: which program this is, and which schema of each store it works with.

use clap::Args;
use postrider::{mongodb, mysql, postgres, sqlite};
use serde_json::json;

use crate::{
    exit::{Code, Outcome},
    output::OutputArguments,
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let (on_sqlite, on_postgres) = (sqlite::migrations::LATEST, postgres::migrations::LATEST);
    let (on_mysql, on_mongodb) = (mysql::migrations::LATEST, mongodb::migrations::LATEST);
    let schema = json!({ "sqlite": on_sqlite, "postgres": on_postgres, "mysql": on_mysql, "mongodb": on_mongodb });
    let words = format!("sqlite {on_sqlite}, postgres {on_postgres}, mysql {on_mysql}, mongodb {on_mongodb}");
    arguments.output.object(
        || json!({ "version": version, "schema": schema }),
        || format!("postrider {version} (schema: {words})\n"),
    );
    Ok(Code::Done)
}
