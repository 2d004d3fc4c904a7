//! The reader's session: one connection of its own, never pooled, straight to the primary.
//!
//! A snapshot that was taken here is worth something only as long as this connection lives: a server that crashes may hand
//! out the same transaction ids again, and a connection is what a crash surely breaks. The session therefore has a number
//! and holds an advisory lock on it; every cursor that was made here carries the number, and a cursor whose session is
//! over counts only if it is the one that was persisted.
//!
//! A session that does not answer is over as well ([`crate::silence`]): what stands between may keep the connection alive long
//! after the server has gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures_util::{TryStreamExt, future::try_join};
use postrider_core::{BoxFuture, Error, ErrorKind};
use tokio_postgres::{Client, Row, Statement, types::ToSql};
use uuid::Uuid;

use crate::{
    access::{Access, Driven},
    cursor::Identity,
    db::Parameters,
    dialect::{LEAVES, Postgres},
    error::{Fault, Work},
    observe,
    planted::Plant,
    pooler,
    rounds::{Filter, Observed, Rebase, Watched, Window},
    set_back,
    silence::Silence,
    snapshot::Snapshot,
    together::{Seat, Together},
};

/// Guards the plan of a leaf that has no statistics: one range of its index, and no planning per page. And no limits of time
/// but our own, whatever the database or the role has for a default: a page that was cancelled is asked for again from the same
/// place, and the end of the session costs every lane its lease. The last two are not known to every version.
const SETTINGS: &str = "
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET plan_cache_mode = force_generic_plan;
SET default_transaction_isolation = 'read committed';
SET statement_timeout = 0;
SELECT set_config('transaction_timeout', '0', false) WHERE current_setting('transaction_timeout', true) IS NOT NULL;
SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('idle_session_timeout', true) IS NOT NULL";

/// What the bounds of the reader rest on.
pub(crate) const SEQUENCE: &str = "
SELECT seqincrement = 1 AND seqcache = 1 AND NOT seqcycle
  FROM pg_sequence
 WHERE seqrelid = '{seq}'::regclass";

/// One range of the leaf's only index. Snapshots are bound as such: as text they would be parsed once per row. The time is
/// told only where a record needs it.
fn read(leaf: usize) -> String {
    format!(
        "
SELECT seq, topic, id, key, enqueued_at, name, deliver_at, expires_at, attempts_max, headers, payload,
       CASE WHEN deliver_at IS NULL AND expires_at IS NULL THEN NULL ELSE statement_timestamp() END
  FROM {{log_{leaf}}}
 WHERE seq > $1 AND seq <= $2
   AND NOT pg_visible_in_snapshot(tx, $3) AND pg_visible_in_snapshot(tx, $4)
   AND ($5::text[] IS NULL OR topic = ANY ($5))
 ORDER BY seq
 LIMIT $6"
    )
}

/// The same in a rebase: everything visible that was not settled where other ids counted. Old snapshots are asked of old
/// rows alone, for new ones have numbers above `$4`. Rare, so it is prepared when it is needed.
fn rebase(leaf: usize) -> String {
    format!(
        "
SELECT seq, topic, id, key, enqueued_at, name, deliver_at, expires_at, attempts_max, headers, payload,
       CASE WHEN deliver_at IS NULL AND expires_at IS NULL THEN NULL ELSE statement_timestamp() END
  FROM {{log_{leaf}}}
 WHERE seq > $1 AND seq <= $2
   AND (seq > $4 OR NOT (pg_visible_in_snapshot(tx, $3) OR (seq <= $5 AND pg_visible_in_snapshot(tx, $6))))
   AND ($7::text[] IS NULL OR topic = ANY ($7))
 ORDER BY seq
 LIMIT $8"
    )
}

/// The lowest and the highest number in the log, and how many leaves have their index. A restore makes the indexes when it
/// has loaded all rows.
const STORED: &str = "
SELECT min(leaf.lowest), max(leaf.highest),
       (SELECT count(DISTINCT leaf.inhrelid)
          FROM pg_inherits AS leaf
          JOIN pg_index AS index ON index.indrelid = leaf.inhrelid AND index.indisunique AND index.indisvalid
         WHERE leaf.inhparent = '{log}'::regclass)
  FROM (VALUES ((SELECT min(seq) FROM {log_0}), (SELECT max(seq) FROM {log_0})),
               ((SELECT min(seq) FROM {log_1}), (SELECT max(seq) FROM {log_1})),
               ((SELECT min(seq) FROM {log_2}), (SELECT max(seq) FROM {log_2})),
               ((SELECT min(seq) FROM {log_3}), (SELECT max(seq) FROM {log_3})),
               ((SELECT min(seq) FROM {log_4}), (SELECT max(seq) FROM {log_4})),
               ((SELECT min(seq) FROM {log_5}), (SELECT max(seq) FROM {log_5})),
               ((SELECT min(seq) FROM {log_6}), (SELECT max(seq) FROM {log_6})),
               ((SELECT min(seq) FROM {log_7}), (SELECT max(seq) FROM {log_7}))) AS leaf (lowest, highest)";

/// Who holds a transaction id, and who holds the sequence. Matched by virtual transaction, which a prepared one has too.
const LOCKS: &str = "
SELECT virtualtransaction, transactionid::text::bigint
  FROM pg_locks
 WHERE (locktype = 'transactionid' AND mode = 'ExclusiveLock')
    OR (locktype = 'relation' AND relation = '{seq}'::regclass AND mode <> 'AccessShareLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";

const NEWEST: &str = "
SELECT epoch, cursor
  FROM {checkpoint}
 WHERE route = $1 AND number = $2
 ORDER BY n DESC
 LIMIT 1";

/// How much a page may hold. How many rows are asked for goes by what rows weighed so far, and the next ones may weigh a
/// thousand times as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) rows: usize,
    /// The row that exceeds them is the last one.
    pub(crate) bytes: usize,
}

/// What a page holds.
pub(crate) struct Found {
    pub(crate) rows: Vec<Row>,
    /// Whether it ends where it does because of its bytes.
    pub(crate) cut: bool,
    /// When it was complete. What it says of the time was true then.
    pub(crate) at: Instant,
}

/// A live session.
pub(crate) struct Session {
    client: Client,
    connection: Driven,
    silence: Silence,
    dialect: Postgres,
    plant: Plant,
    pub(crate) number: u64,
    pub(crate) identity: Identity,
    read: Vec<Statement>,
    snapshot: Statement,
    look: Statement,
    last: Statement,
    next: Statement,
    locks: Statement,
    newest: Statement,
    /// Whether the last look found something.
    busy: AtomicBool,
    /// Lanes that found nothing, and will look again at about the same moment.
    looks: Together<(), Arc<Seen>>,
}

/// What one look sees: a snapshot, and behind it the last number.
type Seen = (Snapshot, i64);

/// The next look of a lane that found nothing.
pub(crate) type NextLook = Seat<(), Arc<Seen>>;

impl Session {
    /// Connects, and refuses what a reader must not be connected to.
    pub(crate) async fn connect(access: &Access, dialect: &Postgres, plant: Plant) -> Work<Arc<Self>> {
        let (client, connection) = access.driven().await?;
        // First of all: what follows would be set for whoever gets the server's session next.
        pooler::refuse(&client, access).await?;
        client.batch_execute(SETTINGS).await?;
        let prepare = async |sql: &str| client.prepare(&dialect.render(sql)).await;
        let snapshot = prepare(observe::SNAPSHOT).await?;
        refuse_standby(client.query_one(&snapshot, &[]).await?.try_get(1)?)?;
        let row = client.query_one(&dialect.render(observe::IDENTITY), &[]).await?;
        let identity = Identity { system: row.try_get::<_, i64>(0)?.cast_unsigned(), table: row.try_get(1)? };
        let is_right: bool = client.query_one(&dialect.render(SEQUENCE), &[]).await?.try_get(0)?;
        if !is_right && !plant.is(Plant::SequenceCache) {
            return Err(Error::new(
                ErrorKind::Schema,
                "the log's sequence was altered; it needs INCREMENT 1, CACHE 1 and NO CYCLE",
            )
            .with("sequence", dialect.render("{seq}"))
            .into());
        }
        let number = Uuid::now_v7().as_u64_pair();
        let number = (number.0.rotate_left(32) ^ number.1) | 1;
        client.execute("SELECT pg_advisory_lock($1)", &[&number.cast_signed()]).await?;
        let mut pages = Vec::new();
        for leaf in 0..LEAVES {
            pages.push(prepare(&read(leaf)).await?);
        }
        let look = prepare(observe::LOOK).await?;
        let (last, next) = (prepare(observe::LAST).await?, prepare(observe::NEXT).await?);
        let busy = AtomicBool::new(false);
        let (locks, newest) = (prepare(LOCKS).await?, prepare(NEWEST).await?);
        let dialect = dialect.clone();
        Ok(Arc::new(Self {
            client,
            connection,
            silence: Silence::new(),
            dialect,
            plant,
            number,
            identity,
            read: pages,
            snapshot,
            look,
            last,
            next,
            locks,
            newest,
            busy,
            looks: Together::default(),
        }))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.client.is_closed() || self.silence.is_over()
    }

    /// Waits for what was asked. If there is no answer, everybody's questions end with the connection.
    async fn answer<T>(&self, asking: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Work<T> {
        let answer = self.silence.answer(async { asking.await.map_err(Fault::from) }).await;
        self.end_if_silent(&answer);
        answer
    }

    fn end_if_silent<T>(&self, answer: &Work<T>) {
        if answer.as_ref().is_err_and(Fault::is_silence) {
            self.connection.end();
        }
    }

    async fn one(&self, statement: &Statement, parameters: Parameters<'_>) -> Work<Row> {
        self.answer(self.client.query_one(statement, parameters)).await
    }

    /// What opens a round, in the order that it must have: the snapshot, then the last number, then the next id. `None`:
    /// for this snapshot and last number there is nothing to do.
    ///
    /// The first two are one statement, which takes its snapshot before it calls anything; the third is another, behind it.
    /// Where the last look found something, the next one probably will, and both are sent together. Else the first comes
    /// alone, for an idle reader needs no more, and serves all lanes that look at about the same moment. `next_look`: what this
    /// lane has seen since is nothing newer than what it was given for. `hinted_at`: what was announced until then is seen.
    pub(crate) async fn observe(
        self: &Arc<Self>,
        next_look: Option<NextLook>,
        hinted_at: Instant,
        is_nothing: impl Fn(&Snapshot, i64) -> bool,
    ) -> Work<Option<Observed>> {
        if self.plant != Plant::None {
            return self.observe_wrongly().await.map(Some);
        }
        let (seen, next) = if self.busy.load(Ordering::Relaxed) {
            let (seen, next) = try_join(self.look(), self.one(&self.next, &[])).await?;
            (Arc::new(seen), Some(next))
        } else {
            let look = |lanes: Vec<()>| -> BoxFuture<'static, Work<_>> {
                let session = Arc::clone(self);
                Box::pin(async move {
                    let seen = Arc::new(session.look().await?);
                    Ok(lanes.iter().map(|()| Arc::clone(&seen)).collect())
                })
            };
            let next_look = next_look.unwrap_or_else(|| self.next_look());
            (next_look.ask(Some(hinted_at), look).await?, None)
        };
        let nothing = is_nothing(&seen.0, seen.1);
        self.busy.store(!nothing, Ordering::Relaxed);
        if nothing {
            return Ok(None);
        }
        let next = match next {
            Some(next) => next,
            None => self.one(&self.next, &[]).await?,
        };
        let (target, last) = Arc::unwrap_or_clone(seen);
        Ok(Some(Observed { target, last, next: low_half(next.try_get(0)?) }))
    }

    /// For a lane that knows nothing newer than what is seen from now on.
    pub(crate) fn next_look(&self) -> NextLook {
        self.looks.seat(())
    }

    async fn look(&self) -> Work<Seen> {
        let row = self.one(&self.look, &[]).await?;
        refuse_standby(row.try_get(1)?)?;
        Ok((row.try_get(0)?, row.try_get(2)?))
    }

    /// As [`Self::observe`], with a planted mistake. What lies between two statements is a little longer than usual, so that a
    /// mistake shows itself soon.
    async fn observe_wrongly(&self) -> Work<Observed> {
        let pause = || tokio::time::sleep(std::time::Duration::from_millis(8));
        let early = self.one(&self.last, &[]).await?;
        if self.plant.is(Plant::LastBeforeTarget) {
            pause().await;
        }
        let target = self.target().await?;
        let early_next = self.one(&self.next, &[]).await?;
        if self.plant.is(Plant::NextBeforeLast) {
            pause().await;
        }
        let mut observed = self.observe_behind(target).await?;
        match self.plant {
            Plant::LastBeforeTarget => observed.last = early.try_get(0)?,
            Plant::NextBeforeLast => observed.next = low_half(early_next.try_get(0)?),
            Plant::XmaxIsNotYetBegun => observed.next = low_half(observed.target.xmax().cast_signed()),
            Plant::BelowXmin => observed.target = observed.target.below_xmin(),
            _ => {}
        }
        Ok(observed)
    }

    async fn target(&self) -> Work<Snapshot> {
        let row = self.one(&self.snapshot, &[]).await?;
        refuse_standby(row.try_get(1)?)?;
        Ok(row.try_get(0)?)
    }

    async fn observe_behind(&self, target: Snapshot) -> Work<Observed> {
        let (last, next) = try_join(self.one(&self.last, &[]), self.one(&self.next, &[])).await?;
        Ok(Observed { target, last: last.try_get(0)?, next: low_half(next.try_get(0)?) })
    }

    /// What a rebase is made from, in the order that it must have.
    pub(crate) async fn observe_for_rebase(&self) -> Work<Rebase> {
        let target = self.target().await?;
        let row = self.answer(self.client.query_one(&self.dialect.render(STORED), &[])).await?;
        if row.try_get::<_, i64>(2)? < i64::try_from(LEAVES).expect("few") {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "a part of the log has no unique index: a restore is under way, or was left half done",
            )
            .with("log", self.dialect.render("{log}"))
            .into());
        }
        let stored = row.try_get::<_, Option<i64>>(0)?.zip(row.try_get(1)?);
        Ok(Rebase { observed: self.observe_behind(target).await?, stored })
    }

    /// For a reader that has read further than this number, the last one that was drawn: names what puts it right, for all
    /// lanes and for what nobody has read yet.
    pub(crate) async fn went_back(&self, last: i64) -> Work<Error> {
        let lanes = self.answer(self.client.query(&self.dialect.render(set_back::LANES), &[])).await?;
        let stored = self.answer(self.client.query_one(&self.dialect.render(set_back::HIGHEST), &[])).await?;
        let highest = set_back::highest(stored.try_get(0)?, &set_back::lanes(&lanes)?);
        Ok(set_back::error(&self.dialect, last, highest))
    }

    /// What raises the bounds of stragglers, in the order that it must have.
    pub(crate) async fn watch(&self) -> Work<Watched> {
        let last = self.one(&self.last, &[]).await?.try_get(0)?;
        let (mut holders_of_ids, mut holders_of_sequence) = (BTreeMap::new(), BTreeSet::new());
        for row in self.answer(self.client.query(&self.locks, &[])).await? {
            let holder: String = row.try_get(0)?;
            match row.try_get::<_, Option<i64>>(1)? {
                Some(xid) => drop(holders_of_ids.insert(low_half(xid), holder)),
                None => drop(holders_of_sequence.insert(holder)),
            }
        }
        let still = self.one(&self.snapshot, &[]).await?.try_get(0)?;
        Ok(Watched { last, holders_of_ids, holders_of_sequence, still })
    }

    /// Rows of one leaf, in order.
    pub(crate) async fn page(
        &self,
        window: Window,
        filter: Filter<'_>,
        topics: &Option<Vec<String>>,
        size: Size,
    ) -> Work<Found> {
        let Window { leaf, after, end } = &window;
        let limit = i64::try_from(size.rows).unwrap_or(i64::MAX);
        match filter {
            Filter::Between { base, target } => {
                let parameters: [&(dyn ToSql + Sync); 6] = [after, end, base, target, topics, &limit];
                self.gather(&self.read[*leaf], &parameters, size).await
            }
            Filter::Rebase { base, before } => {
                let nothing = (Snapshot::empty(), 0);
                let (target, pos) = before.target.as_ref().unwrap_or(&nothing);
                let statement = self.answer(self.client.prepare(&self.dialect.render(&rebase(*leaf)))).await?;
                let parameters: [&(dyn ToSql + Sync); 8] = [after, end, base, &before.hi, pos, target, topics, &limit];
                self.gather(&statement, &parameters, size).await
            }
        }
    }

    /// Takes rows as they come, and no more once they are heavy enough: what is still on its way is read off the connection
    /// and dropped.
    async fn gather(&self, statement: &Statement, parameters: Parameters<'_>, size: Size) -> Work<Found> {
        let gathering = async {
            let mut answer = pin!(self.client.query_raw(statement, parameters.iter().copied()).await?);
            let (mut rows, mut bytes, mut cut) = (Vec::new(), 0, false);
            while let Some(row) = answer.try_next().await? {
                bytes += row.raw_size_bytes();
                rows.push(row);
                if bytes > size.bytes {
                    cut = true;
                    break;
                }
            }
            Ok::<_, Fault>(Found { rows, cut, at: Instant::now() })
        };
        let found = self.silence.page(gathering, |found| !found.cut).await;
        self.end_if_silent(&found);
        found
    }

    /// Epoch and cursor of a lane as they are persisted.
    pub(crate) async fn newest(&self, route: &str, number: u32) -> Work<Option<(u64, Vec<u8>)>> {
        let row = self.answer(self.client.query_opt(&self.newest, &[&route, &i64::from(number)])).await?;
        row.map(|row| Ok((row.try_get::<_, i64>(0)?.cast_unsigned(), row.try_get(1)?))).transpose()
    }
}

/// Snapshots of a standby do not list what is in progress: open transactions would count as settled.
fn refuse_standby(in_recovery: bool) -> Result<(), Error> {
    if in_recovery {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "this server is a standby; the log can be read on the primary only",
        ));
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
fn low_half(value: i64) -> u32 {
    value as u32
}
