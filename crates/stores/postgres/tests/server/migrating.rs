//! The schema: migrations that race and are checked, and settings that are refused.

use postrider_core::{
    ErrorKind,
    admin::{Actor, StoreAdmin},
    log::Log,
};
use postrider_store_postgres::{Postgres, PostgresStore, migrations};

use crate::{
    Post, WHOLE,
    support::{Schema, connect, url},
};

#[tokio::test(flavor = "multi_thread")]
async fn migrations_are_printed_applied_once_and_checked() {
    let (by_hand, by_up) = (Schema::fresh(), Schema::fresh());
    let client = connect().await;
    client.batch_execute(&migrations::sql(&Postgres::new(by_hand.name(), "x_").unwrap())).await.unwrap();
    let dialect = Postgres::new(by_up.name(), "x_").unwrap();
    let planned = migrations::plan(&url(), &dialect).await.unwrap().len();
    assert!(planned >= 1, "a new schema has something to apply");
    let closed = PostgresStore::builder(&url()).schema(by_up.name()).prefix("x_").migrate(false).open().await;
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Schema, "without migrations nothing is made");
    let url = url();
    let racers = (0..12).map(|_| {
        let (url, dialect) = (url.clone(), dialect.clone());
        tokio::spawn(async move { migrations::up(&url, &dialect, &Actor::new("tests")).await.unwrap().len() })
    });
    let mut applied = 0;
    for racer in racers.collect::<Vec<_>>() {
        applied += racer.await.unwrap();
    }
    assert_eq!(applied, planned, "of twelve that race, each is applied by one");
    let described =
        "SELECT string_agg(format('%s.%s %s %s', c.relname, a.attname, a.atttypid::regtype, a.attnotnull), E'\\n'
                              ORDER BY c.relname, a.attnum)
                       FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
                       JOIN pg_namespace AS n ON n.oid = c.relnamespace
                      WHERE n.nspname = $1 AND a.attnum > 0";
    let describe =
        async |schema: &Schema| -> String { client.query_one(described, &[&schema.name()]).await.unwrap().get(0) };
    assert_eq!(describe(&by_hand).await, describe(&by_up).await);

    let table = format!("\"{}\".x_migration", by_up.name());
    client.batch_execute(&format!("UPDATE {table} SET checksum = 'altered'")).await.unwrap();
    let error = migrations::status(&url, &dialect).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("another text"), "{error:?}");
    client
        .batch_execute(&format!("INSERT INTO {table} (version, name, checksum) VALUES (99, 'x', 'x')"))
        .await
        .unwrap();
    let error = migrations::status(&url, &dialect).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Schema && error.to_string().contains("newer"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_sequence_is_refused() {
    let post = Post::new(20).await;
    let alter = format!("ALTER SEQUENCE \"{}\".seq CACHE 10", post.place.schema());
    connect().await.batch_execute(&alter).await.unwrap();
    let error = post.store.read(&post.lease, &post.cursor, WHOLE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error:?}");
    assert!(error.to_string().contains("CACHE 1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_url_names_no_password() {
    let refused = PostgresStore::open("postgres://user:secret@host:notaport/db").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(!refused.chain().contains("secret"), "{}", refused.chain());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrations_of_an_operator_are_audited() {
    let schema = Schema::fresh();
    let anna = Actor { name: "anna".into(), reason: Some("ticket 7".into()) };
    let dialect = Postgres::new(schema.name(), "").unwrap();
    let applied = migrations::up(&url(), &dialect, &anna).await.unwrap();
    let store = PostgresStore::builder(&url()).schema(schema.name()).migrate(false).open().await.unwrap();
    let entries = store.audit(100).await.unwrap();
    assert_eq!(entries.len(), applied.len());
    let last = &entries[0];
    assert_eq!((&last.actor, &*last.action, &last.subject), (&anna, "migrate", &applied.last().unwrap().in_words()));
}
