//! `postrider capture generate`: triggers that make messages of the changes of a table, as SQL to read and apply.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use postrider::{
    core::capture::{Capture, Source},
    mysql::{self, Mysql},
    postgres::{self, Postgres},
};

use crate::{
    config,
    exit::{Code, Failure, Outcome},
    output::print,
};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// Prints the SQL that makes the triggers of a table. Nothing is applied.
    Generate(Box<Arguments>),
}

#[derive(Args)]
pub(crate) struct Arguments {
    /// Which changes of which tables become messages: a TOML file with `[[capture]]` sections.
    #[arg(long, value_name = "FILE", required_unless_present = "layout", conflicts_with_all = ["layout", "table"])]
    mapping: Option<PathBuf>,
    /// In place of a file: a table of a known layout.
    #[arg(long, value_enum, requires = "table")]
    layout: Option<Layout>,
    /// The table of that layout, such as `public.outbox`.
    #[arg(long, value_name = "SCHEMA.TABLE", requires = "layout")]
    table: Option<String>,
    /// The topic, with columns in it. Default: `outbox.event.${aggregatetype}`.
    #[arg(long, value_name = "TEMPLATE", requires = "layout")]
    topic: Option<String>,
    /// A further column as a header; may be given several times.
    #[arg(long, value_name = "NAME=COLUMN", requires = "layout")]
    header: Vec<String>,
    /// Takes over the rows that the table has already, once.
    #[arg(long, requires = "layout")]
    with_existing: bool,
    /// The column that says in which order the existing rows were written. Default: as they lie in the table.
    #[arg(long, value_name = "COLUMN", requires = "with_existing")]
    order_by: Option<String>,
    /// Whose SQL it is.
    #[arg(long, value_enum, default_value = "postgres")]
    dialect: Dialect,
    /// The schema of the store's tables, or their database where it is not that of the captured ones (MySQL). Default:
    /// postrider.
    #[arg(long, value_name = "SCHEMA")]
    schema: Option<String>,
    /// What the names of the store's tables begin with. Default: nothing, or postrider_ (MySQL).
    #[arg(long, value_name = "PREFIX")]
    table_prefix: Option<String>,
    /// Prints the SQL that removes the triggers instead.
    #[arg(long)]
    drop: bool,
    /// Looks at this database first and refuses tables and columns that it does not have. For MySQL it also says which
    /// columns a row has.
    #[arg(long, value_name = "URL")]
    check: Option<String>,
    /// Writes to a file instead of standard output.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Dialect {
    Postgres,
    /// MariaDB and MySQL.
    Mysql,
}

/// Tables whose columns are known.
#[derive(Clone, Copy, ValueEnum)]
enum Layout {
    /// The outbox table that Debezium's event router reads.
    Debezium,
}

pub(crate) async fn run(action: &Action) -> Outcome {
    let Action::Generate(arguments) = action;
    let sql = match arguments.dialect {
        Dialect::Postgres => arguments.for_postgres().await?,
        Dialect::Mysql => arguments.for_mysql().await?,
    };
    match &arguments.to {
        None => print(&sql),
        Some(path) => std::fs::write(path, sql)
            .map_err(|error| Failure::because(Code::Usage, format!("{} cannot be written", path.display()), &error))?,
    }
    Ok(Code::Done)
}

impl Arguments {
    async fn for_postgres(&self) -> Outcome<String> {
        let schema = self.schema.as_deref().unwrap_or(postgres::SCHEMA);
        let dialect = Postgres::new(schema, self.table_prefix.as_deref().unwrap_or_default())?;
        let script = postgres::capture::Script::new(&dialect, self.captures()?)?;
        if let Some(url) = &self.check {
            refuse(&postgres::capture::check(url, &script).await?)?;
        }
        Ok(if self.drop { script.remove() } else { script.create() })
    }

    async fn for_mysql(&self) -> Outcome<String> {
        let dialect = Mysql::with_prefix(self.table_prefix.as_deref().unwrap_or(mysql::PREFIX))?;
        let captures = self.captures()?;
        let tables = match &self.check {
            Some(url) => Some(mysql::capture::Tables::look(url, &captures).await?),
            None => None,
        };
        refuse(&tables.as_ref().map(|tables| tables.problems(&captures)).unwrap_or_default())?;
        let script = mysql::capture::Script::new(&dialect, self.schema.as_deref(), captures, tables.as_ref())?;
        Ok(if self.drop { script.remove() } else { script.create() })
    }

    fn captures(&self) -> Outcome<Vec<Capture>> {
        if let Some(path) = &self.mapping {
            return config::capture::load(path);
        }
        // clap has made sure that it is there.
        let table = self.table.as_deref().unwrap_or_default();
        let Layout::Debezium = self.layout.unwrap_or(Layout::Debezium);
        let mut capture = Capture::debezium(table)?;
        if let Some(topic) = &self.topic {
            capture = capture.topic(topic)?;
        }
        for header in &self.header {
            let (name, column) = header
                .split_once('=')
                .ok_or_else(|| Failure::usage(format!("--header: `{header}` is not `name=column`")))?;
            capture = capture.header(name, source(name, column))?;
        }
        if self.with_existing {
            capture = capture.with_existing(self.order_by.as_deref())?;
        }
        Ok(vec![capture])
    }
}

fn refuse(problems: &[String]) -> Outcome<()> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!("the database does not have it\n  {}", problems.join("\n  "))))
}

/// The trace context is the one header whose column has a format of its own.
fn source(name: &str, column: &str) -> Source {
    let column = column.to_owned();
    if name == postrider::core::headers::TRACEPARENT && column == "tracingspancontext" {
        Source::Tracing(column)
    } else {
        Source::Column(column)
    }
}
