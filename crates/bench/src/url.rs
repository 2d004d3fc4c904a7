//! URLs of databases.

/// The same URL with another database.
pub(crate) fn in_database(url: &str, database: &str) -> String {
    let (before, query) = url.split_once('?').map_or((url, None), |(before, query)| (before, Some(query)));
    let scheme = before.find("://").map_or(0, |at| at + 3);
    let host_end = before[scheme..].find('/').map_or(before.len(), |at| scheme + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{database}{query}", &before[..host_end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_changes_its_database_and_nothing_else() {
        assert_eq!(in_database("postgres://u:p@h:1/postgres", "b"), "postgres://u:p@h:1/b");
        assert_eq!(in_database("postgres://u:p@h:1", "b"), "postgres://u:p@h:1/b");
        assert_eq!(in_database("postgres://h/x?sslmode=disable", "b"), "postgres://h/b?sslmode=disable");
    }
}
