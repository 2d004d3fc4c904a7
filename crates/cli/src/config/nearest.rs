//! The name that somebody meant.

/// The known name that a mistyped one is closest to, if it is close at all.
///
/// Few wrong letters come first (a slip of the fingers), then a name that holds the other as whole words (`timeout` for
/// `publish_timeout`), then a common beginning.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = plain(name);
    let slips = |other: &&str| strsim::osa_distance(&name, &plain(other));
    let alike = |a: &&str, b: &&str| {
        let likeness = |other: &str| strsim::jaro_winkler(&name, &plain(other));
        likeness(a).total_cmp(&likeness(b))
    };
    let slip = known.iter().copied().min_by(|a, b| slips(a).cmp(&slips(b)).then_with(|| alike(b, a)));
    if let Some(near) = slip.filter(|near| slips(near) <= (name.chars().count().max(near.len()) / 4).max(1)) {
        return Some(near);
    }
    let words = |text: &str| text.split('_').map(str::to_owned).collect::<Vec<_>>();
    let within = |few: &[String], many: &[String]| few.iter().all(|word| many.contains(word));
    let given = words(&name);
    let holds = |other: &&str| within(&given, &words(other)) || within(&words(other), &given);
    let shared = |other: &&str| words(other).iter().filter(|word| given.contains(word)).count();
    let held = known.iter().copied().filter(holds).max_by(|a, b| shared(a).cmp(&shared(b)).then_with(|| alike(a, b)));
    let begins = known.iter().copied().max_by(alike).filter(|near| strsim::jaro_winkler(&name, near) > 0.75);
    held.or(begins)
}

/// `leaseLife`, `lease-life` and `LEASE_LIFE` are slips of another kind than letters.
fn plain(name: &str) -> String {
    let mut plain = String::new();
    let mut before = '_';
    for c in name.chars() {
        if c.is_uppercase() && before.is_lowercase() {
            plain.push('_');
        }
        plain.extend(if c == '-' || c == '.' || c == ' ' { '_' } else { c }.to_lowercase());
        before = c;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_only_if_it_is_near() {
        let known = ["lease_life", "heartbeat_every", "drain_deadline"];
        assert_eq!(nearest("lease_live", &known), Some("lease_life"));
        assert_eq!(nearest("leaseLife", &known), Some("lease_life"));
        assert_eq!(nearest("heartbeat", &known), Some("heartbeat_every"));
        assert_eq!(nearest("deadline", &known), Some("drain_deadline"));
        assert_eq!(nearest("colour", &known), None);
    }
}
