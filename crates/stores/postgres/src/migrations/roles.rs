//! Least privilege: four roles, and a script that gives each of them what it needs and nothing else.
//!
//! | Role | May | May not |
//! |---|---|---|
//! | app | enqueue | read anything, or choose a record's place in the log |
//! | relay | read the log, settle, park, purge; everything that an operator does, enqueueing with it | change the schema, or messages |
//! | viewer | look at the status, without payloads and headers | change anything |
//! | migrate | everything: it owns the tables | |
//!
//! The script is `roles.sql` beside this file, with the names put in. Names of roles are quoted, so any will do.

use postrider_core::{Error, Result};

use crate::{
    dialect::{LEAVES, Postgres, SCHEMA_BYTES_MAX},
    locked::BOUNDED,
};

const TEMPLATE: &str = include_str!("roles.sql");

/// Tables beside the leaves. A test compares it with what the migrations make.
const TABLES: [&str; 9] = ["migration", "log", "setting", "route", "lane", "checkpoint", "node", "parked", "audit"];

const SEQUENCES: [&str; 3] = ["seq", "ordinal", "replay"];

/// What an enqueue by SQL calls, in all overloads. Those that there are not are passed over.
const FUNCTIONS: [&str; 3] = ["enqueue", "check_name", "encode_headers"];

/// The names of the four roles, each for one purpose: what one is given is taken from the others.
///
/// ```
/// use postrider_store_postgres::{Postgres, migrations::{Roles, roles}};
/// let names = Roles { app: "shop", ..Roles::default() };
/// assert!(roles(&Postgres::default(), &names)?.contains("TO \"shop\""));
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles<'a> {
    /// Enqueues.
    pub app: &'a str,
    /// Relays, and acts for operators.
    pub relay: &'a str,
    /// Looks.
    pub viewer: &'a str,
    /// Owns the tables.
    pub migrate: &'a str,
}

impl Default for Roles<'_> {
    fn default() -> Self {
        Self {
            app: "postrider_app",
            relay: "postrider_relay",
            viewer: "postrider_viewer",
            migrate: "postrider_migrate",
        }
    }
}

/// The script that gives four existing roles what each needs, in one transaction. To be run after the migrations, by a
/// superuser or by the owner of the tables, and again after later ones.
///
/// # Errors
/// If a name cannot be that of a role: empty, longer than [`SCHEMA_BYTES_MAX`] bytes, with a dollar sign or a
/// control character, or one of those that PostgreSQL keeps for itself (`public`, `none`, `pg_…`); or if one name stands
/// for two purposes.
pub fn roles(dialect: &Postgres, names: &Roles<'_>) -> Result<String> {
    refuse_shared(names)?;
    let quoted = [
        ("APP_ROLE", quote("app", names.app)?),
        ("RELAY_ROLE", quote("relay", names.relay)?),
        ("VIEWER_ROLE", quote("viewer", names.viewer)?),
        ("MIGRATE_ROLE", quote("migrate", names.migrate)?),
    ];
    let leaves: Vec<String> = (0..LEAVES).map(|leaf| dialect.render(&format!("{{log_{leaf}}}"))).collect();
    let tables: Vec<String> = TABLES.iter().map(|table| dialect.render(&format!("{{{table}}}"))).collect();
    let all = [tables, leaves.clone()].concat();
    // The names of roles come last, for they may look like anything, and in one pass.
    let script = dialect
        .render(TEMPLATE)
        .replace("OWNERS", &owners(dialect, &all))
        .replace("FUNCTIONS", &functions(dialect))
        .replace("TABLES", &all.join(", "))
        .replace("LEAVES", &leaves.join(", "));
    Ok(format!("BEGIN;\n{BOUNDED}{}COMMIT;\n", put_in(&script, &quoted)))
}

/// The script takes from each role what the others are given, so one that is two of them would be left with too little.
fn refuse_shared(names: &Roles<'_>) -> Result<()> {
    let mut seen = std::collections::BTreeMap::new();
    for (purpose, name) in
        [("app", names.app), ("relay", names.relay), ("viewer", names.viewer), ("migrate", names.migrate)]
    {
        if let Some(other) = seen.insert(name, purpose) {
            let shown: String = name.escape_debug().to_string().chars().take(80).collect();
            return Err(Error::invalid("one role cannot serve two purposes; make one for each")
                .with("role", shown)
                .with("purposes", format!("{other} and {purpose}")));
        }
    }
    Ok(())
}

fn owners(dialect: &Postgres, tables: &[String]) -> String {
    let tables = tables.iter().map(|table| format!("ALTER TABLE {table} OWNER TO MIGRATE_ROLE;"));
    let sequences = SEQUENCES.iter().map(|sequence| dialect.render(&format!("{{{sequence}}}")));
    let sequences = sequences.map(|sequence| format!("ALTER SEQUENCE {sequence} OWNER TO MIGRATE_ROLE;"));
    tables.chain(sequences).collect::<Vec<_>>().join("\n")
}

/// A loop over the overloads that there are. The roles are put in as literals, inside of the block's own quotes.
fn functions(dialect: &Postgres) -> String {
    let names: Vec<String> = FUNCTIONS.iter().map(|name| format!("'{}{name}'", dialect.prefix())).collect();
    format!(
        "DO $block$
DECLARE
    function regprocedure;
BEGIN
    FOR function IN SELECT oid FROM pg_proc
                     WHERE pronamespace = '{schema}'::regnamespace AND proname IN ({names})
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO %I', function, MIGRATE_ROLE_TEXT);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', function, APP_ROLE_TEXT);
    END LOOP;
END
$block$;",
        schema = dialect.render("{schema}"),
        names = names.join(", "),
    )
}

/// Puts the names in, each where its word stands, and looks at nothing twice.
fn put_in(script: &str, names: &[(&str, String)]) -> String {
    let mut out = String::with_capacity(script.len() + 512);
    let mut rest = script;
    // Ends with the script: every turn takes something off it.
    while let Some((at, (word, name))) =
        names.iter().filter_map(|entry| Some((rest.find(entry.0)?, entry))).min_by_key(|(at, _)| *at)
    {
        out.push_str(&rest[..at]);
        rest = &rest[at + word.len()..];
        match rest.strip_prefix("_TEXT") {
            Some(behind) => {
                let plain = name[1..name.len() - 1].replace("\"\"", "\"");
                out.push_str(&format!("E'{}'", plain.replace('\\', "\\\\").replace('\'', "\\'")));
                rest = behind;
            }
            None => out.push_str(name),
        }
    }
    out.push_str(rest);
    out
}

fn quote(what: &'static str, name: &str) -> Result<String> {
    let reserved = matches!(name, "public" | "none") || name.starts_with("pg_");
    // A dollar sign could end the block that the name is written into, a line break the comment.
    let unwritable = name.contains('$') || name.contains(char::is_control);
    if name.is_empty() || name.len() > SCHEMA_BYTES_MAX || unwritable || reserved {
        return Err(Error::invalid("this cannot be the name of a role")
            .with(what, name.escape_debug().to_string().chars().take(80).collect::<String>())
            .with("bytes_max", SCHEMA_BYTES_MAX));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_roles_cannot_become_sql() {
        let hostile = Roles { app: "x\"; DROP TABLE a; --", viewer: "it's RELAY_ROLE", ..Roles::default() };
        let script = roles(&Postgres::default(), &hostile).unwrap();
        assert!(script.contains("TO \"x\"\"; DROP TABLE a; --\";"), "{script}");
        assert!(script.contains("\"it's RELAY_ROLE\""), "a name is not looked at again: {script}");
        for left in ["_ROLE;", "OWNERS", "FUNCTIONS", "TABLES ", "LEAVES", "{", "MIGRATE_ROLE"] {
            assert!(!script.contains(left), "{left} is left over in {script}");
        }
    }

    #[test]
    fn one_role_serves_one_purpose() {
        let shared = Roles { app: "shop", relay: "shop", ..Roles::default() };
        let told = roles(&Postgres::default(), &shared).unwrap_err().to_string();
        assert!(told.contains("app and relay") && told.contains("shop"), "{told}");
    }

    #[test]
    fn names_that_postgresql_keeps_are_refused() {
        let long = "r".repeat(64);
        for name in ["", "public", "none", "pg_monitor", "a\0b", "a\nb", "a$block$", &long] {
            assert!(roles(&Postgres::default(), &Roles { relay: name, ..Roles::default() }).is_err(), "{name:?}");
        }
    }
}
