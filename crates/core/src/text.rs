//! Text as stores read it. Topics and names are few and come again and again: on a page each is kept once, so that a record
//! costs no allocation for them.
//!
//! Once on a page, not once in the store: pages are dropped on other threads than the one that reads, and if all of them
//! counted references to the same text, each thread would wait for the other's count.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

/// The texts of one column on one page, numbered from 0 in the order in which they were first seen.
#[derive(Debug, Default)]
pub struct Texts {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Box<[u8]>, usize>,
    last: usize,
}

impl Texts {
    /// The number of a text. Mostly the next record has the same one, and comparing is quicker than looking it up.
    #[inline]
    pub fn number(&mut self, bytes: &[u8]) -> usize {
        if self.texts.get(self.last).is_none_or(|last| last.as_bytes() != bytes) {
            self.last = self.look_up(bytes);
        }
        self.last
    }

    /// The text with this number.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    #[must_use]
    pub fn text(&self, number: usize) -> &Arc<str> {
        &self.texts[number]
    }

    fn look_up(&mut self, bytes: &[u8]) -> usize {
        if let Some(number) = self.numbers.get(bytes) {
            return *number;
        }
        let number = self.texts.len();
        self.texts.push(text(bytes).into());
        self.numbers.insert(bytes.into(), number);
        number
    }
}

/// Text as it was written. Not every server insists on UTF-8 (SQLite does not, nor PostgreSQL in the encoding `SQL_ASCII`), and
/// neither a lost nor a stuck message would be better than a replacement character.
#[must_use]
pub fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once() {
        let mut texts = Texts::default();
        let seen = [b"orders".as_slice(), b"orders", b"payments", b"\xff!", b"orders", b"\xff!", b"\xfe!"];
        let numbers = seen.map(|bytes| texts.number(bytes));
        assert_eq!(numbers, [0, 0, 1, 2, 0, 2, 3]);
        let kept: Vec<&str> = numbers.iter().map(|number| &**texts.text(*number)).collect();
        assert_eq!(kept, ["orders", "orders", "payments", "\u{fffd}!", "orders", "\u{fffd}!", "\u{fffd}!"]);
    }
}
