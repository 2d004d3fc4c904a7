//! `[log]`: what the daemon says of itself on standard error, and in which form.

use super::reader::Section;

/// One line for people, or one object for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LogConfig {
    pub(crate) level: &'static str,
    pub(crate) format: Format,
}

const LEVELS: &[(&str, &str)] =
    &[("error", "error"), ("warn", "warn"), ("info", "info"), ("debug", "debug"), ("trace", "trace")];
const FORMATS: &[(&str, Format)] = &[("text", Format::Text), ("json", Format::Json)];

pub(super) fn read(top: &mut Section<'_, '_>) -> LogConfig {
    let mut section = top.section_or_empty("log");
    let level = section.word_or_default("level", LEVELS);
    let format = section.word_or_default("format", FORMATS);
    section.close();
    LogConfig { level, format }
}
