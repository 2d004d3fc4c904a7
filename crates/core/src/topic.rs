//! Topics, and the patterns by which a route chooses them.
//!
//! A topic is dot-separated text such as `orders.placed`. In a pattern `*` stands for exactly one segment and `**`, as the
//! last segment, for one or more.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Checks a topic or message name: 1 to 255 bytes of letters, digits, `.`, `-`, `_`, `/`, `:`, no empty segment.
///
/// # Errors
/// If it breaks the rule; the error names `what`.
pub fn check_name(what: &'static str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b'/' | b':');
    if name.is_empty() || name.len() > 255 || !name.bytes().all(allowed) || name.split('.').any(str::is_empty) {
        let shown: String = name.escape_debug().to_string().chars().take(80).collect();
        return Err(Error::invalid(
            "a name has 1 to 255 letters, digits, `.`, `-`, `_`, `/` or `:` and no empty segment",
        )
        .with(what, shown));
    }
    Ok(())
}

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicPattern(String);

impl TopicPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// If a segment mixes `*` with text, or `**` is not the last segment.
    pub fn new(pattern: &str) -> Result<Self> {
        let segments: Vec<&str> = pattern.split('.').collect();
        for (i, segment) in segments.iter().enumerate() {
            match *segment {
                "*" => {}
                "**" if i + 1 == segments.len() => {}
                "**" => return Err(Error::invalid("`**` may only be the last segment").with("pattern", pattern)),
                text if text.contains('*') => {
                    return Err(Error::invalid("`*` must be a whole segment").with("pattern", pattern));
                }
                text => check_name("pattern", text)?,
            }
        }
        Ok(Self(pattern.to_owned()))
    }

    /// Whether a topic fits.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        let mut segments = topic.split('.');
        let mut wanted = self.0.split('.');
        loop {
            match (wanted.next(), segments.next()) {
                (Some("**"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }

    /// Whether every topic that fits the other one fits this one too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let mut segments = other.0.split('.');
        let mut wanted = self.0.split('.');
        loop {
            match (wanted.next(), segments.next()) {
                (Some("**"), Some(_)) | (None, None) => return true,
                (Some("*"), Some(segment)) if segment != "**" => {}
                (Some(a), Some(b)) if a == b => {}
                _ => return false,
            }
        }
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TopicPattern {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::new(&text)
    }
}

impl From<TopicPattern> for String {
    fn from(pattern: TopicPattern) -> Self {
        pattern.0
    }
}

/// A topic fits if one of the patterns does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopicFilter(Vec<TopicPattern>);

impl TopicFilter {
    /// Every topic.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![TopicPattern("**".to_owned())])
    }

    /// From patterns.
    ///
    /// # Errors
    /// If one is malformed, or there are none: a route that can match nothing is a mistake.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let patterns = patterns.into_iter().map(|p| TopicPattern::new(p.as_ref())).collect::<Result<Vec<_>>>()?;
        if patterns.is_empty() {
            return Err(Error::invalid("a topic filter needs at least one pattern; `**` stands for all topics"));
        }
        Ok(Self(patterns))
    }

    /// Whether a topic fits.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(topic))
    }

    /// Whether every topic that fits this pattern fits the filter, as far as its patterns say so one by one.
    #[must_use]
    pub fn covers(&self, pattern: &TopicPattern) -> bool {
        self.0.iter().any(|own| own.covers(pattern))
    }

    /// Whether both name the same topics, in whichever order, as far as their patterns say so one by one.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.covers_all(other) && other.covers_all(self)
    }

    /// Whether every topic that fits the other one fits this one too, as far as the patterns say so one by one.
    #[must_use]
    pub fn covers_all(&self, other: &Self) -> bool {
        other.0.iter().all(|pattern| self.covers(pattern))
    }

    /// Takes in what the other one takes, without naming anything twice.
    pub fn add(&mut self, other: &Self) {
        for pattern in &other.0 {
            if !self.covers(pattern) {
                self.0.retain(|own| !pattern.covers(own));
                self.0.push(pattern.clone());
            }
        }
    }

    /// The patterns.
    #[must_use]
    pub fn patterns(&self) -> &[TopicPattern] {
        &self.0
    }
}

impl fmt::Display for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pattern) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, pattern.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_it_matches_in_every_case() {
        let covered = [
            ("**", "orders.*", true),
            ("**", "**", true),
            ("orders.**", "orders.*", true),
            ("orders.**", "orders.**", true),
            ("orders.**", "orders", false),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders.**", false),
            ("orders.*", "orders.*.eu", false),
            ("*.placed", "orders.placed", true),
            ("orders.placed", "*.placed", false),
            ("orders.placed", "orders.placed", true),
            ("*", "**", false),
        ];
        for (wide, narrow, expected) in covered {
            let covers = TopicPattern::new(wide).unwrap().covers(&TopicPattern::new(narrow).unwrap());
            assert_eq!(covers, expected, "{wide} covers {narrow}");
        }
    }

    #[test]
    fn a_filter_takes_in_another_without_naming_anything_twice() {
        let filter = |patterns: &[&str]| TopicFilter::new(patterns).unwrap();
        let mut wide = filter(&["orders.placed", "refunds.*"]);
        wide.add(&filter(&["refunds.made", "orders.*", "payments"]));
        assert_eq!(wide.to_string(), "refunds.*, orders.*, payments");
        assert!(wide.covers_all(&filter(&["payments", "refunds.made"])) && !wide.covers_all(&filter(&["**"])));
        assert!(wide.is_same_as(&filter(&["payments", "orders.*", "refunds.*"])));
        assert!(!wide.is_same_as(&filter(&["payments"])));
    }

    #[test]
    fn patterns_match_whole_segments() {
        let fits = [
            ("orders.placed", "orders.placed", true),
            ("orders.placed", "orders.placed.eu", false),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.placed.eu", false),
            ("*.placed", "orders.placed", true),
            ("orders.**", "orders.placed.eu", true),
            ("orders.**", "orders", false),
            ("**", "anything.at.all", true),
        ];
        for (pattern, topic, fit) in fits {
            assert_eq!(TopicPattern::new(pattern).unwrap().matches(topic), fit, "{pattern} {topic}");
        }
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for pattern in ["", "a..b", "a.**.b", "or*", "a b"] {
            assert!(TopicPattern::new(pattern).is_err(), "{pattern:?}");
        }
        assert!(TopicFilter::new::<&str>([]).is_err());
    }
}
