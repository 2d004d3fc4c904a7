//! Captures held against a database: what a script would refuse when it is applied, told before.

use postrider_core::Result;

use super::{Capture, Payload, Script};
use crate::{
    db::Db,
    error::{Fault, Work},
    migrations,
};

const COLUMNS: &str = "
SELECT a.attname::text, format_type(a.atttypid, NULL), t.typbasetype <> 0
  FROM pg_attribute AS a
  JOIN pg_type AS t ON t.oid = a.atttypid
  JOIN pg_class AS c ON c.oid = a.attrelid
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum";

/// Types that an `enqueue` takes as they are.
const PAYLOADS: [&str; 7] = ["bytea", "text", "character varying", "character", "name", "json", "jsonb"];

/// Types that can hold an id.
const IDS: [&str; 4] = ["uuid", "text", "character varying", "character"];

/// Every table and column of a script that a database does not have, and every type that does not fit, in words.
///
/// # Errors
/// What PostgreSQL answers.
pub async fn check(url: &str, script: &Script) -> Result<Vec<String>> {
    let attempt = async {
        let mut client = migrations::connect(url).await?;
        let db = Db::look(&mut client, script.dialect()).await?;
        let mut problems = Vec::new();
        for capture in script.captures() {
            look(&db, capture, &mut problems).await?;
        }
        db.commit().await?;
        Ok::<_, Fault>(problems)
    };
    attempt.await.map_err(|fault| fault.into_error("look at the tables"))
}

async fn look(db: &Db<'_>, capture: &Capture, problems: &mut Vec<String>) -> Work<()> {
    let table = capture.table();
    let mut columns: Vec<(String, String, bool)> = Vec::new();
    for row in db.query(COLUMNS, &[&table.schema(), &table.name()]).await? {
        columns.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    }
    if columns.is_empty() {
        problems.push(format!("there is no table {table}"));
        return Ok(());
    }
    for name in capture.columns() {
        if !columns.iter().any(|(known, ..)| known == name) {
            let known: Vec<&str> = columns.iter().map(|(known, ..)| known.as_str()).collect();
            problems.push(format!("{table} has no column `{name}`; it has {}", known.join(", ")));
        }
    }
    let mut fits = |column: &str, what: &str, types: &[&str]| {
        let found = columns.iter().find(|(known, ..)| known == column);
        // A domain is as good as what it is made of, and that the script finds out.
        if let Some((name, ty, false)) = found
            && !types.contains(&ty.as_str())
        {
            problems.push(format!("the column `{name}` of {table} has the type {ty}, which is no {what}"));
        }
    };
    if let Payload::Column(column) = capture.carried() {
        fits(column, "payload: bytes, text or JSON", &PAYLOADS);
    }
    if let Some(column) = capture.id_column() {
        fits(column, "message id: a UUID, also as text", &IDS);
    }
    Ok(())
}
