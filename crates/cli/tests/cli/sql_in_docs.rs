//! SQL that the documentation shows is SQL that the server takes, and its messages are in the log afterwards.
//!
//! A block says where it runs: `sql on=postgres`, `sql on=sqlite`, `sql on=mysql`. One that cannot be run says why: `sql not-run:
//! REASON`. The blocks of a page run one after the other, in a database of their own, beside the tables that pages speak of
//! as the reader's own.

use rusqlite::Connection;

use crate::{
    mysql, postgres,
    support::Workplace,
    transcripts::{blocks, pages},
};

/// What pages take for granted: a table of orders, with one that was placed.
const ORDERS: &str = "
CREATE TABLE orders (id bigint PRIMARY KEY, number bigint, status varchar(20), state varchar(20));
INSERT INTO orders VALUES (4711, 4711, 'new', 'new');";

/// The blocks that run on this server, page by page.
fn sql(server: &str) -> Vec<Vec<String>> {
    let marked = format!("sql on={server}");
    let of_page = |page: &std::path::PathBuf| -> Vec<String> {
        let here = blocks(page).into_iter().filter(|(language, _)| *language == marked);
        here.map(|(_, lines)| lines.join("\n") + "\n").collect()
    };
    let found: Vec<_> = pages().iter().map(of_page).filter(|blocks| !blocks.is_empty()).collect();
    assert!(!found.is_empty(), "no page has SQL for {server}");
    found
}

#[test]
fn every_block_of_sql_says_where_it_runs() {
    let mut seen = 0;
    for page in pages() {
        for (language, _) in
            blocks(&page).iter().filter(|(language, _)| language.split([' ', ',']).next() == Some("sql"))
        {
            seen += 1;
            let runs = ["sql on=postgres", "sql on=sqlite", "sql on=mysql"].contains(&language.as_str());
            let excused = language.strip_prefix("sql not-run:").is_some_and(|reason| !reason.trim().is_empty());
            assert!(runs || excused, "{}: `{language}`", page.display());
        }
    }
    assert!(seen >= 5, "only {seen} blocks were found");
}

/// The rights that a page gives to the role `shop` are all that it needs for what the page shows, and no more than it needs.
#[test]
fn sql_for_postgresql_runs_under_the_rights_that_the_page_gives() {
    for page in sql("postgres") {
        let database = postgres::Database::migrated();
        let role = database.role();
        let nothing = format!(
            "SET search_path TO public; {ORDERS} GRANT SELECT, UPDATE ON orders TO {role};
             REVOKE ALL ON ALL TABLES IN SCHEMA postrider FROM {role};
             REVOKE ALL ON ALL SEQUENCES IN SCHEMA postrider FROM {role};
             REVOKE ALL ON SCHEMA postrider FROM {role}"
        );
        database.admin(&nothing).done();
        let page: Vec<String> = page.iter().map(|sql| sql.replace(" TO shop;", &format!(" TO {role};"))).collect();
        let (grants, works): (Vec<_>, Vec<_>) = page.iter().partition(|sql| sql.contains("GRANT "));
        for sql in &works {
            let refused = database.app(sql).refused();
            assert!(refused.contains("permission denied for schema postrider"), "{refused}");
        }
        for grant in grants {
            database.admin(grant).done();
        }
        for sql in &works {
            database.app(sql).done();
        }
        let counted = database.admin("SELECT count(*) FROM postrider.log").done();
        assert_eq!(counted.trim(), works.len().to_string(), "each block enqueues one message");
    }
}

#[test]
fn sql_for_sqlite_runs() {
    for page in sql("sqlite") {
        let place = Workplace::new();
        assert_eq!(place.run(&["migrate", "up", "--store", "sqlite:shop.db"]).code, 0);
        let connection = Connection::open(place.path("shop.db")).unwrap();
        for sql in &page {
            connection.execute_batch(sql).unwrap_or_else(|error| panic!("{error} in {sql}"));
        }
        assert_eq!(enqueued(&place, "sqlite:shop.db"), page.len());
    }
}

#[test]
fn sql_for_mysql_runs() {
    for page in sql("mysql") {
        let (place, database) = (Workplace::new(), mysql::Database::fresh("docs"));
        assert_eq!(place.run(&["migrate", "up", "--store", &database.url()]).code, 0);
        database.client(&database.name, ORDERS);
        for sql in &page {
            database.client(&database.name, sql);
        }
        assert_eq!(enqueued(&place, &database.url()), page.len());
    }
}

/// How many messages the log has, as an operator sees it.
fn enqueued(place: &Workplace, store: &str) -> usize {
    let listed = place.run(&["message", "list", "--store", store, "--output", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
    listed["messages"].as_array().unwrap().len()
}
