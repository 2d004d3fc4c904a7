//! The outbox table of Debezium's event router: written by every client, and read back.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use postrider_core::{ErrorKind, enlist::Enlist, envelope::Envelope, headers::Headers};
use postrider_store_postgres::{
    DebeziumOutbox, PayloadType,
    capture::{Capture, Script, Source},
};
use support::{Place, Schema, batch, connect};
use tokio_postgres::Client;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A table as Debezium documents it, with a tenant and a payload of some type.
struct Router {
    schema: Schema,
    client: Client,
}

impl Router {
    async fn new(payload: &str) -> Self {
        let router = Self { schema: Schema::fresh(), client: connect().await };
        let schema = router.schema.name();
        let sql = format!(
            "CREATE SCHEMA {schema}; SET search_path = {schema};
             CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255),
                                  type varchar(255) NOT NULL, payload {payload}, tracingspancontext varchar(256),
                                  \"Tenant\" text, at bigserial)"
        );
        router.client.batch_execute(&sql).await.unwrap();
        router
    }

    fn table(&self) -> String {
        format!("{}.outbox", self.schema.name())
    }

    fn outbox(&self, ty: PayloadType) -> DebeziumOutbox {
        let outbox = DebeziumOutbox::new(&self.table()).unwrap().payload_column("payload", ty).unwrap();
        outbox.header_column("tenant", "Tenant").unwrap().tracing_column("tracingspancontext").unwrap()
    }

    /// Id, aggregate type and id, type, payload, trace and tenant of every row.
    async fn rows(&self) -> Vec<String> {
        let sql = "SELECT concat_ws('|', id, aggregatetype, coalesce(aggregateid, 'NULL'), type, payload,
                                    coalesce(tracingspancontext, 'NULL'), coalesce(\"Tenant\", 'NULL'))
                     FROM outbox ORDER BY at";
        self.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }
}

fn messages() -> Vec<Envelope> {
    let first = Envelope::new("order", "OrderCreated", "{\"n\": 1}").with_key("o-1");
    let mut second = Envelope::new("order", "OrderPaid", "{\"n\": 2}").with_key("o-1");
    second.headers = Headers::new([("traceparent", TRACE), ("tracestate", "a=b"), ("tenant", "")]).unwrap();
    let third = Envelope::new("stock", "Sold", "[]");
    vec![first, second, third]
}

fn expected(messages: &[Envelope]) -> Vec<String> {
    let ids: Vec<String> = messages.iter().map(|envelope| envelope.id.to_string()).collect();
    vec![
        format!("{}|order|o-1|OrderCreated|{{\"n\": 1}}|NULL|NULL", ids[0]),
        format!("{}|order|o-1|OrderPaid|{{\"n\": 2}}|traceparent={TRACE}\ntracestate=a=b\n|", ids[1]),
        format!("{}|stock|NULL|Sold|[]|NULL|NULL", ids[2]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_and_deadpool_write_it() {
    for (ty, column) in [
        (PayloadType::Jsonb, "jsonb"),
        (PayloadType::Json, "json"),
        (PayloadType::Text, "text"),
        (PayloadType::Text, "varchar(90)"),
    ] {
        let router = Router::new(column).await;
        let (outbox, sent) = (router.outbox(ty), messages());
        let mut client = connect().await;
        let mut rolled_back = client.transaction().await.unwrap();
        rolled_back.append(&outbox, batch(sent.clone())).await.unwrap();
        rolled_back.rollback().await.unwrap();
        let mut transaction = client.transaction().await.unwrap();
        transaction.append(&outbox, batch(Vec::new())).await.unwrap();
        transaction.append(&outbox, batch(sent.clone())).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(router.rows().await, expected(&sent), "{column}");
    }
    let router = Router::new("bytea").await;
    let outbox = router.outbox(PayloadType::Bytea);
    let config: tokio_postgres::Config = support::url().parse().unwrap();
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(1).build().unwrap();
    let mut client = pool.get().await.unwrap();
    let mut transaction = client.transaction().await.unwrap();
    let bytes = Envelope::new("order", "Bytes", vec![0xff, 0]);
    transaction.append(&outbox, batch(vec![bytes.clone()])).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(router.rows().await, [format!("{}|order|NULL|Bytes|\\xff00|NULL|NULL", bytes.id)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_cannot_hold_is_refused_and_the_transaction_goes_on() {
    let router = Router::new("jsonb").await;
    let outbox = DebeziumOutbox::new(&router.table()).unwrap();
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    let error = transaction.append(&outbox, batch(messages())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no column for this header"), "{error}");
    transaction.append(&outbox, batch(vec![messages()[0].clone()])).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(router.rows().await.len(), 1, "nothing of a batch that was refused is written");
    let mut transaction = client.transaction().await.unwrap();
    let error = transaction.append(&outbox, batch(vec![Envelope::new("a", "b", "no json")])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_so_can_be_captured_so() {
    let (router, place) = (Router::new("bytea").await, Place::new(20).await);
    let capture = Capture::debezium(&router.table()).unwrap().topic("${aggregatetype}").unwrap();
    let capture = capture.header("tenant", Source::Column("Tenant".to_owned())).unwrap();
    let capture = capture.header("traceparent", Source::Tracing("tracingspancontext".to_owned())).unwrap();
    let script = Script::new(&place.store().dialect(), vec![capture]).unwrap();
    router.client.batch_execute(&script.create()).await.unwrap();
    let mut sent = messages();
    sent[1].headers = Headers::new([("traceparent", TRACE), ("tenant", "acme")]).unwrap();
    let mut client = connect().await;
    let mut transaction = client.transaction().await.unwrap();
    transaction.append(&router.outbox(PayloadType::Bytea), batch(sent.clone())).await.unwrap();
    transaction.commit().await.unwrap();
    let decoded = |envelopes: &[Envelope]| -> Vec<_> {
        let plain = |envelope: &Envelope| Envelope { headers: Headers::default(), ..envelope.clone() };
        envelopes.iter().map(|envelope| (plain(envelope), envelope.headers.decode().unwrap())).collect()
    };
    assert_eq!(decoded(&place.delivered().await), decoded(&sent));
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_writes_it() {
    use sqlx::Connection;
    let router = Router::new("jsonb").await;
    let sent = messages();
    let mut connection = sqlx::PgConnection::connect(&support::url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&router.outbox(PayloadType::Jsonb), batch(sent.clone())).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(router.rows().await, expected(&sent));
}

#[cfg(feature = "sea-orm")]
#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_writes_it() {
    use sea_orm::TransactionTrait;
    let router = Router::new("jsonb").await;
    let sent = messages();
    let connection = sea_orm::Database::connect(support::url()).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    transaction.append(&router.outbox(PayloadType::Jsonb), batch(sent.clone())).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(router.rows().await, expected(&sent));
}

#[cfg(feature = "diesel-async")]
#[tokio::test(flavor = "multi_thread")]
async fn diesel_async_writes_it() {
    use diesel_async::{AsyncConnection, AsyncPgConnection};
    use postrider_store_postgres::enlist::DieselAsyncTransaction;
    let router = Router::new("jsonb").await;
    let (outbox, sent) = (router.outbox(PayloadType::Jsonb), messages());
    let mut connection = AsyncPgConnection::establish(&support::url()).await.unwrap();
    let done = connection.transaction(async |connection| {
        DieselAsyncTransaction::of(connection)?.append(&outbox, batch(sent.clone())).await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    });
    done.await.unwrap();
    assert_eq!(router.rows().await, expected(&sent));
}

#[cfg(feature = "libpq")]
#[tokio::test(flavor = "multi_thread")]
async fn diesel_writes_it() {
    use diesel::{Connection, PgConnection};
    use postrider_store_postgres::enlist::DieselTransaction;
    let router = Router::new("jsonb").await;
    let (outbox, sent) = (router.outbox(PayloadType::Jsonb), messages());
    let messages = sent.clone();
    let writing = tokio::task::spawn_blocking(move || {
        let mut connection = PgConnection::establish(&support::url()).unwrap();
        connection
            .transaction::<_, Box<dyn std::error::Error>, _>(|connection| {
                Ok(DieselTransaction::of(connection)?.append(&outbox, batch(messages))?)
            })
            .unwrap();
    });
    writing.await.unwrap();
    assert_eq!(router.rows().await, expected(&sent));
}
