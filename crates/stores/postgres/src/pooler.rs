//! A pooler that gives the server's sessions out by transaction: the reader refuses to read through one, and the doctor names
//! it.
//!
//! What a reader has read counts for as long as its session lives, and the proof of that is a lock which the session holds.
//! Behind such a pooler the session is whoever's turn it is: a settlement may run on the very session that holds the lock and
//! take it for gone, and then the same messages are read and published again and again.

use std::time::Duration;

use postrider_core::{Error, ErrorKind};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::{access::Access, error::Work};

const PID: &str = "SELECT pg_backend_pid()";

/// How often it is tried: others who use the pooler at the same time may hide it once.
const TRIES: u32 = 3;

/// Transactions of the other connection, each of them when the one before is over: what is sent together stays together.
const QUESTIONS: usize = 4;

/// How long the answers may take. A pool that has no session left lets whoever asks wait, perhaps for ever.
const PATIENCE: Duration = Duration::from_secs(5);

/// Refuses a connection that is not one session of the server.
pub(crate) async fn refuse(client: &Client, access: &Access) -> Work<()> {
    if stands_between(client, access).await? {
        return Err(refused().into());
    }
    Ok(())
}

/// What is said of it, also where it is noticed by statements that others have prepared.
pub(crate) fn refused() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a pooler in between gives the server's sessions out by transaction, and the log can be read through one session \
         only; give the relay the address of the server itself, or a pool in session mode",
    )
}

/// Whether there is such a pooler between here and the server. While this connection is idle, another one asks for its session
/// again and again. A pooler that prefers the session which was put back last gives it the one of this connection, and so does
/// one that has no other; one that lets its sessions take turns gives it several. By simple queries: it may know nothing of
/// statements that were prepared elsewhere.
///
/// Nobody keeps a session meanwhile, so a pool of one session is enough for an answer.
pub(crate) async fn stands_between(client: &Client, access: &Access) -> Work<bool> {
    let asking = async {
        let (other, _connection) = access.driven().await?;
        for _ in 0..TRIES {
            let before = pid(client).await?;
            let mut meanwhile = Vec::with_capacity(QUESTIONS);
            for _ in 0..QUESTIONS {
                meanwhile.push(pid(&other).await?);
            }
            let after = pid(client).await?;
            if is_shared(&before, &meanwhile, &after) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Unavailable,
            "two connections at once got no answer; if there is a pooler in between, it has too few sessions for a relay",
        )
        .into())
    })
}

/// Whether a connection and another one, which asked meanwhile, are not one session each.
fn is_shared<P: PartialEq>(before: &P, meanwhile: &[P], after: &P) -> bool {
    before != after || meanwhile.contains(before) || meanwhile.windows(2).any(|pair| pair[0] != pair[1])
}

async fn pid(client: &Client) -> Work<Option<String>> {
    let answers = client.simple_query(PID).await?;
    Ok(answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_shared_however_a_pooler_gives_them_out() {
        assert!(!is_shared(&1, &[2, 2, 2], &1), "one session each");
        assert!(is_shared(&1, &[1, 1, 1], &1), "the one that was put back last");
        assert!(is_shared(&1, &[2, 1, 2], &1), "two that take turns");
        assert!(is_shared(&1, &[2, 3, 4], &1), "many that take turns");
        assert!(is_shared(&1, &[2, 2, 2], &3), "others have taken it");
    }
}
