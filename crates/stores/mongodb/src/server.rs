//! What the server is: what could not keep the promises is refused when the store is opened, with one sentence that says what
//! to change.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
};
use postrider_core::{Error, ErrorKind, Result};

use crate::{
    error::Work,
    value::{long_opt, text_opt},
};

/// The wire version of MongoDB 6.0.
const WIRE_MIN: i64 = 17;

/// That of MongoDB 4.4, which can tell how large a document is.
const WIRE_MIN_EMBEDDED: i64 = 9;

/// Asks the server what it is.
pub(crate) async fn hello(client: &Client) -> Work<Document> {
    Ok(client.database("admin").run_command(doc! { "hello": 1 }).await?)
}

/// How long the server lets a transaction be open, as it is set now on the member that is asked. `None`: it does not say, for
/// want of a privilege mostly.
pub(crate) async fn transaction_life(client: &Client) -> Option<Duration> {
    let command = doc! { "getParameter": 1, LIFE_PARAMETER: 1 };
    let answer = client.database("admin").run_command(command).await.ok()?;
    Some(Duration::from_secs(long_opt(&answer, LIFE_PARAMETER)?.unsigned_abs()))
}

const LIFE_PARAMETER: &str = "transactionLifetimeLimitSeconds";

/// Refuses what would lose messages, or could not work.
pub(crate) fn check(hello: &Document) -> Result<()> {
    refuse_router(hello)?;
    if text_opt(hello, "setName").is_none() {
        return unsupported(
            "this MongoDB is a standalone server, which has neither transactions nor change streams; start it with \
             `mongod --replSet rs0` and run `rs.initiate()` on it once, a replica set of one member will do; or let its \
             documents carry their mail (the embedded outbox) into a store of another kind",
        );
    }
    if is_older_than(hello, WIRE_MIN) {
        return unsupported("this MongoDB is too old for an outbox that keeps its order; use 6.0 or later");
    }
    Ok(())
}

/// The embedded outbox needs no transactions, and so takes a standalone server too.
pub(crate) fn check_embedded(hello: &Document) -> Result<()> {
    refuse_router(hello)?;
    if is_older_than(hello, WIRE_MIN_EMBEDDED) {
        return unsupported("this MongoDB is too old for documents that carry their mail; use 4.4 or later");
    }
    Ok(())
}

fn refuse_router(hello: &Document) -> Result<()> {
    if text_opt(hello, "msg") == Some("isdbgrid") {
        return unsupported(
            "this is the router of a sharded cluster, on which the order of messages is not proved; connect to a replica set",
        );
    }
    Ok(())
}

fn is_older_than(hello: &Document, wire: i64) -> bool {
    long_opt(hello, "maxWireVersion").is_none_or(|version| version < wire)
}

fn unsupported(what: &'static str) -> Result<()> {
    Err(Error::new(ErrorKind::Unsupported, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_that_keep_the_promises_are_taken() {
        check(&doc! { "setName": "rs0", "maxWireVersion": 17 }).unwrap();
        let refused = |hello: Document| check(&hello).unwrap_err();
        let standalone = refused(doc! { "maxWireVersion": 21 });
        assert_eq!(standalone.kind(), ErrorKind::Unsupported);
        assert!(standalone.to_string().contains("--replSet") && standalone.to_string().contains("rs.initiate()"));
        assert!(refused(doc! { "setName": "rs0", "maxWireVersion": 13 }).to_string().contains("6.0"));
        assert!(refused(doc! { "msg": "isdbgrid", "maxWireVersion": 21 }).to_string().contains("sharded"));
        check_embedded(&doc! { "maxWireVersion": 9 }).unwrap();
        assert!(check_embedded(&doc! { "maxWireVersion": 8 }).unwrap_err().to_string().contains("4.4"));
        assert!(check_embedded(&doc! { "msg": "isdbgrid", "maxWireVersion": 21 }).is_err());
    }
}
