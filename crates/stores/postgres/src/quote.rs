//! Names and texts as SQL writes them: quoted, so that nothing inside of them can become SQL.

/// PostgreSQL cuts longer identifiers.
pub(crate) const IDENTIFIER_BYTES_MAX: usize = 63;

/// `"name"`.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `'text'`, whatever the server's `standard_conforming_strings` says.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

/// A body between dollar quotes whose tag does not occur in it.
pub(crate) fn body(text: &str) -> String {
    let mut tag = "$body$".to_owned();
    while text.contains(&tag) {
        tag.insert(1, 'x');
    }
    format!("{tag}\n{text}{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_escapes_its_quotes() {
        assert_eq!(identifier("a\"; DROP"), "\"a\"\"; DROP\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\' b"), "E'a\\\\'' b'");
        assert_eq!(body("x $body$ y\n"), "$xbody$\nx $body$ y\n$xbody$");
    }
}
