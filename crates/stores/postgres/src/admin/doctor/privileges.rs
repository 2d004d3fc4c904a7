//! What the role of this connection may do, against what a relay and a viewer need, and whoever enqueues.

use postrider_core::doctor::{Finding, Severity};
use tokio_postgres::Client;

use crate::{
    dialect::{LEAVES, Postgres},
    error::Work,
};

/// What a relay does with its tables, beside the leaves.
const RELAY: [(&str, &[&str]); 8] = [
    ("migration", &["SELECT"]),
    ("setting", &["SELECT"]),
    ("route", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("lane", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("node", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("parked", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("checkpoint", &["SELECT", "INSERT", "DELETE"]),
    ("audit", &["SELECT", "INSERT"]),
];

const SEQUENCES: [(&str, &str); 3] = [("seq", "SELECT"), ("ordinal", "USAGE"), ("replay", "USAGE")];

/// What operators and collectors need besides, who enqueue as the relay's role: these columns of the log, and its numbers.
const ENQUEUE: [&str; 9] =
    ["id", "topic", "name", "key", "deliver_at", "expires_at", "attempts_max", "headers", "payload"];

const COLUMN: &str = "SELECT has_column_privilege($1::text::regclass, $2, 'INSERT')";

/// A privilege on some columns is enough to look.
const TABLE: &str = "
SELECT has_table_privilege($1::text::regclass, $2)
       OR ($2 = 'SELECT' AND $3 AND has_any_column_privilege($1::text::regclass, 'SELECT'))";

const SEQUENCE: &str = "SELECT has_sequence_privilege($1::text::regclass, $2)";

/// A role that may look everywhere and write nowhere is a viewer, and that is fine. One that may write here and not there
/// is a relay that will fail.
pub(super) async fn examine(client: &Client, dialect: &Postgres) -> Work<Option<Finding>> {
    let role: String = client.query_one("SELECT current_user::text", &[]).await?.try_get(0)?;
    let (mut missing, mut unseen, mut writes) = (Vec::new(), false, false);
    let leaves = (0..LEAVES).map(|leaf| (format!("log_{leaf}"), &["SELECT", "TRUNCATE"][..]));
    let tables = RELAY.iter().map(|(table, privileges)| ((*table).to_owned(), *privileges));
    for (table, privileges) in tables.chain(leaves) {
        let name = dialect.render(&format!("{{{table}}}"));
        let by_column = table == "parked" || table.starts_with("log_");
        for privilege in privileges {
            let whole: bool = client.query_one(TABLE, &[&name, privilege, &false]).await?.try_get(0)?;
            writes |= whole && *privilege != "SELECT";
            if !whole {
                missing.push(format!("{privilege} on {name}"));
                let partly: bool = client.query_one(TABLE, &[&name, privilege, &by_column]).await?.try_get(0)?;
                unseen |= *privilege == "SELECT" && !partly;
            }
        }
    }
    for (sequence, privilege) in SEQUENCES {
        let name = dialect.render(&format!("{{{sequence}}}"));
        if !client.query_one(SEQUENCE, &[&name, &privilege]).await?.try_get::<_, bool>(0)? {
            missing.push(format!("{privilege} on {name}"));
            unseen |= privilege == "SELECT";
        }
    }
    let fix = "run the script of `postrider migrate roles` with this role as its relay";
    if missing.is_empty() {
        let missing = missing_to_enqueue(client, dialect).await?;
        return Ok((!missing.is_empty()).then(|| {
            Finding::new("missing-privileges", Severity::Warning, format!("role {role}"))
                .detail(format!(
                    "a relay works with this role, but nobody can enqueue with it, neither an operator nor what carries \
                     messages here from elsewhere; it lacks {}",
                    missing.join(", ")
                ))
                .fix(fix)
        }));
    }
    Ok(Some(if writes || unseen {
        Finding::new("missing-privileges", Severity::Error, format!("role {role}"))
            .detail(format!("a relay with this role fails; it lacks {}", missing.join(", ")))
            .fix(fix)
    } else {
        Finding::new("viewer", Severity::Note, format!("role {role}"))
            .detail("this role may look and change nothing, so a relay cannot run with it")
            .fix(format!("nothing to do if that is meant; otherwise {fix}"))
    }))
}

async fn missing_to_enqueue(client: &Client, dialect: &Postgres) -> Work<Vec<String>> {
    let (log, seq) = (dialect.render("{log}"), dialect.render("{seq}"));
    let (mut missing, mut columns) = (Vec::new(), Vec::new());
    for column in ENQUEUE {
        if !client.query_one(COLUMN, &[&log, &column]).await?.try_get::<_, bool>(0)? {
            columns.push(column);
        }
    }
    if !columns.is_empty() {
        missing.push(format!("INSERT ({}) on {log}", columns.join(", ")));
    }
    if !client.query_one(SEQUENCE, &[&seq, &"USAGE"]).await?.try_get::<_, bool>(0)? {
        missing.push(format!("USAGE on {seq}"));
    }
    Ok(missing)
}
