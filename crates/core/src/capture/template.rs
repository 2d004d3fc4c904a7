//! A topic or name that is put together from columns: `outbox.event.${aggregatetype}`.

use super::table::check_identifier;
use crate::{
    error::{Error, Result},
    topic::check_name,
};

/// Text with columns in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

/// A part of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// As it is.
    Text(String),
    /// The value of a column.
    Column(String),
}

impl Template {
    /// Reads a text in which `${column}` stands for the value of a column.
    ///
    /// # Errors
    /// If a brace is not closed, a column's name cannot be one, or the text without any column is not a usable name.
    pub fn parse(text: &str) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let (column, behind) = behind.split_once('}').ok_or_else(|| {
                Error::invalid("`${` without `}`; a column is written `${column}`").with("text", text)
            })?;
            check_identifier("a column", column)?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(Piece::Column(column.to_owned()));
            rest = behind;
        }
        if !rest.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        let example: String = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::Column(_) => "x",
            })
            .collect();
        check_name("text", &example)?;
        Ok(Self(pieces))
    }

    /// Its parts, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The columns in it.
    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Column(column) => Some(column.as_str()),
            Piece::Text(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_between_texts() {
        let (text, column) = (|text: &str| Piece::Text(text.into()), |column: &str| Piece::Column(column.into()));
        let template = Template::parse("outbox.event.${aggregatetype}").unwrap();
        assert_eq!(template.pieces(), [text("outbox.event."), column("aggregatetype")]);
        assert_eq!(Template::parse("${type}").unwrap().pieces(), [column("type")]);
        assert_eq!(Template::parse("orders").unwrap().pieces(), [text("orders")]);
        assert_eq!(Template::parse("a.${b}.${c}").unwrap().columns().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn what_could_never_be_a_topic_is_refused() {
        for wrong in ["", "a b", "a..b", "${a", "${}", "it's", "${a} ${b}"] {
            assert!(Template::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
