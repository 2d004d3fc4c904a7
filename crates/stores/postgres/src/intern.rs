//! Topics and names are few and come again and again: each is kept once, so that a record costs no allocation for them.

use std::{collections::HashMap, sync::Arc};

use postrider_core::text::text;

/// How many different texts are remembered. Beyond that the memory starts anew, so that a topic per customer cannot
/// fill it.
const TEXTS_MAX: usize = 4096;

/// Texts by their bytes, numbered in the order in which they were first seen.
#[derive(Default)]
pub(crate) struct Interner {
    numbers: HashMap<Box<[u8]>, u32>,
    texts: Vec<Arc<str>>,
}

/// The last text of one column: mostly the next record has the same, and comparing is quicker than looking it up.
#[derive(Default)]
pub(crate) struct Last(Option<(Box<[u8]>, u32)>);

impl Last {
    /// The number of a text.
    pub(crate) fn number(&mut self, bytes: &[u8], interner: &mut Interner) -> u32 {
        match &self.0 {
            Some((last, number)) if **last == *bytes => *number,
            _ => {
                let number = interner.number(bytes);
                self.0 = Some((bytes.into(), number));
                number
            }
        }
    }
}

impl Interner {
    /// Forgets everything if there is too much of it. Numbers are stable in between: call it once per page.
    pub(crate) fn tidy(&mut self) {
        if self.texts.len() > TEXTS_MAX {
            *self = Self::default();
        }
    }

    /// The number of a text.
    pub(crate) fn number(&mut self, bytes: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(bytes) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).expect("tidied long before");
        self.texts.push(text(bytes).into());
        self.numbers.insert(bytes.into(), number);
        number
    }

    /// The text with this number.
    pub(crate) fn text(&self, number: u32) -> &Arc<str> {
        &self.texts[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let mut interner = Interner::default();
        let mut last = Last::default();
        for text in [b"orders".as_slice(), b"orders", b"payments", b"orders"] {
            let number = last.number(text, &mut interner);
            assert_eq!(interner.text(number).as_bytes(), text);
        }
        assert_eq!(interner.texts.len(), 2);
        let odd = interner.number(b"\xff!");
        assert_eq!(&**interner.text(odd), "\u{fffd}!");
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut interner = Interner::default();
        for i in 0..3 * TEXTS_MAX {
            interner.tidy();
            interner.number(i.to_string().as_bytes());
        }
        assert!(interner.texts.len() <= TEXTS_MAX + 1);
    }
}
