//! Topics and names are few and come again and again: on a page each is kept once, so that a record costs no allocation
//! for them.

use std::{collections::HashMap, sync::Arc};

/// The texts of one field on one page, numbered from 0 in the order in which they were first seen.
#[derive(Default)]
pub(crate) struct Texts {
    texts: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, usize>,
    last: usize,
}

impl Texts {
    /// The number of a text. Mostly the next record has the same one, and comparing is quicker than looking it up.
    pub(crate) fn number(&mut self, text: &str) -> usize {
        if self.texts.get(self.last).is_none_or(|last| **last != *text) {
            self.last = self.look_up(text);
        }
        self.last
    }

    /// The text with this number.
    pub(crate) fn text(&self, number: usize) -> &Arc<str> {
        &self.texts[number]
    }

    fn look_up(&mut self, text: &str) -> usize {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len();
        let text: Arc<str> = text.into();
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once() {
        let mut texts = Texts::default();
        let numbers = ["orders", "orders", "payments", "orders"].map(|text| texts.number(text));
        assert_eq!(numbers, [0, 0, 1, 0]);
        assert_eq!(&**texts.text(1), "payments");
    }
}
