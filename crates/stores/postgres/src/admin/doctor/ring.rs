//! The ring of leaves and the sequence that fills it.

use std::fmt::Write;

use postrider_core::doctor::{Finding, Severity};
use tokio_postgres::Client;

use crate::{
    dialect::{LEAVES, Postgres},
    error::Work,
    observe,
    origin::Origin,
    purge,
    session::SEQUENCE,
    set_back::{self, Lane, PassedOver},
};

/// From this many blocks between the slowest reader and the head on, the ring is worth a look before it is full.
const BLOCKS_MANY: i64 = 6;

/// How long messages are looked for that a route has passed over, in milliseconds. What takes longer is not told.
const LOOK_MILLIS: u32 = 3_000;

/// The code of whatever is wrong with the sequence.
const ALTERED: &str = "sequence-altered";

pub(super) async fn examine(client: &Client, dialect: &Postgres, block_bits: u32) -> Work<Vec<Finding>> {
    let mut findings = Vec::new();
    findings.extend(sequence(client, dialect).await?);
    findings.extend(numbers(client, dialect).await?);
    findings.extend(ring(client, dialect, block_bits).await?);
    Ok(findings)
}

async fn sequence(client: &Client, dialect: &Postgres) -> Work<Option<Finding>> {
    if client.query_one(&dialect.render(SEQUENCE), &[]).await?.try_get(0)? {
        return Ok(None);
    }
    let name = dialect.render("{seq}");
    Ok(Some(
        Finding::new(ALTERED, Severity::Error, name.clone())
            .detail(
                "its numbers are not drawn one by one any more, and the reader's bounds rest on that; no relay reads",
            )
            .fix(format!("run `ALTER SEQUENCE {name} INCREMENT 1 CACHE 1 NO CYCLE`")),
    ))
}

/// Numbers that went back, and messages that were written meanwhile.
async fn numbers(client: &Client, dialect: &Postgres) -> Work<Option<Finding>> {
    let lanes = set_back::lanes(&client.query(&dialect.render(set_back::LANES), &[]).await?)?;
    let stored: i64 = client.query_one(&dialect.render(set_back::HIGHEST), &[]).await?.try_get(0)?;
    // Behind the two, so that none of them can be beyond it.
    let last: i64 = client.query_one(&dialect.render(observe::LAST), &[]).await?.try_get(0)?;
    let highest = set_back::highest(stored, &lanes);
    if last < highest {
        return Ok(Some(went_back(dialect, &lanes, last, highest)));
    }
    client.batch_execute(&format!("SET statement_timeout = {LOOK_MILLIS}")).await?;
    let found = match passed_over(client, dialect, &lanes).await {
        Err(fault) if fault.is_cancelled() => Ok(None),
        found => found,
    };
    client.batch_execute("RESET statement_timeout").await?;
    found
}

fn went_back(dialect: &Postgres, lanes: &[Lane], last: i64, highest: i64) -> Finding {
    let beyond = |lane: &&Lane| lane.position.hi > last && !lane.is_replay;
    let mut routes: Vec<&str> = lanes.iter().filter(beyond).map(|lane| &*lane.route).collect();
    routes.dedup();
    let reads = if routes.is_empty() { "" } else { ", and relays that have read further refuse to read" };
    let mut fix = format!("stop the producers and run `{}`", set_back::setval(dialect, highest));
    for route in routes {
        let _ = write!(fix, ", then `postrider route rebase {route}`");
    }
    Finding::new(ALTERED, Severity::Error, dialect.render("{seq}"))
        .detail(format!(
            "the numbers of the log went back: {last} is the last one drawn, and {highest} was drawn before; new messages take \
             the numbers of old ones, or fail because those are taken{reads}"
        ))
        .fix(fix)
}

/// What lies below what a route has read, and was never seen by it. A relay that begins anew with the route finds it too.
async fn passed_over(client: &Client, dialect: &Postgres, lanes: &[Lane]) -> Work<Option<Finding>> {
    let Origin { identity, restored } = Origin::seen_by(client, dialect).await?;
    if restored {
        return Ok(None);
    }
    let sql = client.prepare(&dialect.render(&PassedOver::sql())).await?;
    for lane in lanes.iter().filter(|lane| !lane.is_replay) {
        let Some(passed_over) = PassedOver::of(&lane.position, identity) else { continue };
        if client.query_one(&sql, &passed_over.parameters()).await?.try_get(0)? {
            return Ok(Some(
                Finding::new(ALTERED, Severity::Error, dialect.render("{seq}"))
                    .detail(format!(
                        "the log has messages that route {} has not read, below those that it has: the sequence was set back, \
                         and forward again; they are kept, and not delivered",
                        lane.route
                    ))
                    .fix(format!("run `postrider route rebase {}`: it delivers them", lane.route)),
            ));
        }
    }
    Ok(None)
}

/// A leaf that holds records of two turns of the ring cannot be emptied before both are done with. That is worth a word
/// where a route holds it up. One that all have passed is emptied by retention, and the one that is being written when the log
/// has moved on.
async fn ring(client: &Client, dialect: &Postgres, block_bits: u32) -> Work<Option<Finding>> {
    let mut wrapped = Vec::new();
    for leaf in 0..LEAVES {
        // Both ends of the leaf's index.
        let sql = format!("SELECT min(seq), max(seq) FROM {{log_{leaf}}}");
        let row = client.query_one(&dialect.render(&sql), &[]).await?;
        let (first, last): (Option<i64>, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
        wrapped.extend(
            first.zip(last).filter(|(first, last)| first >> block_bits != last >> block_bits).map(|ends| (leaf, ends)),
        );
    }
    let head: i64 = client.query_one(&dialect.render(observe::LAST), &[]).await?.try_get(0)?;
    let floor: Option<i64> = client.query_one(&dialect.render(purge::FLOOR), &[]).await?.try_get(0)?;
    let behind = floor.map_or(0, |floor| (head >> block_bits) - (floor >> block_bits));
    // Of the leaf that is being written, the former turn.
    let is_held = |(first, last): (i64, i64)| {
        let block = if last >> block_bits == head >> block_bits { first } else { last } >> block_bits;
        floor.is_none_or(|floor| floor < ((block + 1) << block_bits) - 1)
    };
    let held: Vec<String> =
        wrapped.iter().filter(|(_, ends)| is_held(*ends)).map(|(leaf, _)| leaf.to_string()).collect();
    let slowest = match floor {
        Some(_) => format!("the slowest route is {behind} blocks behind"),
        None => "there is no route, and nothing is removed before there is one".to_owned(),
    };
    let who = "look for a route that is paused, without a relay or far behind (`postrider status`), and for open \
               transactions; forget a route that nobody needs (`postrider route forget`)";
    Ok(if !held.is_empty() {
        Some(
            Finding::new("ring-wrapped", Severity::Warning, format!("leaves {}", held.join(", ")))
                .detail(format!(
                    "the log has gone round its ring of {LEAVES} leaves before they could be emptied; {slowest}; nothing is \
                     lost, and the leaves grow until it has caught up"
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
