//! What the reader takes for granted about PostgreSQL, asked of the server at hand.

use std::fs;

use crate::{
    cluster::Cluster,
    reader::{Reader, append, commit, number},
};

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_evaluated_in_the_order_of_columns() {
    // A transaction must have its id before it draws a number. Here both columns draw from one sequence, which shows whose
    // default came first, whatever the statement. And a row must find its leaf by the number that it has drawn itself, also
    // where what is given by hand draws from the sequence.
    let cluster = Cluster::start("");
    let client = cluster.connect().await;
    let rows = cluster.file("rows");
    fs::write(&rows, "7\n8\n9\n").unwrap();
    let sql = format!(
        "CREATE SEQUENCE s;
         CREATE TABLE log (
             tx bigint DEFAULT nextval('s'), seq bigint DEFAULT nextval('s'), at timestamptz DEFAULT clock_timestamp(),
             leaf smallint DEFAULT ((currval('s') >> 1) & 1), id int, key int
         ) PARTITION BY LIST (leaf);
         CREATE TABLE log_0 PARTITION OF log FOR VALUES IN (0);
         CREATE TABLE log_1 PARTITION OF log FOR VALUES IN (1);
         INSERT INTO log (id) VALUES (1);
         INSERT INTO log (id) VALUES (2), (3), (4);
         INSERT INTO log VALUES (DEFAULT, DEFAULT, DEFAULT, DEFAULT, 5, 1);
         INSERT INTO log (id, key) VALUES (nextval('s'), 2);
         INSERT INTO log (key, id) VALUES (nextval('s'), nextval('s')), (3, nextval('s'));
         INSERT INTO log (id, key) SELECT nextval('s'), i FROM generate_series(1, 9) AS i;
         INSERT INTO log (id, key) SELECT nextval('s'), i FROM generate_series(1, 9) AS i ORDER BY i DESC;
         INSERT INTO log (seq, tx, id) VALUES (DEFAULT, DEFAULT, 6);
         INSERT INTO log (leaf, seq, tx, id) VALUES (DEFAULT, DEFAULT, DEFAULT, 7);
         INSERT INTO log (id) SELECT i FROM generate_series(10, 40) AS i ORDER BY i DESC;
         INSERT INTO log (id, key) SELECT DISTINCT i / 3, i / 3 FROM generate_series(10, 40) AS i;
         INSERT INTO log (id) SELECT * FROM unnest(array[1, 2, 3]);
         COPY log (id) FROM '{rows}'"
    );
    client.batch_execute(&sql).await.unwrap();
    assert_eq!(number(&client, "SELECT count(*) FROM log WHERE tx >= seq").await, 0);
    assert_eq!(number(&client, "SELECT count(*) FROM log_0 WHERE (seq >> 1) & 1 <> 0").await, 0);
    assert_eq!(number(&client, "SELECT count(*) FROM log_1 WHERE (seq >> 1) & 1 <> 1").await, 0);
    assert!(number(&client, "SELECT count(*) FROM log").await > 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_drawn_a_number_holds_the_sequence_to_its_end() {
    let cluster = Cluster::start("");
    drop(Reader::open(&cluster.url()).await);
    let (client, looker) = (cluster.connect().await, cluster.connect().await);
    let holders = "SELECT count(*) FROM pg_locks
                    WHERE relation = 'postrider.seq'::regclass AND mode = 'RowExclusiveLock' AND granted";
    let enqueue = "SELECT postrider.enqueue('t', 'n', '')";
    client.batch_execute(&format!("BEGIN; SAVEPOINT a; {enqueue}; ROLLBACK TO a")).await.unwrap();
    assert_eq!(number(&looker, holders).await, 1, "also when the draw is rolled back");
    client.batch_execute("PREPARE TRANSACTION 'p'").await.unwrap();
    assert_eq!(number(&looker, holders).await, 1, "also when it is prepared");
    let by_id = "SELECT count(*) FROM pg_locks AS id JOIN pg_locks AS seq USING (virtualtransaction)
                  WHERE id.locktype = 'transactionid' AND seq.relation = 'postrider.seq'::regclass";
    assert_eq!(number(&looker, by_id).await, 1, "and is found by its virtual transaction");
    client.batch_execute("COMMIT PREPARED 'p'").await.unwrap();
    assert_eq!(number(&looker, holders).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_in_another_database_holds_up_nobody() {
    let cluster = Cluster::start("");
    let url = cluster.url();
    let mut reader = Reader::open(&url).await;
    cluster.connect().await.batch_execute("CREATE DATABASE other").await.unwrap();
    let (other, connection) =
        tokio_postgres::connect(&url.replace("/postgres", "/other"), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    other.batch_execute("BEGIN; CREATE TABLE t (x int)").await.unwrap();
    let mut writer = cluster.connect().await;
    let mut writing = writer.transaction().await.unwrap();
    let held = append(&mut writing, 1).await;
    let orphan = "BEGIN; SELECT postrider.enqueue('t', 'n', 'x'); PREPARE TRANSACTION 'orphan'";
    cluster.connect().await.batch_execute(orphan).await.unwrap();
    for _ in 0..5 {
        let sent = commit(&url, 4).await;
        assert_eq!(reader.read_on().await, sent, "while all three are open");
        reader.settle().await.unwrap();
    }
    writing.commit().await.unwrap();
    assert_eq!(reader.read_on().await, held);
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(reader.read_on().await, []);
}
