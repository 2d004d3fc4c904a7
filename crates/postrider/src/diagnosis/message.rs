//! One message: where it is on every route, and what it waits for there.

use std::{sync::Arc, time::Duration};

use postrider_core::{
    Result,
    admin::{AuditEntry, MessageTrace, Overview, ParkedFilter, ParkedRow, RouteStatus, StoreAdmin},
    envelope::MessageId,
    key::KeyHash,
    lease::{LaneId, Order},
    parked::{DESTINATION_UNAVAILABLE, Ordinal, ParkedState},
    standstill::{MessageState, Reason},
    time::Timestamp,
};

use super::{DISCARDED, Finding, Obstacle, PASSED, PERHAPS_DISCARDED, PERHAPS_PASSED_OVER, in_words, obstacles};

/// How many of the last acts of operators are looked at first for one on the message.
const ACTS_FIRST: u32 = 1_000;

/// How many are looked at if those do not go back to the message's time.
const ACTS_MAX: u32 = 100_000;

/// How many acts on the very message are looked at.
const ACTS_ON_IT: u32 = 100;

/// From this age on an open transaction is named to whoever looks for a message that is not there.
const OPEN_FOR_LONG: Duration = Duration::from_secs(1);

/// Dead rows that are looked at together for the head of a line.
const PAGE_ROWS: u32 = 100;

pub(super) async fn explain(
    admin: &dyn StoreAdmin,
    id: MessageId,
    trace: &MessageTrace,
    overview: &Overview,
) -> Result<Vec<Finding>> {
    if trace.record.is_none() && trace.parked.is_empty() {
        return unknown(admin, id).await;
    }
    let mut findings = Vec::new();
    let acts = match trace.passed.iter().any(|(_, passed)| *passed) || trace.parked.iter().any(ParkedRow::is_redriven) {
        true => Acts::on(admin, id, trace.record.as_ref().map(|(_, at)| *at)).await?,
        false => Acts::default(),
    };
    for row in &trace.parked {
        findings.extend(parked(admin, row, overview, &acts.entries).await?);
    }
    for (lane, passed) in &trace.passed {
        if trace.parked.iter().any(|row| row.route == lane.route) {
            continue;
        }
        let by_store = of_store(lane, overview);
        if !by_store.is_empty() {
            findings.extend(by_store);
        } else if *passed {
            findings.push(passed_by(&lane.route, trace, overview, &acts));
        } else {
            findings.extend(waiting(id, lane, overview));
        }
    }
    if let Some((envelope, enqueued_at)) = &trace.record
        && findings.is_empty()
    {
        findings.push(no_route(&envelope.topic, overview, &forgotten(admin, *enqueued_at).await?));
    }
    Ok(findings)
}

/// Routes that were forgotten since, as far as the last acts tell. What they had delivered nobody knows any more.
async fn forgotten(admin: &dyn StoreAdmin, since: Timestamp) -> Result<String> {
    let acts = admin.audit(ACTS_FIRST).await?;
    let forgot = acts.iter().filter(|act| act.action == "forget-route" && act.at >= since);
    let told = |act: &AuditEntry| {
        format!("; whether `{}` had delivered it was forgotten with that route at {}", act.subject, act.at)
    };
    Ok(forgot.map(told).collect())
}

/// What operators have done, newest first.
#[derive(Default)]
struct Acts {
    entries: Vec<AuditEntry>,
    /// Those that name the message, however old they are.
    on_it: Vec<AuditEntry>,
    /// Whether none since the message's time is missing.
    whole: bool,
}

impl Acts {
    async fn on(admin: &dyn StoreAdmin, id: MessageId, since: Option<Timestamp>) -> Result<Self> {
        let on_it = admin.audit_of(id, ACTS_ON_IT).await?;
        let mut limit = ACTS_FIRST;
        // Ends with the record, with the message's time, or with as many as are looked at.
        loop {
            let entries = admin.audit(limit).await?;
            let older = |last: &AuditEntry| since.is_some_and(|instant| last.at < instant);
            let whole = entries.len() < limit as usize || entries.last().is_some_and(older);
            if whole || limit >= ACTS_MAX {
                return Ok(Self { entries, on_it, whole });
            }
            limit = ACTS_MAX;
        }
    }
}

/// What a cursor has passed was delivered, or somebody gave it up, by name or with others, or nobody read its topic then.
fn passed_by(route: &str, trace: &MessageTrace, overview: &Overview, acts: &Acts) -> Finding {
    let here = |act: &&AuditEntry| act.action == "discard" && act.route().is_none_or(|other| other == route);
    let mut on_it = acts.on_it.iter().filter(here);
    if let Some(act) = on_it.clone().find(|act| act.route().is_some()) {
        return Finding::of(route, DISCARDED, gave_up(act));
    }
    if let Some(act) = on_it.next() {
        return given_up_somewhere(route, trace, act);
    }
    if let Some(finding) = passed_over(route, trace, overview) {
        return finding;
    }
    if let Some(act) = acts.entries.iter().filter(here).find(|act| perhaps_took(act, trace)) {
        let who = &act.actor.name;
        let what = format!("the route has passed it: delivered, or given up with others by {who} at {}", act.at);
        return Finding::of(route, PERHAPS_DISCARDED, what).fix("postrider audit list; whoever received it knows");
    }
    if !acts.whole {
        let what = format!(
            "the route has passed it: delivered, or given up before the {ACTS_MAX} last acts of operators, which are looked at"
        );
        return Finding::of(route, PERHAPS_DISCARDED, what);
    }
    Finding::of(route, PASSED, "the route has passed it: delivered, unless the route did not read its topic then")
}

/// An older program did not note on which route it gave a message up. Where only one can have had it, it was that one.
fn given_up_somewhere(route: &str, trace: &MessageTrace, act: &AuditEntry) -> Finding {
    let waits = |lane: &LaneId| trace.parked.iter().any(|row| row.route == lane.route);
    if trace.passed.iter().filter(|(lane, passed)| *passed && !waits(lane)).count() == 1 {
        return Finding::of(route, DISCARDED, gave_up(act));
    }
    let (who, at) = (&act.actor.name, act.at);
    let what = format!("the route has passed it: delivered, or given up by {who} at {at}, on this route or on another");
    Finding::of(route, PERHAPS_DISCARDED, what).fix("whoever received it knows")
}

/// A topic that is added to a route moves no cursor back. So what was enqueued before was passed over, unless the route had not
/// come to it; where its cursor was is known to the store alone, and told for topics that were taken out only.
fn passed_over(route: &str, trace: &MessageTrace, overview: &Overview) -> Option<Finding> {
    let (envelope, enqueued_at) = trace.record.as_ref()?;
    let status = overview.routes.iter().find(|status| *status.route == *route)?;
    let mut since = status.left.iter().skip_while(|left| left.until <= *enqueued_at);
    let read_then = since.next().filter(|then| !then.topics.matches(&envelope.topic))?;
    let again = since.take_while(|later| !later.topics.matches(&envelope.topic)).last().unwrap_or(read_then);
    let what = format!(
        "the route has passed it, and reads its topic only since {}, when it was there already: nobody delivered it, unless the \
         route was that far behind",
        again.until
    );
    let fix = format!("postrider replay --route {route} --topic {}; whoever received it knows", envelope.topic);
    Some(Finding::of(route, PERHAPS_PASSED_OVER, what).fix(fix))
}

fn gave_up(act: &AuditEntry) -> String {
    let reason = act.actor.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{} gave it up for good at {}{reason}", act.actor.name, act.at)
}

/// Whether the message can have been one of several that were given up together by an act that does not name them, as older
/// ones did not. What cause and state it had is not kept.
fn perhaps_took(act: &AuditEntry, trace: &MessageTrace) -> bool {
    let Some((envelope, enqueued_at)) = &trace.record else { return !act.names_messages() };
    let own_key = envelope.key.as_ref();
    let of_key = act.said_of("key").is_none_or(|key| own_key.is_some_and(|own| own.as_str() == key));
    // Instants are written so that they sort as text.
    let of_age = act.said_of("parked before").is_none_or(|instant| instant > &*enqueued_at.to_string());
    !act.names_messages() && act.at >= *enqueued_at && of_key && of_age
}

/// Not there, or not yet: whoever has a transaction open may have enqueued it. Or not any more: that somebody gave it up is
/// known for longer than the message.
async fn unknown(admin: &dyn StoreAdmin, id: MessageId) -> Result<Vec<Finding>> {
    let acts = admin.audit_of(id, ACTS_ON_IT).await?;
    let given_up = acts.iter().filter(|act| act.action == "discard").map(|act| Finding {
        route: act.route().map(ToOwned::to_owned),
        code: DISCARDED,
        what: format!("{}, and retention has removed it since", gave_up(act)),
        fix: None,
    });
    let given_up: Vec<Finding> = given_up.collect();
    if !given_up.is_empty() {
        return Ok(given_up);
    }
    let uncommitted = admin.uncommitted(OPEN_FOR_LONG).await?;
    let mut findings = vec![Finding {
        route: None,
        code: "unknown",
        what: format!(
            "message {id} is not in the store: its transaction is still open or was rolled back, or it was delivered and \
             retention has removed it"
        ),
        fix: Some(match uncommitted.iter().any(|found| found.code != "activity-hidden") {
            true => "one of the transactions below may have it: it is delivered when that commits".to_owned(),
            false => "postrider doctor names transactions that have been open for long".to_owned(),
        }),
    }];
    findings.extend(uncommitted.into_iter().map(|found| Finding {
        route: None,
        // A store of somebody else may have codes that nobody here knows.
        code: if found.code == "activity-hidden" { found.code } else { "open-transaction" },
        what: format!("{}: {}", found.subject, found.detail),
        fix: Some(found.fix),
    }));
    Ok(findings)
}

fn no_route(topic: &str, overview: &Overview, forgotten: &str) -> Finding {
    let routes: Vec<String> =
        overview.routes.iter().map(|route| format!("`{}` reads {}", route.route, route.topics)).collect();
    let known = if routes.is_empty() { "there are no routes yet".to_owned() } else { routes.join("; ") };
    let until = |route: &RouteStatus| {
        let left = route.left.iter().rev().find(|left| left.topics.matches(topic))?;
        Some(format!("; `{}` read it until {} and had not come to this message by then", route.route, left.until))
    };
    let once: String = overview.routes.iter().filter_map(until).collect();
    Finding {
        route: None,
        code: "no-route",
        what: format!("no route reads its topic `{topic}`{once}{forgotten}; {known}"),
        fix: Some(read_it(topic)),
    }
}

/// What helps against a topic that no route reads.
pub(super) fn read_it(topic: &str) -> String {
    format!(
        "let a new route read `{topic}`: it begins with the oldest record; a route that is there already has passed it, and \
         takes a postrider replay besides"
    )
}

/// Where the store fails the lane, its cursor says nothing: numbers that went back look as if they were passed.
fn of_store(lane: &LaneId, overview: &Overview) -> Vec<Finding> {
    let route = overview.routes.iter().find(|route| route.route == lane.route);
    let found = route.map(|route| obstacles(overview, route, Some(lane.number))).unwrap_or_default();
    found.iter().filter(|obstacle| obstacle.is_of_store()).map(|obstacle| obstacle.finding(&lane.route)).collect()
}

/// Not passed by the cursor yet.
fn waiting(id: MessageId, lane: &LaneId, overview: &Overview) -> Vec<Finding> {
    let Some(route) = overview.routes.iter().find(|route| route.route == lane.route) else { return Vec::new() };
    let found = obstacles(overview, route, Some(lane.number));
    if found.is_empty() {
        let least = if route.pending_more { "at least " } else { "" };
        let before = match route.pending {
            0 | 1 => String::new(),
            pending => format!("; {least}{pending} messages of the route wait"),
        };
        return vec![Finding::of(&lane.route, "under-way", format!("it is on its way{before}"))];
    }
    found.iter().map(|obstacle| about_itself(id, obstacle, &lane.route)).collect()
}

/// What a node says of a message may be about this very one.
fn about_itself(id: MessageId, obstacle: &Obstacle, route: &str) -> Finding {
    if let Obstacle::Standstill { standstill, node, .. } = obstacle
        && let Reason::Message { message, state, attempts, cause } = &standstill.reason
        && *message == id
    {
        let cause = cause.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"));
        let tries = if *attempts > 0 { format!(" after {attempts} attempts") } else { String::new() };
        let finding = Finding::of(route, "attempted", format!("{node} has it; it {state}{tries}{cause}"));
        return match state {
            MessageState::Answer => finding.fix(
                "see whether the destination answers: what has no answer within its `timeout` is sent again, and if nothing else \
                 goes through either, the destination is taken for unavailable",
            ),
            _ => finding,
        };
    }
    obstacle.finding(route)
}

/// Who has put a row back, as far as the last acts tell, and what it was given up for.
fn redriven(row: &ParkedRow, acts: &[AuditEntry]) -> Finding {
    let put_it_back = |act: &&AuditEntry| act.action == "redrive" && act.takes(row);
    let by = acts.iter().find(put_it_back).map_or_else(
        || "an operator has put it back".to_owned(),
        |act| {
            let reason = act.actor.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            format!("{} has put it back at {}{reason}", act.actor.name, act.at)
        },
    );
    let cause =
        row.cause.as_ref().map_or_else(String::new, |(code, detail)| format!("; it was given up for {code}: {detail}"));
    Finding::of(
        &row.route,
        "redriven",
        format!("{by}; it goes as soon as it is its turn, with a fresh count of attempts{cause}"),
    )
}

async fn parked(
    admin: &dyn StoreAdmin,
    row: &ParkedRow,
    overview: &Overview,
    acts: &[AuditEntry],
) -> Result<Vec<Finding>> {
    let route = &row.route;
    let id = row.envelope.id;
    let cause = row.cause.as_ref().map_or_else(String::new, |(code, detail)| format!(" ({code}: {detail})"));
    let after = format!("after {} attempt{}{cause}", row.attempts, if row.attempts == 1 { "" } else { "s" });
    let found = match overview.routes.iter().find(|status| status.route == *route) {
        Some(status) => obstacles(overview, status, Some(lane_of(row, status))),
        None => Vec::new(),
    };
    let waits_for_time = row.due_in.is_some_and(|wait| !wait.is_zero());
    let next = match row.due_in {
        Some(wait) if waits_for_time && found.is_empty() => format!("; next attempt in {}", in_words(wait)),
        Some(wait) if waits_for_time => format!("; next attempt in {} at the earliest", in_words(wait)),
        Some(_) => format!("; the time of its next attempt has come, and it goes {}", when_it_goes(&found)),
        None => String::new(),
    };
    let own = match row.state {
        ParkedState::Dead if row.cause.as_ref().is_some_and(|(code, _)| code == "expired") => {
            return Ok(vec![
                Finding::of(route, "dead", format!("it was given up {after}: it came too late"))
                    .fix(format!("postrider dead discard --route {route} --id {id}; a redrive would expire again")),
            ]);
        }
        ParkedState::Dead => {
            return Ok(vec![
                Finding::of(route, "dead", format!("it was given up {after} and waits for an operator")).fix(format!(
                    "mend the cause, then postrider dead redrive --route {route} --id {id}; or discard it"
                )),
            ]);
        }
        ParkedState::Scheduled | ParkedState::Retrying if row.is_redriven() => redriven(row, acts),
        ParkedState::Scheduled => {
            let what = match row.due_in {
                Some(wait) if waits_for_time => format!("it waits for its time, in {}", in_words(wait)),
                Some(_) => format!("its time has come, and it goes {}", when_it_goes(&found)),
                None => "it waits for its time".to_owned(),
            };
            Finding::of(route, "scheduled", what)
        }
        ParkedState::Retrying if row.is_set_aside() => {
            let said = row.cause.as_ref().map_or("", |(_, detail)| detail);
            Finding::of(
                route,
                DESTINATION_UNAVAILABLE,
                format!(
                    "what it is addressed to takes nothing, while others of the route go through ({said}); no attempts are \
                     counted{next}"
                ),
            )
            .fix("make its destination available again: it then goes by itself")
        }
        ParkedState::Retrying => {
            Finding::of(route, "retrying", format!("it was refused and will be tried again {after}{next}"))
        }
        ParkedState::Held => held(admin, row, overview).await?,
    };
    // A row whose time has come, or that only waits for its key, goes no further than its route does.
    let mut findings: Vec<Finding> = found.iter().map(|obstacle| obstacle.finding(route)).collect();
    findings.insert(if waits_for_time || row.state == ParkedState::Held { 0 } else { findings.len() }, own);
    Ok(findings)
}

/// The lane that a row is in: what keeps others standing does not keep it.
fn lane_of(row: &ParkedRow, route: &RouteStatus) -> u32 {
    let spread = match (route.order, &row.envelope.key) {
        (Order::Total, _) => KeyHash::TOTAL,
        (Order::Key, Some(key)) => KeyHash::of(key.as_str().as_bytes()),
        (Order::Key, None) => KeyHash::of(row.envelope.id.0.as_bytes()),
    };
    spread.lane(u32::try_from(route.lanes.len()).unwrap_or(u32::MAX))
}

/// For a row whose time has come: what is in the way is told besides.
fn when_it_goes(obstacles: &[Obstacle]) -> &'static str {
    if obstacles.is_empty() { "as soon as it is its turn" } else { "when its route does" }
}

async fn held(admin: &dyn StoreAdmin, row: &ParkedRow, overview: &Overview) -> Result<Finding> {
    let held = |what: String| Finding::of(&row.route, "held", what);
    if row.head {
        return Ok(held("those that it was held behind are gone: it goes as soon as it is its turn".to_owned()));
    }
    let total = overview.routes.iter().any(|status| status.route == row.route && status.order == Order::Total);
    let key = row.envelope.key.as_ref().map(ToString::to_string).filter(|_| !total);
    let behind = key.as_ref().map_or_else(|| "the route keeps total order".to_owned(), |key| format!("key `{key}`"));
    let head = match total || key.is_some() {
        true => head_before(admin, row, key).await?,
        // Kept in total order until a moment ago; whose line it is in now cannot be told.
        false => None,
    };
    let Some(head) = head else { return Ok(held(format!("it waits behind an earlier message ({behind})"))) };
    let cause = head.cause.as_ref().map_or_else(String::new, |(code, detail)| format!(", {code}: {detail}"));
    let finding =
        held(format!("it is held behind message {} ({behind}), which is {}{cause}", head.envelope.id, head.state));
    Ok(match head.state {
        ParkedState::Dead => finding.fix(advice(&row.route, head.envelope.id)),
        _ => finding.fix(format!("postrider why {}", head.envelope.id)),
    })
}

/// The head of the line that a row stands in: of its key, or of the whole route (`None`). Scheduled rows stand in no line, and
/// there may be any number of them before the head, so they are not asked for. All that are held or retrying stand in line,
/// so only the first of them can be the head. Of the dead some block and some do not: they are looked through.
async fn head_before(admin: &dyn StoreAdmin, row: &ParkedRow, key: Option<String>) -> Result<Option<ParkedRow>> {
    let line = |state| ParkedFilter {
        route: Some(row.route.to_string()),
        key: key.clone(),
        state: Some(state),
        ordinals: Some(Ordinal(0)..=row.ordinal),
        ..ParkedFilter::default()
    };
    for state in [ParkedState::Held, ParkedState::Retrying] {
        let first = admin.parked(&line(state), None, 1).await?.into_iter().find(|first| first.head);
        if first.is_some() {
            return Ok(first);
        }
    }
    let dead = line(ParkedState::Dead);
    let mut after = None;
    // Ends with the head, or with the last of the dead before the row.
    loop {
        let page = admin.parked(&dead, after, PAGE_ROWS).await?;
        let Some(last) = page.last() else { return Ok(None) };
        after = Some((Arc::clone(&last.route), last.ordinal));
        if let Some(head) = page.into_iter().find(|dead| dead.head) {
            return Ok(Some(head));
        }
    }
}

fn advice(route: &Arc<str>, head: MessageId) -> String {
    format!("postrider dead redrive --route {route} --id {head}; or postrider dead discard --route {route} --id {head}")
}

#[cfg(test)]
mod tests {
    use postrider_core::{admin::Actor, envelope::Envelope};

    use super::*;

    #[test]
    fn an_entry_that_does_not_name_its_route_is_sure_of_the_only_one() {
        let now = Timestamp::from_micros(1);
        let envelope = Envelope::new("orders", "n", "");
        let act = AuditEntry {
            at: now,
            actor: Actor::new("anna"),
            action: "discard".to_owned(),
            subject: format!("1 rows of state dead, message {}", envelope.id),
        };
        let overview = Overview { routes: Vec::new(), nodes: Vec::new(), records: 1, at: now };
        let told = |routes: &[&str], acts: &[AuditEntry]| -> Vec<&'static str> {
            let lane = |route: &&str| (LaneId { route: (*route).into(), number: 0 }, true);
            let record = Some((envelope.clone(), now));
            let trace = MessageTrace { record, passed: routes.iter().map(lane).collect(), parked: Vec::new() };
            let acts = Acts { entries: acts.to_vec(), on_it: acts.to_vec(), whole: true };
            routes.iter().map(|route| passed_by(route, &trace, &overview, &acts).code).collect()
        };
        assert_eq!(told(&["billing"], std::slice::from_ref(&act)), [DISCARDED]);
        assert_eq!(told(&["audit", "billing"], std::slice::from_ref(&act)), [PERHAPS_DISCARDED; 2]);
        let named = AuditEntry { subject: format!("1 rows of route billing, message {}", envelope.id), ..act.clone() };
        assert_eq!(told(&["audit", "billing"], std::slice::from_ref(&named)), [PASSED, DISCARDED]);
        assert_eq!(told(&["audit", "billing"], &[act, named]), [PERHAPS_DISCARDED, DISCARDED]);
    }
}
