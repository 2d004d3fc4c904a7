//! A whole store: what keeps its routes from moving, what was given up, and what nobody reads.

use postrider_core::{
    Result,
    admin::{CauseGroup, Overview, ParkedFilter, RouteStatus, StoreAdmin},
    doctor,
    parked::{DESTINATION_UNAVAILABLE, ParkedState},
};

use super::{Finding, Obstacle, Topics, message::read_it, obstacles};

/// Topics that are named; more would not help anybody.
const TOPICS_SHOWN_MAX: usize = 3;

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
    for route in overview.routes.iter().filter(|route| !waits(route) && will_wait(route)) {
        let unserved = |obstacle: &&Obstacle| matches!(obstacle, Obstacle::NoRelay | Obstacle::NotServed { .. });
        let found = obstacles(overview, route, None);
        findings.extend(found.iter().filter(unserved).map(|obstacle| obstacle.finding(&route.route)));
    }
    for route in &waiting {
        findings.extend(obstacles(overview, route, None).iter().map(|obstacle| obstacle.finding(&route.route)));
        findings.extend(refused(admin, route).await?);
    }
    if let Some(blockage) = blockage {
        findings = findings.into_iter().map(Finding::while_locked).collect();
        findings.insert(0, blockage);
    }
    if overview.routes.iter().any(|route| route.parked.dead > 0) {
        let groups = admin.dead_groups().await?;
        findings.extend(overview.routes.iter().filter_map(|route| given_up(route, &groups)));
    }
    findings.extend(unrouted(&topics.unread(overview)));
    Ok(findings)
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

/// Messages that a destination refuses, while it takes others or says nothing against the connection.
async fn refused(admin: &dyn StoreAdmin, route: &RouteStatus) -> Result<Option<Finding>> {
    if route.parked.retrying == 0 {
        return Ok(None);
    }
    let retrying = ParkedState::Retrying;
    let filter = ParkedFilter { route: Some(route.route.to_string()), state: Some(retrying), ..Default::default() };
    // The next attempt may have changed it between two looks.
    let Some(first) = admin.parked(&filter, None, 1).await?.into_iter().next() else { return Ok(None) };
    let (code, messages) = match first.is_set_aside() {
        true => (
            DESTINATION_UNAVAILABLE,
            messages(
                route.parked.retrying,
                "waits for its own destination and is",
                "wait for their own destination and are",
            ),
        ),
        false => ("retrying", messages(route.parked.retrying, "was refused and is", "were refused and are")),
    };
    let held = match route.parked.held {
        0 => String::new(),
        held => format!("; held behind such: {held}"),
    };
    let cause = first.cause.map_or_else(String::new, |(code, detail)| match code == DESTINATION_UNAVAILABLE {
        true => format!(" ({detail})"),
        false => format!(" ({code}: {detail})"),
    });
    let finding = Finding::of(&route.route, code, format!("{messages} tried again{cause}{held}"));
    Ok(Some(finding.fix(format!("postrider why {}", first.envelope.id))))
}

/// What an operator has to decide about.
fn given_up(route: &RouteStatus, groups: &[CauseGroup]) -> Option<Finding> {
    let parked = route.parked;
    if parked.dead == 0 {
        return None;
    }
    let causes: Vec<String> = groups
        .iter()
        .filter(|group| group.route == route.route)
        .take(TOPICS_SHOWN_MAX)
        .map(|group| format!("{} {}", group.rows, group.code))
        .collect();
    let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
    let blocks = match (parked.blocking, parked.dead) {
        (0, _) => String::new(),
        (1, 1) => "; its key waits behind it".to_owned(),
        (1, _) => "; the key of one of them waits behind it".to_owned(),
        (keys, dead) if keys == dead => "; their keys wait behind them".to_owned(),
        (keys, _) => format!("; the keys of {keys} of them wait behind them"),
    };
    let what = format!("{} given up{causes}{blocks}", messages(parked.dead, "was", "were"));
    let fix = format!("postrider dead list --route {}; then redrive or discard", route.route);
    Some(Finding::of(&route.route, "dead", what).fix(fix))
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
