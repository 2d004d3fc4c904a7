//! What is between here and the server: whether a connection is one session, and whether announcements arrive.

use std::{future::poll_fn, time::Duration};

use postrider_core::doctor::{Finding, Severity};
use tokio_postgres::{AsyncMessage, Client};

use crate::{access::Access, dialect::Postgres, error::Work, pooler};

/// How long an announcement may take. It is a matter of milliseconds where it works at all.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_secs(3);

pub(super) async fn examine(client: &Client, access: &Access, dialect: &Postgres) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    if pooler::stands_between(client, access).await? {
        findings.push(
            Finding::new("pooler", Severity::Error, "connection")
                .detail(
                    "a pooler in between gives the same session of the server to several connections; the log can be read \
                     through one session only, so a relay refuses to",
                )
                .fix("give the relay the address of the server itself, or a pool in session mode; applications may keep theirs"),
        );
    }
    if !announcements_arrive(access, &format!("{}.doctor", dialect.channel())).await? {
        findings.push(
            Finding::new("listen-broken", Severity::Warning, "LISTEN")
                .detail("announcements do not arrive, so a relay learns of new messages by asking now and then only")
                .fix("give the relay the address of the server itself instead of a pooler's"),
        );
    }
    Ok(findings)
}

/// Whether a `NOTIFY` from one connection reaches another that listens.
async fn announcements_arrive(access: &Access, channel: &str) -> Work<bool> {
    let (listener, mut connection) = access.connect().await?;
    let speaker = access.client().await?;
    let (heard, mut hearing) = tokio::sync::mpsc::unbounded_channel();
    // Ends with the connection, which ends with the listener.
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                let _ = heard.send(());
            }
        }
    });
    listener.batch_execute(&format!("LISTEN \"{channel}\"")).await?;
    speaker.batch_execute(&format!("NOTIFY \"{channel}\"")).await?;
    Ok(tokio::time::timeout(ANNOUNCEMENT_WAIT, hearing.recv()).await.is_ok_and(|heard| heard.is_some()))
}
