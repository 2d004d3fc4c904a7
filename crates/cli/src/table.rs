//! Tables for terminals: columns as wide as their widest cell, two spaces between them.
//!
//! Keys, names and causes come from applications. What could move the cursor, forge a row or turn the text round is shown
//! escaped. A column grows no wider than a person can read; a longer cell stands out, with all that it has.

use std::fmt;

/// Cells beyond this width do not move the columns behind them.
const COLUMN_MAX: usize = 120;

/// Rows under a heading.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(ToString::to_string).collect()] }
    }

    /// Rows without the heading.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() - 1
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.rows[0].len(), "one cell a column");
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }
}

/// The text with everything escaped that a terminal would obey instead of showing it.
pub(crate) fn printable(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        if obeyed(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).min(COLUMN_MAX)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["A", "BB"]);
        table.row(["long".to_owned(), "x".to_owned()]);
        assert_eq!(table.to_string(), "A     BB\nlong  x\n");
    }

    #[test]
    fn a_very_long_cell_is_shown_whole_and_moves_no_others() {
        let long = "k".repeat(70_000);
        let mut table = Table::new(&["KEY", "DEAD"]);
        table.row([long.clone(), "1".to_owned()]);
        table.row(["short".to_owned(), "2".to_owned()]);
        let shown = table.to_string();
        assert!(shown.contains(&format!("{long}  1\n")));
        assert_eq!(shown.lines().last().map(str::len), Some(COLUMN_MAX + 3));
    }

    #[test]
    fn a_hostile_key_forges_no_row() {
        let mut table = Table::new(&["KEY"]);
        table.row(["\u{1b}[31mEVIL\n\u{202e}; rm ä".to_owned()]);
        assert_eq!(table.to_string(), "KEY\n\\u{1b}[31mEVIL\\n\\u{202e}; rm ä\n");
    }
}
