//! Names of tables and columns, as a declaration writes them.

use std::fmt;

use crate::error::{Error, Result};

/// No database that is captured has longer names.
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Refuses a name that a database would cut or could not keep.
///
/// # Errors
/// If it is empty, longer than 63 bytes, or has control characters.
pub fn check_identifier(what: &'static str, name: &str) -> Result<()> {
    if name.is_empty() || name.len() > IDENTIFIER_BYTES_MAX || name.contains(char::is_control) {
        let shown: String = name.escape_debug().to_string().chars().take(80).collect();
        return Err(Error::invalid(format!("{what} has 1 to {IDENTIFIER_BYTES_MAX} bytes and no control characters"))
            .with("name", shown));
    }
    Ok(())
}

/// A table with its schema.
///
/// ```
/// use postrider_core::capture::Table;
/// assert_eq!(Table::parse("public.orders")?.to_string(), "\"public\".\"orders\"");
/// assert_eq!(Table::parse("\"Order-Box\".\"a.b\"")?.to_string(), "\"Order-Box\".\"a.b\"");
/// assert!(Table::parse("orders").is_err());
/// # Ok::<(), postrider_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    schema: String,
    name: String,
}

impl Table {
    /// Reads `schema.table`. Names are taken as they are written, without being folded to lower case; one that contains a
    /// dot or a quote stands in double quotes.
    ///
    /// # Errors
    /// If it is not two names. The schema is not left out: what it would be depends on who asks.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid("a table is written with its schema, such as `public.orders`").with("table", text);
        let (schema, rest) = name(text).ok_or_else(wrong)?;
        let (table, rest) = rest.strip_prefix('.').and_then(name).ok_or_else(wrong)?;
        if !rest.is_empty() {
            return Err(wrong());
        }
        check_identifier("a schema", &schema)?;
        check_identifier("a table", &table)?;
        Ok(Self { schema, name: table })
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The name within the schema.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// As standard SQL writes it.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// One name, and what follows it.
fn name(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find('.').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        return (!name.is_empty() && !name.contains('"')).then(|| (name.to_owned(), rest));
    };
    let (mut name, mut rest) = (String::new(), quoted);
    loop {
        let (part, behind) = rest.split_once('"')?;
        name.push_str(part);
        match behind.strip_prefix('"') {
            Some(behind) => {
                name.push('"');
                rest = behind;
            }
            None => return Some((name, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_two_names() {
        for wrong in ["", "a", ".", "a.", ".b", "a.b.c", "\"a.b", "\"a\"b.c", "a.b\"", "a.\"b\"c", "a.\u{7}"] {
            assert!(Table::parse(wrong).is_err(), "{wrong:?}");
        }
        let odd = Table::parse("\"say \"\"hi\"\"\".T").unwrap();
        assert_eq!((odd.schema(), odd.name()), ("say \"hi\"", "T"));
        assert!(Table::parse(&format!("s.{}", "t".repeat(64))).is_err());
    }
}
