//! The ring of leaves and the sequence that fills it.

use postrider_core::doctor::{Finding, Severity};
use tokio_postgres::Client;

use crate::{
    dialect::{LEAVES, Postgres},
    error::Work,
    observe, purge,
    session::SEQUENCE,
};

/// From this many blocks between the slowest reader and the head on, the ring is worth a look before it is full.
const BLOCKS_MANY: i64 = 6;

pub(super) async fn examine(client: &Client, dialect: &Postgres, block_bits: u32) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    findings.extend(sequence(client, dialect).await?);
    findings.extend(ring(client, dialect, block_bits).await?);
    Ok(findings)
}

async fn sequence(client: &Client, dialect: &Postgres) -> Work<Option<Finding>> {
    if client.query_one(&dialect.render(SEQUENCE), &[]).await?.try_get(0)? {
        return Ok(None);
    }
    let name = dialect.render("{seq}");
    Ok(Some(
        Finding::new("sequence-altered", Severity::Error, name.clone())
            .detail(
                "its numbers are not drawn one by one any more, and the reader's bounds rest on that; no relay reads",
            )
            .fix(format!("run `ALTER SEQUENCE {name} INCREMENT 1 CACHE 1 NO CYCLE`")),
    ))
}

/// A leaf that holds records of two turns of the ring cannot be emptied before both are done with.
async fn ring(client: &Client, dialect: &Postgres, block_bits: u32) -> Work<Option<Finding>> {
    let mut wrapped = Vec::new();
    for leaf in 0..LEAVES {
        // Both ends of the leaf's index.
        let sql = format!("SELECT min(seq), max(seq) FROM {{log_{leaf}}}");
        let row = client.query_one(&dialect.render(&sql), &[]).await?;
        let (first, last): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        if first.zip(last).is_some_and(|(first, last)| first >> block_bits != last >> block_bits) {
            wrapped.push(leaf.to_string());
        }
    }
    let head: i64 = client.query_one(&dialect.render(observe::LAST), &[]).await?.try_get(0)?;
    let floor: Option<i64> = client.query_one(&dialect.render(purge::FLOOR), &[]).await?.try_get(0)?;
    let behind = floor.map_or(0, |floor| (head >> block_bits) - (floor >> block_bits));
    let who = "look for a route that is paused, without a relay or far behind (`postrider status`), and for open \
               transactions; forget a route that nobody needs (`postrider route forget`)";
    Ok(if !wrapped.is_empty() {
        Some(
            Finding::new("ring-wrapped", Severity::Warning, format!("leaves {}", wrapped.join(", ")))
                .detail(format!(
                    "the log has gone round its ring of {LEAVES} leaves before they could be emptied; the slowest route is \
                     {behind} blocks behind; nothing is lost, and the leaves grow until it has caught up"
                ))
                .fix(who),
        )
    } else if behind >= BLOCKS_MANY {
        Some(
            Finding::new("ring-filling", Severity::Warning, "log")
                .detail(format!("the slowest route is {behind} blocks behind, of {LEAVES} that the ring has"))
                .fix(who),
        )
    } else {
        None
    })
}
