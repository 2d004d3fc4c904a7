//! Getting in by plain SQL: the function, the insert, and the columns that delivery rests on.

use crate::{Post, support::connect};

#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_enqueues() {
    let mut post = Post::new(20).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let call = format!(
        "SELECT \"{schema}\".enqueue(topic => 'orders', name => 'order.placed', key => 'o-4711', payload => '{{}}',
                                     headers => '{{\"tenant\": \"größe\"}}', attempts_max => 3)"
    );
    let id: uuid::Uuid = client.query_one(&call, &[]).await.unwrap().get(0);
    let insert = format!(
        "INSERT INTO \"{schema}\".log (id, topic, name, payload) VALUES (gen_random_uuid(), 'orders', 'order.placed', '{{}}')"
    );
    client.batch_execute(&insert).await.unwrap();
    let page = post.page().await;
    let [called, inserted] = page.records.as_slice() else { panic!("two records: {page:?}") };
    assert_eq!((called.envelope.id.0, called.envelope.attempts_max), (id, Some(3)));
    assert_eq!(called.envelope.key.as_ref().unwrap().as_str(), "o-4711");
    assert_eq!(called.envelope.headers.get("tenant").unwrap().as_deref(), Some("größe"));
    assert_eq!((inserted.envelope.key.as_ref(), inserted.envelope.headers.is_empty()), (None, true));
    assert_eq!(post.read_on().await.len(), 2);
}

/// The log has no check constraints: they would make every enqueue some 40 % dearer.
#[tokio::test(flavor = "multi_thread")]
async fn what_plain_sql_wrote_is_read_whatever_it_is() {
    let mut post = Post::new(20).await;
    let log = format!("\"{}\".log", post.place.schema());
    let client = connect().await;
    let rows = [
        "'', '', NULL, NULL, ''",
        "'orders', 'x', '', 0, '{}'",
        "'orders', 'x', 'k', -9223372036854775808, '{}'",
        "'orders', 'x', 'k', 9223372036854775807, '{}'",
        "repeat('t', 100000), repeat('n', 100000), repeat('k', 100000), 1, '{}'",
    ];
    for row in rows {
        let sql = format!(
            "INSERT INTO {log} (id, topic, name, key, attempts_max, payload) VALUES (gen_random_uuid(), {row})"
        );
        client.batch_execute(&sql).await.unwrap();
    }
    let page = post.page().await;
    assert_eq!(page.records.len(), rows.len());
    let attempts: Vec<Option<u32>> = page.records.iter().map(|record| record.envelope.attempts_max).collect();
    assert_eq!(attempts, [None, Some(1), Some(1), Some(u32::MAX), Some(1)]);
    let no_key = &page.records[1];
    assert_eq!((no_key.key, no_key.envelope.key.as_ref()), (None, None), "an empty key is none");
    assert_eq!(post.read_on().await.len(), rows.len());
    post.settle().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_columns_on_which_the_order_rests_stand_first_and_in_their_order() {
    // Defaults are evaluated in the order of columns; the other way round, a number would come before its transaction, or a
    // leaf be chosen by a number that something else has drawn.
    let post = Post::new(20).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let order = "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute
                  WHERE attrelid = $1::text::regclass AND attnum BETWEEN 1 AND 4";
    for leaf in ["log", "log_0", "log_7"] {
        let row = client.query_one(order, &[&format!("\"{schema}\".{leaf}")]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "tx,seq,enqueued_at,leaf", "{leaf}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_enqueues_something_itself_leads_no_message_astray() {
    // Blocks of four numbers, so that the number drawn by the value is often in another leaf than the row's own.
    let mut post = Post::new(2).await;
    let schema = post.place.schema().to_owned();
    let client = connect().await;
    let sql = format!(
        "CREATE FUNCTION \"{schema}\".note_event() RETURNS uuid LANGUAGE sql VOLATILE AS
         $$ SELECT \"{schema}\".enqueue('events', 'event.noted', 'x') $$;
         CREATE FUNCTION \"{schema}\".in_an_hour() RETURNS timestamptz LANGUAGE sql VOLATILE AS
         $$ SELECT \"{schema}\".enqueue('events', 'event.noted', 'x'); SELECT clock_timestamp() + interval '1 hour' $$"
    );
    client.batch_execute(&sql).await.unwrap();
    for _ in 0..16 {
        let insert = format!(
            "INSERT INTO \"{schema}\".log (id, topic, name, expires_at, payload)
             VALUES (\"{schema}\".note_event(), 'orders', 'order.placed', \"{schema}\".in_an_hour(), '{{}}')"
        );
        client.batch_execute(&insert).await.unwrap();
    }
    assert_eq!(post.read_on().await.len(), 3 * 16);
}
