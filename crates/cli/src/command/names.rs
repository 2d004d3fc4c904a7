//! Names that were mistyped: a command that finds nothing says so, rather than that there is nothing.

use postrider::core::admin::{Overview, StoreAdmin};

use crate::{
    config,
    exit::{Code, Failure, Outcome},
};

/// Refuses a name that no route and no replay under way has.
pub(super) fn known_route(overview: &Overview, name: &str) -> Outcome<()> {
    if overview.routes.iter().any(|route| *route.route == *name) {
        return Ok(());
    }
    let known: Vec<&str> = overview.routes.iter().map(|route| &*route.route).collect();
    Err(Failure::new(Code::Problem, unknown(&known, name)))
}

/// As [`known_route`], of a name that chose nothing: rows of a replay outlive it, so that a name which nobody has is a mistake
/// only if nothing was found.
pub(super) async fn known_if_empty(admin: &dyn StoreAdmin, is_empty: bool, name: Option<&String>) -> Outcome<()> {
    match name.filter(|_| is_empty) {
        Some(name) => known_route(&admin.overview().await?, name),
        None => Ok(()),
    }
}

fn unknown(known: &[&str], name: &str) -> String {
    let hint = match config::nearest(name, known) {
        // The rows of a replay outlive it, and its name is close to that of the route: which nobody means.
        _ if name.contains("#replay-") => {
            "no such replay is under way; postrider replay list shows those that are, and postrider dead list what one has given up"
                .to_owned()
        }
        _ if known.is_empty() => "there are no routes yet: a relay makes them known when it starts".to_owned(),
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are {}", known.join(", ")),
    };
    format!("there is no route `{}`; {hint}", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest() {
        let known = ["billing", "orders"];
        assert_eq!(unknown(&known, "biling"), "there is no route `biling`; did you mean `billing`?");
        assert!(unknown(&known, "billing#replay-1").ends_with("what one has given up"));
        assert_eq!(unknown(&known, "zzz"), "there is no route `zzz`; there are billing, orders");
        assert!(unknown(&[], "x").contains("no routes yet"));
    }
}
