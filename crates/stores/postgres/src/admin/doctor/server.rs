//! Settings of the server under which the database itself may lose or take back what it has committed, or takes nothing.

use postrider_core::doctor::{Finding, Severity};
use tokio_postgres::Client;

use crate::{access::Access, error::Work};

const STATE: &str = "
SELECT pg_is_in_recovery(), current_setting('fsync') = 'off', current_setting('full_page_writes') = 'off',
       current_setting('synchronous_commit') = 'off', current_setting('default_transaction_read_only') = 'on'";

/// Where it is switched off for others than this connection, by any of its names: a setting is kept as it was typed. A role of
/// null is all of them.
const ASYNCHRONOUS: &str = "
SELECT coalesce('role ' || quote_ident(rolname), 'all roles')
       || coalesce(' in database ' || quote_ident(datname), '')
  FROM pg_db_role_setting
  LEFT JOIN pg_roles ON pg_roles.oid = setrole
  LEFT JOIN pg_database ON pg_database.oid = setdatabase
 WHERE EXISTS (SELECT 1
                 FROM unnest(setconfig) AS setting
                WHERE lower(setting) IN ('synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=no',
                                         'synchronous_commit=0'))
   AND (setdatabase = 0 OR datname = current_database())
 ORDER BY 1";

pub(super) async fn examine(client: &Client, access: &Access) -> Work<Vec<Finding>> {
    let row = client.query_one(STATE, &[]).await?;
    let mut findings = Vec::new();
    if row.try_get(0)? {
        findings.push(
            Finding::new("standby", Severity::Error, "server")
                .detail("this server is a standby: the log can be read, and anything written, on the primary only")
                .fix("connect to the primary, or name all hosts in the URL: the one that accepts writes is taken"),
        );
    }
    if row.try_get(4)? {
        findings.push(
            Finding::new("read-only", Severity::Error, "default_transaction_read_only")
                .detail("transactions of this connection may write nothing: a relay settles nothing and keeps no lane")
                .fix(
                    "switch it off for the role, the database or the server; some providers set it when a disk is full",
                ),
        );
    }
    if row.try_get(1)? {
        findings.push(
            Finding::new("fsync-off", Severity::Warning, "fsync")
                .detail("a crash of the machine can lose committed messages and damage the whole database")
                .fix("run `ALTER SYSTEM SET fsync = on` and reload the server"),
        );
    }
    if row.try_get(2)? {
        findings.push(
            Finding::new("full-page-writes-off", Severity::Warning, "full_page_writes")
                .detail("a crash of the machine can damage pages that were half written")
                .fix("run `ALTER SYSTEM SET full_page_writes = on` and reload the server"),
        );
    }
    if row.try_get(3)? {
        findings.push(asynchronous("this connection"));
    }
    for row in client.query(ASYNCHRONOUS, &[]).await? {
        findings.push(asynchronous(row.try_get(0)?));
    }
    if access.is_open_to_eavesdroppers() {
        findings.push(
            Finding::new("tls-off", Severity::Warning, "sslmode")
                .detail("messages and the password travel to another machine in clear text")
                .fix("switch TLS on at the server and take `sslmode=disable` out of the URL"),
        );
    }
    Ok(findings)
}

fn asynchronous(subject: &str) -> Finding {
    Finding::new("synchronous-commit-off", Severity::Warning, subject)
        .detail("a crash of the server can take back commits whose messages are published already")
        .fix("set `synchronous_commit` to `on` there, at least for transactions that enqueue")
}
