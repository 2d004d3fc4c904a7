//! What may be a subject, and what a message may not name.
//!
//! Pure. A subject is the message's topic, behind the prefix of the route if there is one, and not every topic was checked when
//! it was enqueued: whoever may insert a row may write what it likes. To a server some subjects are more than the name of a
//! place. It takes those that begin with `$` for questions to itself, and `$JS.API.STREAM.PURGE.…` for an order; under `_INBOX`
//! and its like it carries answers to others; a space or the end of a line ends the subject in the protocol, a line that is too
//! long ends the connection; and what is stored under a wildcard, or with an empty segment, no consumer can ask for. None of that
//! is sent: it is a message's fault, and no time mends it.

use postrider_core::{Error, Result, parked::Cause, topic::check_name};

/// The longest subject, in bytes. A server ends the connection if the line with it has more than 4096, and what it is to answer
/// under stands there, too. The longest topic that can be enqueued, behind the longest prefix, is half as long.
const SUBJECT_MAX: usize = 1_024;
/// First segments under which servers and clients carry answers.
const OF_ANSWERS: [&str; 3] = ["_INBOX", "_R_", "_GR_"];
/// How much of something bad is shown.
const SHOWN_MAX: usize = 80;

/// The subject of a topic, or why it is none.
pub(crate) fn subject(prefix: Option<&str>, topic: &str) -> Result<String, Cause> {
    let subject = prefix.map_or_else(|| topic.to_owned(), |prefix| format!("{prefix}.{topic}"));
    match fault(&subject) {
        None => Ok(subject),
        Some(fault) => Err(bad(&subject, fault)),
    }
}

/// Why a message is rejected for its subject.
pub(crate) fn bad(subject: &str, fault: &str) -> Cause {
    Cause::new(
        "bad-subject",
        format!("nothing is published to {}: {fault}; enqueue under another topic", shown(subject)),
    )
}

/// Whether every subject may begin with it.
///
/// # Errors
/// If not. What begins with `$` is no name.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    check_name("prefix", prefix)?;
    fault(prefix).map_or(Ok(()), |fault| Err(Error::invalid(fault).with("prefix", prefix)))
}

/// Whether a stream or a consumer can be called that. Of one that is there it is asked no more than what the server asks.
///
/// # Errors
/// If not; the error names `what`.
pub(crate) fn check_found(what: &'static str, name: &str) -> Result<()> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\');
    if name.is_empty() || name.len() > 255 || name.contains(bad) {
        let rule =
            "the name of a stream or a consumer has 1 to 255 bytes, no space and none of `.`, `*`, `>`, `/`, `\\`";
        return Err(Error::invalid(rule).with(what, shown(name)));
    }
    Ok(())
}

/// Whether a consumer can be asked for these subjects: `*` stands for one segment, and `>`, as the last one, for one or more.
///
/// # Errors
/// If not.
pub(crate) fn check_filter(filter: &str) -> Result<()> {
    let segments = filter.split('.').count();
    let is_wildcard = |(at, segment): (usize, &str)| segment == "*" || (segment == ">" && at + 1 == segments);
    // What a wildcard stands for is any segment.
    let plain: Vec<&str> = filter
        .split('.')
        .enumerate()
        .map(|(at, segment)| if is_wildcard((at, segment)) { "a" } else { segment })
        .collect();
    match malformed(&plain.join(".")) {
        None => Ok(()),
        Some(fault) => Err(Error::invalid(fault).with("subject", shown(filter))),
    }
}

/// What is wrong with a subject to publish to.
fn fault(subject: &str) -> Option<&'static str> {
    if subject.starts_with('$') {
        return Some("what begins with `$` is the server's own");
    }
    if subject.split('.').next().is_some_and(|first| OF_ANSWERS.contains(&first)) {
        return Some("answers travel there");
    }
    malformed(subject)
}

/// What is wrong with the form of a subject.
fn malformed(subject: &str) -> Option<&'static str> {
    if subject.len() > SUBJECT_MAX {
        return Some("a subject has up to 1024 bytes");
    }
    if subject.split('.').any(str::is_empty) {
        return Some("a segment is empty");
    }
    if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Some("a subject has no spaces and no control characters");
    }
    if subject.contains(['*', '>']) {
        return Some("`*` and `>` are wildcards");
    }
    None
}

fn shown(name: &str) -> String {
    name.escape_debug().take(SHOWN_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_a_subject_or_a_fault_of_its_message() {
        for topic in ["orders", "order.placed", "a.$b", "a/b:c-d_e", "größe.größer", "_inbox.a", "_INBOXES", "r._R_"]
        {
            assert_eq!(subject(None, topic).unwrap(), topic);
            assert_eq!(subject(Some("shop"), topic).unwrap(), format!("shop.{topic}"));
        }
        let bad = [
            "",
            ".",
            ".a",
            "a.",
            "a..b",
            "*",
            "a.*",
            "a.*.b",
            "a.>",
            ">",
            "a*",
            "a>b",
            " ",
            "a b",
            "a\tb",
            "a\r\nPING",
        ];
        let others = ["a\u{a0}b", "a\u{2028}b", "a\u{0}", "a\u{7f}", "a\u{85}"].into_iter();
        let long = "a".repeat(SUBJECT_MAX + 1);
        for topic in bad.into_iter().chain(others).chain([long.as_str()]) {
            for prefix in [None, Some("shop")] {
                let cause = subject(prefix, topic).unwrap_err();
                assert_eq!(cause.code(), "bad-subject", "{topic:?}");
                assert!(cause.detail().len() < 300 && !cause.detail().contains(char::is_control), "{cause}");
            }
        }
    }

    /// Behind a prefix it is nothing but a name.
    #[test]
    fn what_is_the_server_s_own_is_named_by_no_message() {
        for topic in
            ["$JS.API.STREAM.PURGE.orders", "$SYS.REQ.SERVER.PING", "$KV.b.k", "$O.b", "$", "$x", "_INBOX.a.b", "_R_.a"]
        {
            assert_eq!(subject(None, topic).unwrap_err().code(), "bad-subject", "{topic}");
            assert_eq!(subject(Some("shop"), topic).unwrap(), format!("shop.{topic}"));
            assert!(check_prefix(topic).is_err(), "{topic}");
        }
    }

    #[test]
    fn what_is_set_is_checked_as_well() {
        for prefix in ["", "a.", ".a", "a..b", "a.*", "a.>", "a b", "_GR_", "$KV.b"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?}");
        }
        assert!(check_prefix("shop.eu").is_ok());
        for filter in ["orders", "orders.*", "*.placed", "orders.>", ">", "*", "$KV.b.>"] {
            assert!(check_filter(filter).is_ok(), "{filter}");
        }
        for filter in ["", "a..b", "a.", "a b", ">.a", "a.>.b", "a*", "a.b>"] {
            assert!(check_filter(filter).is_err(), "{filter:?}");
        }
        for name in ["", "a.b", "a b", "*", ">", "a/b", "a\\b", "a\n"] {
            assert!(check_found("stream", name).is_err(), "{name:?}");
        }
        assert!(check_found("stream", "KV_größe+1").is_ok());
    }
}
