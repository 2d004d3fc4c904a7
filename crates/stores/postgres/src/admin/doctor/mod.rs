//! What an operator should know of the server and of the store's tables: facts with a cause and a fix.
//!
//! Each file is one kind of fact. All of it is asked on connections of its own, straight and not from the pool, because
//! what is between here and the server is one of the questions. Nothing is changed: what a role may not see is itself a
//! finding.

pub(crate) mod blockers;
mod connection;
mod privileges;
mod ring;
mod server;

use std::time::Duration;

use postrider_core::doctor::{Finding, Thresholds};

use crate::{PostgresStore, error::Work};

/// The code of [`blockage`].
const LOCKED: &str = "store-locked";

/// As a look has it, for a connection of its own.
const LOCK_TIMEOUT: &str = "SET lock_timeout = '3s'";

pub(super) async fn examine(store: &PostgresStore, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let (access, dialect) = (&store.0.access, &store.0.dialect);
    let client = access.client().await?;
    client.batch_execute(LOCK_TIMEOUT).await?;
    let mut findings = Vec::new();
    findings.extend(server::examine(&client, access).await?);
    findings.extend(blockers::blockage(&client, dialect).await?);
    findings.extend(blockers::examine(&client, dialect, thresholds).await?);
    findings.extend(privileges::examine(&client, dialect).await?);
    match ring::examine(&client, dialect, store.block_bits()).await {
        // Whoever has the lock matters more than what is behind it. Perhaps it was too young for that at first.
        Err(fault) if fault.is_lock_timeout() => {
            if findings.iter().all(|finding| finding.code != LOCKED) {
                findings.extend(blockers::blockage(&client, dialect).await?);
            }
        }
        ring => findings.extend(ring?),
    }
    // A standby neither listens nor announces.
    if findings.iter().all(|finding: &Finding| finding.code != "standby") {
        findings.extend(connection::examine(&client, access, dialect).await?);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// Whoever keeps a lock that a relay or an application waits for, or has one on a whole table that lets nobody even look.
pub(super) async fn blockage(store: &PostgresStore) -> Work<Option<Finding>> {
    blockers::blockage(&store.0.access.client().await?, &store.0.dialect).await
}

/// Transactions that have written something and are still open.
pub(super) async fn uncommitted(store: &PostgresStore, age: Duration) -> Work<Vec<Finding>> {
    blockers::uncommitted(&store.0.access.client().await?, &store.0.dialect, age).await
}
