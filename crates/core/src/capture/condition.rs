//! A condition that somebody wrote in SQL.

use crate::error::{Error, Result};

/// A condition is put between parentheses, so it must not be able to leave them.
pub(super) fn check_condition(condition: &str) -> Result<()> {
    let wrong = |what: &'static str| Err(Error::invalid(what).with("when", condition));
    let (mut depth, mut quote) = (0_i32, None);
    let mut before = ' ';
    for c in condition.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') if depth == 0 => return wrong("a condition closes a parenthesis that it has not opened"),
            (None, ')') => depth -= 1,
            (None, ';' | '$') => return wrong("a condition holds neither `;` nor `$`"),
            (None, '-') if before == '-' => return wrong("a condition holds no comment"),
            (None, '*') if before == '/' => return wrong("a condition holds no comment"),
            (None, _) => {}
        }
        before = if quote.is_some() { ' ' } else { c };
    }
    if condition.trim().is_empty() {
        return wrong("a condition is empty; leave it out to capture every row");
    }
    if depth != 0 || quote.is_some() {
        return wrong("a parenthesis or quote in a condition is not closed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_stays_between_its_parentheses() {
        for good in ["NEW.total > 100", "(NEW.a = ')') OR NEW.\"odd(\" IS NULL", "NEW.a - NEW.b / 2 * -1 < 0"] {
            assert!(check_condition(good).is_ok(), "{good}");
        }
        for bad in ["", "true) OR (true", "(true", "true -- x", "true /* x", "true; DROP TABLE x", "'open", "$$x$$"] {
            assert!(check_condition(bad).is_err(), "{bad}");
        }
    }
}
