//! A whole store: what keeps its routes from moving, what was given up, and what nobody reads.

use std::collections::BTreeMap;

use postrider_core::{
    Result,
    admin::{CauseGroup, Overview, ParkedFilter, ParkedRow, RouteStatus, StoreAdmin},
    doctor,
    parked::{DESTINATION_UNAVAILABLE, ParkedState},
};

use super::{Finding, Obstacle, Topics, message::read_it, obstacles};

/// Topics that are named; more would not help anybody.
const TOPICS_SHOWN_MAX: usize = 3;

/// Rows among which one is looked for that was refused, to be shown: each comes with its payload.
const EXAMPLE_AMONG: u32 = 100;

/// Everything that is wrong with the routes of a store, the most pressing first. A route for which nothing waits is left
/// alone, whatever its state: nobody misses it. What waits for its time is not wrong either, but needs somebody who has
/// the route when that time comes, and so does what an operator may redrive.
///
/// Topics that no route reads are told as far as `topics` knows the log: whoever asks [looks](Topics::look) first and has it
/// [sorted out](Topics::sort_out_some), and whoever asks more than once keeps them, so that only what has come since is looked at.
///
/// # Errors
/// If the store cannot be read.
pub async fn survey(admin: &dyn StoreAdmin, overview: &Overview, topics: &Topics) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let waiting: Vec<&RouteStatus> = overview.routes.iter().filter(|route| waits(route)).collect();
    let blockage = if waiting.is_empty() { None } else { admin.blockage().await?.map(blocked) };
    for route in overview.routes.iter().filter(|route| !waits(route)) {
        let unserved = |obstacle: &Obstacle| matches!(obstacle, Obstacle::NoRelay | Obstacle::NotServed { .. });
        // Whether anything waits is not known for sure where the log cannot be read.
        let is_told = |obstacle: &Obstacle| obstacle.is_of_store() || (will_wait(route) && unserved(obstacle));
        let found: Vec<Obstacle> = obstacles(overview, route, None).into_iter().filter(is_told).collect();
        findings.extend(in_short(&route.route, &found));
    }
    for route in &waiting {
        findings.extend(in_short(&route.route, &obstacles(overview, route, None)));
        findings.extend(refused(admin, route).await?);
    }
    if let Some(blockage) = blockage {
        findings = findings.into_iter().map(Finding::while_locked).collect();
        findings.insert(0, blockage);
    }
    let groups = admin.dead_groups().await?;
    findings.extend(overview.routes.iter().filter_map(|route| given_up(route, &groups)));
    findings.extend(given_up_by_replays(overview, &groups));
    findings.extend(unrouted(&topics.unread(overview)));
    Ok(findings)
}

/// What several lanes say alike is told once, in the words of the first: a route may have hundreds of them, and one destination.
fn in_short(route: &str, obstacles: &[Obstacle]) -> Vec<Finding> {
    let mut told: Vec<(&Obstacle, usize)> = Vec::new();
    for obstacle in obstacles {
        match told.iter_mut().find(|(first, _)| first.is_like(obstacle)) {
            Some((_, more)) => *more += 1,
            None => told.push((obstacle, 0)),
        }
    }
    let finding = |(first, more): (&Obstacle, usize)| {
        let mut finding = first.finding(route);
        match more {
            0 => {}
            1 => finding.what.push_str("; so it is with 1 more lane"),
            more => finding.what.push_str(&format!("; so it is with {more} more lanes")),
        }
        finding
    };
    told.into_iter().map(finding).collect()
}

fn waits(route: &RouteStatus) -> bool {
    route.pending > 0 || route.oldest_pending_age.is_some()
}

fn will_wait(route: &RouteStatus) -> bool {
    route.parked.scheduled > 0 || route.parked.dead > 0
}

/// Nobody can write to the store, whichever route it is for.
pub(super) fn blocked(found: doctor::Finding) -> Finding {
    Finding { route: None, code: found.code, what: found.detail, fix: Some(found.fix) }
}

/// Messages that a destination refuses, while it takes others or says nothing against the connection; and apart from them those
/// that wait for a destination of their own. The two want different people, and neither may hide the other.
async fn refused(admin: &dyn StoreAdmin, route: &RouteStatus) -> Result<Vec<Finding>> {
    if route.parked.retrying == 0 {
        return Ok(Vec::new());
    }
    let retrying = ParkedState::Retrying;
    let all = ParkedFilter { route: Some(route.route.to_string()), state: Some(retrying), ..Default::default() };
    let aside = ParkedFilter { cause: Some(DESTINATION_UNAVAILABLE.to_owned()), ..all.clone() };
    // The next attempt may change a row between two looks.
    let waiting = admin.parked_count(&aside).await?.min(route.parked.retrying);
    let refused = route.parked.retrying - waiting;
    let mut findings = Vec::new();
    if refused > 0 {
        // No filter leaves a cause out. One that is not among the first is counted and not shown.
        let first = admin.parked(&all, None, EXAMPLE_AMONG).await?.into_iter().find(|row| !row.is_set_aside());
        let messages = messages(refused, "was refused and is", "were refused and are");
        let cause = first.as_ref().and_then(|row| row.cause.as_ref());
        let cause = cause.map_or_else(String::new, |(code, detail)| format!(" ({code}: {detail})"));
        let finding = Finding::of(&route.route, "retrying", format!("{messages} tried again{cause}"));
        findings.push(with_example(finding, first));
    }
    if waiting > 0 {
        let first = admin.parked(&aside, None, 1).await?.into_iter().next();
        let messages =
            messages(waiting, "waits for its own destination and is", "wait for their own destination and are");
        let cause = first.as_ref().and_then(|row| row.cause.as_ref());
        let cause = cause.map_or_else(String::new, |(_, detail)| format!(" ({detail})"));
        let finding = Finding::of(&route.route, DESTINATION_UNAVAILABLE, format!("{messages} tried again{cause}"));
        findings.push(with_example(finding, first));
    }
    let such = if findings.len() > 1 { "one or the other" } else { "such" };
    if let (held @ 1.., Some(last)) = (route.parked.held, findings.last_mut()) {
        last.what.push_str(&format!("; held behind {such}: {held}"));
    }
    Ok(findings)
}

fn with_example(finding: Finding, row: Option<ParkedRow>) -> Finding {
    match row {
        Some(row) => finding.fix(format!("postrider why {}", row.envelope.id)),
        None => finding,
    }
}

/// What an operator has to decide about.
fn given_up(route: &RouteStatus, groups: &[CauseGroup]) -> Option<Finding> {
    let parked = route.parked;
    let blocks = match (parked.blocking, parked.dead) {
        (_, 0) => return None,
        (0, _) => String::new(),
        (1, 1) => "; its key waits behind it".to_owned(),
        (1, _) => "; the key of one of them waits behind it".to_owned(),
        (keys, dead) if keys == dead => "; their keys wait behind them".to_owned(),
        (keys, _) => format!("; the keys of {keys} of them wait behind them"),
    };
    Some(dead(&route.route, parked.dead, groups, &blocks))
}

/// The same of replays that have ended. An overview has them no longer, and no key waits: all that a replay leaves behind when it
/// ends is dead.
fn given_up_by_replays<'a>(overview: &'a Overview, groups: &'a [CauseGroup]) -> impl Iterator<Item = Finding> + 'a {
    let mut left: BTreeMap<&str, u64> = BTreeMap::new();
    for group in groups.iter().filter(|group| !overview.routes.iter().any(|route| route.route == group.route)) {
        *left.entry(&group.route).or_default() += group.rows;
    }
    left.into_iter().map(|(route, rows)| dead(route, rows, groups, ", and the replay has ended"))
}

fn dead(route: &str, rows: u64, groups: &[CauseGroup], besides: &str) -> Finding {
    let causes: Vec<String> = groups
        .iter()
        .filter(|group| *group.route == *route)
        .take(TOPICS_SHOWN_MAX)
        .map(|group| format!("{} {}", group.rows, group.code))
        .collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    let what = format!("{} given up{causes}{besides}", messages(rows, "was", "were"));
    Finding::of(route, "dead", what).fix(format!("postrider dead list --route {route}; then redrive or discard"))
}

/// Topics that messages have and no route reads, as [`Topics::unread`] tells them: nobody will ever deliver them.
#[must_use]
pub fn unrouted(unread: &[(String, u64)]) -> Option<Finding> {
    let (first, _) = unread.first()?;
    let mut named: Vec<String> =
        unread.iter().take(TOPICS_SHOWN_MAX).map(|(topic, records)| format!("`{topic}` ({records})")).collect();
    if unread.len() > TOPICS_SHOWN_MAX {
        named.push(format!("{} more", unread.len() - TOPICS_SHOWN_MAX));
    }
    Some(Finding {
        route: None,
        code: "no-route",
        what: format!(
            "no route reads the topic of some undelivered messages, so nobody delivers them, and retention removes them \
             when they are old enough: {}",
            named.join(", ")
        ),
        fix: Some(read_it(first)),
    })
}

fn messages(count: u64, one: &str, several: &str) -> String {
    if count == 1 { format!("1 message {one}") } else { format!("{count} messages {several}") }
}

#[cfg(test)]
mod tests {
    use postrider_core::{
        envelope::MessageId,
        lease::LaneId,
        parked::Cause,
        standstill::{MessageState, Reason, Standstill},
    };

    use super::*;

    #[test]
    fn lanes_that_stand_still_alike_are_told_once() {
        let says = |node: &str, number: u32, reason: Reason| {
            let lane = LaneId { route: "all".into(), number };
            let standstill = Standstill { lane, seconds: u64::from(number), reason };
            Obstacle::Standstill { node: node.to_owned(), standstill, until: None }
        };
        let down =
            |code: &str| Reason::Unavailable { cause: Cause::new(code, "refused"), failing: None, seconds_left: None };
        let waits = || Reason::Message {
            message: MessageId::generate(),
            state: MessageState::Answer,
            attempts: 0,
            cause: None,
        };
        let mut found: Vec<Obstacle> = (0..16).map(|lane| says("one", lane, down("connect"))).collect();
        found.extend([says("two", 16, down("connect")), says("one", 17, down("tls")), says("one", 18, down("tls"))]);
        found.extend([says("one", 19, waits()), says("one", 20, waits())]);
        found.extend([Obstacle::Unowned { lane: 21 }, Obstacle::Unowned { lane: 22 }]);
        let told: Vec<String> = in_short("all", &found).into_iter().map(|finding| finding.what).collect();
        let ends = ["15 more lanes", "says two)", "1 more lane", "says one)", "says one)", "1 more lane"];
        assert_eq!(told.len(), ends.len(), "{told:#?}");
        assert!(told.iter().zip(ends).all(|(what, end)| what.ends_with(end)), "{told:#?}");
    }
}
