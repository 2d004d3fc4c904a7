//! A pooler that gives the server's sessions out by transaction: the reader refuses to read through one, and the doctor names
//! it.
//!
//! What a reader has read counts for as long as its session lives, and the proof of that is a lock which the session holds.
//! Behind such a pooler the session is whoever's turn it is: a settlement may run on the very session that holds the lock and
//! take it for gone, and then the same messages are read and published again and again.

use postrider_core::{Error, ErrorKind};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{access::Access, error::Work};

const PID: &str = "SELECT pg_backend_pid()";

/// How often it is tried: others who use the pooler at the same time may hide it once.
const TRIES: u32 = 3;

/// Refuses a connection that is not one session of the server.
pub(crate) async fn refuse(client: &Client, access: &Access) -> Work<()> {
    if stands_between(client, access).await? {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a pooler in between gives the server's sessions out by transaction, and the log can be read through one session \
             only; give the relay the address of the server itself, or a pool in session mode",
        )
        .into());
    }
    Ok(())
}

/// Whether there is such a pooler between here and the server: it hands the session that was just put back to whoever comes
/// next. By simple queries: it may know nothing of statements that were prepared elsewhere.
pub(crate) async fn stands_between(client: &Client, access: &Access) -> Work<bool> {
    let (other, _connection) = access.driven().await?;
    for _ in 0..TRIES {
        let before = pid(client).await?;
        other.batch_execute("BEGIN").await?;
        let meanwhile = pid(&other).await?;
        let after = pid(client).await?;
        other.batch_execute("ROLLBACK").await?;
        if before == meanwhile || before != after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn pid(client: &Client) -> Work<Option<String>> {
    let answers = client.simple_query(PID).await?;
    Ok(answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}
