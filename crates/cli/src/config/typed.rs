//! Asks a section for values as the table of [keys](super::keys) describes them. `…_or_default` falls back to the table.

use std::time::Duration;

use super::{
    keys::Kind,
    reader::Section,
    shapes::{boolean, decimal, number, one_of, size_between, some_time, text, written},
};
use crate::values;

impl Section<'_, '_> {
    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        self.get(key, text)
    }

    pub(super) fn text_or_default(&mut self, key: &'static str) -> String {
        self.value(key, text)
    }

    pub(super) fn boolean_or_default(&mut self, key: &'static str) -> bool {
        self.value(key, boolean)
    }

    pub(super) fn number(&mut self, key: &'static str) -> Option<u32> {
        let (least, most) = self.range(key);
        self.get(key, number(least, most))
    }

    pub(super) fn number_or_default(&mut self, key: &'static str) -> u32 {
        let (least, most) = self.range(key);
        self.value(key, number(least, most))
    }

    pub(super) fn decimal_or_default(&mut self, key: &'static str) -> f64 {
        self.value(key, decimal)
    }

    pub(super) fn duration(&mut self, key: &'static str) -> Option<Duration> {
        let read = self.duration_reader(key);
        self.get(key, written(read))
    }

    pub(super) fn duration_or_default(&mut self, key: &'static str) -> Duration {
        let read = self.duration_reader(key);
        self.value(key, written(read))
    }

    pub(super) fn size_or_default(&mut self, key: &'static str) -> usize {
        let Kind::Size(least, most) = self.key(key).kind else { unreachable!("`{key}` is no size in the table") };
        self.value(key, size_between(least, most))
    }

    /// A word and what it means; the table has the same words.
    pub(super) fn word_or_default<T: Copy>(&mut self, key: &'static str, words: &'static [(&'static str, T)]) -> T {
        let Kind::Word(known) = self.key(key).kind else { unreachable!("`{key}` is no word in the table") };
        debug_assert!(words.iter().map(|(word, _)| word).eq(known), "the words of `{key}` differ from the table's");
        self.value(key, one_of(words))
    }

    /// The range of a number.
    pub(super) fn range(&self, key: &str) -> (u32, u32) {
        let (Kind::Number(least, most) | Kind::Numbers(least, most)) = self.key(key).kind else {
            unreachable!("`{key}` is no number in the table")
        };
        (least, most)
    }

    fn duration_reader(&self, key: &str) -> fn(&str) -> Result<Duration, String> {
        match self.key(key).kind {
            Kind::SomeTime => some_time,
            _ => values::duration,
        }
    }
}
