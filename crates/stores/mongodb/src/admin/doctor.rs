//! What an operator should know of the server: whether a crash can take back a commit, whether the log is as it was made, how
//! far back the server remembers, which lanes had to be read anew because it did not, and whether it lets transactions be open
//! for longer than such a scan reaches back.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use postrider_core::doctor::{Finding, Severity, Thresholds};

use crate::{
    MongoStore,
    config::OVERLAP_LIFES,
    error::Work,
    lease::lanes,
    migrations, server,
    value::{is_true, long_opt, text_opt},
};

/// A server that remembers less is one long weekend away from a scan.
const HISTORY_MIN: Duration = Duration::from_hours(24);

pub(super) async fn examine(store: &MongoStore, thresholds: Thresholds) -> Work<Vec<Finding>> {
    let mut findings: Vec<Finding> = durability(store).await.into_iter().collect();
    findings.extend(log(store).await);
    findings.extend(history(store).await);
    findings.extend(recovered(store).await?);
    findings.extend(transaction_life(store).await);
    findings.extend(open_transactions(store, thresholds.transaction_age).await);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// Needs a privilege that an application mostly lacks; without it there is nothing to say.
async fn durability(store: &MongoStore) -> Option<Finding> {
    let admin = store.0.client.database("admin");
    let answer = admin.run_command(doc! { "replSetGetConfig": 1 }).await.ok()?;
    let config = answer.get_document("config").ok()?;
    if !config.contains_key("writeConcernMajorityJournalDefault")
        || is_true(config, "writeConcernMajorityJournalDefault")
    {
        return None;
    }
    Some(
        Finding::new("synchronous-commit-off", Severity::Warning, "writeConcernMajorityJournalDefault = false")
            .detail("a majority may have a message in memory alone: a crash of all machines can take it back, published or not")
            .fix("set writeConcernMajorityJournalDefault to true in the configuration of the replica set"),
    )
}

/// What the migrations have made of the log, and somebody has dropped or changed. Who may not see it has nothing to say.
async fn log(store: &MongoStore) -> Option<Finding> {
    let mut db = store.alone().await.ok()?;
    let lacking: Vec<&str> = migrations::lacking(&mut db).await.ok()?.iter().map(|part| part.what).collect();
    if lacking.is_empty() {
        return None;
    }
    Some(
        Finding::new("store-refused", Severity::Error, db.names.log())
            .detail(format!(
                "not there as the migrations have made it: {}. Without its index a scan sorts all that the log holds, page by \
                 page; without its validator messages get in that cannot be read as they were meant",
                lacking.join(", ")
            ))
            .fix("`postrider migrate up` makes it again"),
    )
}

/// From the oldest to the newest entry of the server's history.
async fn history(store: &MongoStore) -> Option<Finding> {
    let oplog = store.0.client.database("local").collection::<Document>("oplog.rs");
    let first = oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await.ok()??;
    let last = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 }).await.ok()??;
    let time = |entry: &Document| entry.get_timestamp("ts").map(|ts| ts.time).ok();
    let window = Duration::from_secs(u64::from(time(&last)?.saturating_sub(time(&first)?)));
    let stats = store.0.client.database("local").run_command(doc! { "collStats": "oplog.rs" }).await.ok()?;
    // One that is not full yet has a window that still grows.
    let (size, most) = (long_opt(&stats, "size")?, long_opt(&stats, "maxSize")?);
    if window >= HISTORY_MIN || size < most / 2 {
        return None;
    }
    Some(
        Finding::new("history-short", Severity::Warning, format!("the oplog holds {} s", window.as_secs()))
            .detail("a route that stands still for longer is read anew from the collection, with duplicates")
            .fix("make the oplog larger with replSetResizeOplog, or set storage.oplogMinRetentionHours"),
    )
}

async fn recovered(store: &MongoStore) -> Work<Vec<Finding>> {
    let mut db = store.look().await?;
    let now = db.now().await?;
    let mut findings = Vec::new();
    for (route, rows) in lanes(&mut db, now).await? {
        for lane in rows {
            let Some(at) = lane.recovered else { continue };
            findings.push(
                Finding::new("history-lost", Severity::Note, format!("lane {route}/{}", lane.number))
                    .detail(format!(
                        "the server had forgotten where the lane was, so at {at} it was read anew from the collection: nothing \
                         is lost, some messages came twice"
                    ))
                    .fix("keep the relay running, or make the oplog larger"),
            );
        }
    }
    Ok(findings)
}

/// Needs the privilege `getParameter`; without it there is nothing to say.
async fn transaction_life(store: &MongoStore) -> Option<Finding> {
    let life = server::transaction_life(&store.0.client).await?;
    let (life_seconds, overlap) = (life.as_secs(), store.overlap().as_secs());
    if life.saturating_mul(OVERLAP_LIFES) <= store.overlap() {
        return None;
    }
    Some(
        Finding::new("transactions-long", Severity::Warning, format!("transactionLifetimeLimitSeconds = {life_seconds}"))
            .detail(format!(
                "a scan of the collection begins {overlap} s before the cursor; a transaction that is open for longer than \
                 that while the server loses its history may be passed over"
            ))
            .fix(
                "lower transactionLifetimeLimitSeconds, or start the relay anew: it chooses its overlap by it, unless one is set",
            ),
    )
}

/// Needs the privilege `inprog`; without it, only that it is lacking can be said. The oldest first.
pub(super) async fn open_transactions(store: &MongoStore, age: Duration) -> Vec<Finding> {
    let micros = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    let command = doc! { "currentOp": true, "transaction.timeOpenMicros": { "$gt": micros } };
    let Ok(answer) = store.0.client.database("admin").run_command(command).await else {
        let hidden = Finding::new("activity-hidden", Severity::Note, "currentOp")
            .detail("this user may not see the transactions of others, so old ones stay unseen")
            .fix("grant it the action `inprog` (the role `clusterMonitor` has it) if they are to be found");
        return vec![hidden];
    };
    let open = answer.get_array("inprog").map(Vec::as_slice).unwrap_or_default();
    let age = |open: &Document| {
        open.get_document("transaction").ok().and_then(|open| long_opt(open, "timeOpenMicros")).unwrap_or(0)
    };
    let mut open: Vec<&Document> = open.iter().filter_map(mongodb::bson::Bson::as_document).collect();
    open.sort_by_key(|open| std::cmp::Reverse(age(open)));
    open.into_iter().map(|open| transaction(open, age(open))).collect()
}

fn transaction(open: &Document, micros: i64) -> Finding {
    let client = text_opt(open, "client").unwrap_or("?");
    let program = text_opt(open, "appName").map_or_else(String::new, |name| format!(" ({name})"));
    let users = open.get_array("effectiveUsers").map(Vec::as_slice).unwrap_or_default();
    let user = users.iter().find_map(|user| text_opt(user.as_document()?, "user"));
    let user = user.map_or_else(String::new, |user| format!(" of {user}"));
    Finding::new("open-transaction", Severity::Warning, format!("a transaction from {client}"))
        .detail(format!(
            "a transaction{user} from {client}{program} has been open for {} s; what it enqueued is delivered when it commits",
            micros / 1_000_000
        ))
        .fix("commit or abort it; the server ends it by itself after transactionLifetimeLimitSeconds")
}
