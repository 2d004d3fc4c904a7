//! Wake-up: telling a waiting relay that something may have been committed.
//!
//! Two sources end in one signal. In the same process the application calls [`Waker::wake`] after its commit. Between
//! processes a [`Notifier`] announces commits by `NOTIFY` from a connection of its own, many commits in one; a relay that
//! waits listens on another connection of its own. Nothing is announced inside of the application's transaction: that
//! would take a lock of the whole cluster at its commit, and cost producers three quarters of their rate. All of it is a
//! hint; the relay polls besides, so a lost connection or a pooler in between costs latency and nothing else.
//!
//! What stands between may keep a connection alive and pass nothing on. So an announcement is not waited for for ever, and
//! whoever listens asks for an answer now and then: rarely, for an idle node is to cost next to nothing.
//!
//! A hint counts from the call that asks for it: ask before you read, wait after, and a commit in between is not missed.

use std::{
    future::poll_fn,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use postrider_core::Result;
use tokio::sync::{Notify, watch};
use tokio_postgres::{AsyncMessage, types::Type};

use crate::{
    access::Access,
    db::{ANSWER_PATIENCE, in_time},
    dialect::Postgres,
    error::{Fault, Work},
};

/// At most one announcement in this time.
const NOTIFY_EVERY: Duration = Duration::from_millis(1);

/// At most one in this time, when commits come one upon the other: a relay gains more from longer pages than from early ones
/// then, and what it takes is taken from producers.
const NOTIFY_EVERY_MAX: Duration = Duration::from_millis(20);

/// Commits per second from which on announcements become rarer, and from which on they are as rare as they get.
const BUSY: std::ops::Range<f64> = 2_250.0..3_250.0;

/// A hint need not survive a crash, so its commit does not wait for the disk. For this transaction alone, and not prepared:
/// where a pooler stands between, the next one on the same connection may be somebody else's, and the next one here may be on
/// another.
const NOTIFY: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')";

/// How often whoever listens asks whether the server is still there.
const PROBE_EVERY: Duration = Duration::from_secs(30);

/// How often it looks whether it is time to, and whether anybody still waits for hints.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long to wait before a lost connection is tried again, at most.
const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// Wakes the relays of this process. Cheap to clone, and to call: after each commit that enqueued something.
#[derive(Clone, Debug)]
pub struct Waker {
    /// When something was last said to be committed.
    changes: Arc<watch::Sender<Instant>>,
    listening: Arc<AtomicBool>,
}

impl Waker {
    pub(crate) fn new() -> Self {
        Self { changes: Arc::new(watch::channel(Instant::now()).0), listening: Arc::default() }
    }

    /// Says that something may have been committed. Never blocks and never fails.
    pub fn wake(&self) {
        wake(&self.changes);
    }

    /// A subscription to what happens from now on. Any number may wait.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Instant> {
        self.changes.subscribe()
    }

    /// What is asked from here on finds everything that has been announced so far.
    pub(crate) fn hinted_at(&self) -> Instant {
        *self.changes.borrow()
    }

    /// Starts to listen for other processes, once. It ends when the last handle on the signal is gone.
    pub(crate) fn listen(&self, access: &Access, dialect: &Postgres) {
        if !self.listening.swap(true, Ordering::SeqCst) {
            tokio::spawn(listen(access.clone(), dialect.clone(), Arc::downgrade(&self.changes)));
        }
    }
}

fn wake(changes: &watch::Sender<Instant>) {
    changes.send_modify(|hinted_at| *hinted_at = Instant::now());
}

/// How long to wait before a lost connection is tried again: longer and longer, until one has worked.
struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(100);

    fn new() -> Self {
        Self(Self::FIRST)
    }

    /// The pause behind a connection, by whether it has worked before it was lost.
    fn after(&mut self, worked: bool) -> Duration {
        if worked {
            self.0 = Self::FIRST;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(RECONNECT_MAX);
        pause
    }
}

/// Ends when nobody can wait any more.
async fn listen(access: Access, dialect: Postgres, changes: Weak<watch::Sender<Instant>>) {
    let (mut pause, mut lost) = (Pause::new(), false);
    while changes.strong_count() > 0 {
        let mut worked = false;
        // What was wrong with it is of no interest: the relay polls, and the next connection may be better.
        let _ = listen_once(&access, &dialect, &changes, lost, &mut worked).await;
        lost |= worked;
        tokio::time::sleep(pause.after(worked)).await;
    }
}

/// Until the connection is lost, or the server does not answer on it. `lost`: one was before, so something may have been
/// announced that nobody heard.
async fn listen_once(
    access: &Access,
    dialect: &Postgres,
    changes: &Weak<watch::Sender<Instant>>,
    lost: bool,
    worked: &mut bool,
) -> Work<()> {
    let (client, mut connection) = access.connect().await?;
    // Said once more, it changes nothing: that is the question whether the server is there.
    let sql = format!("LISTEN \"{}\"", dialect.channel());
    let (mut asking, mut probe) = (Box::pin(client.batch_execute(&sql)), Probe::asked(Instant::now()));
    let mut beat = tokio::time::interval(LOOK_EVERY);
    // Ends with the connection, with an error, or when nobody can wait any more.
    loop {
        let is_news = tokio::select! {
            message = poll_fn(|context| connection.poll_message(context)) => match message {
                Some(Ok(message)) => matches!(message, AsyncMessage::Notification(_)),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            done = &mut asking, if probe.is_open => {
                done?;
                probe.is_open = false;
                let is_first = !std::mem::replace(worked, true);
                is_first && lost
            }
            _ = beat.tick() => {
                match probe.next(Instant::now()) {
                    Next::Wait => {}
                    Next::Ask => {
                        (asking, probe) = (Box::pin(client.batch_execute(&sql)), Probe::asked(Instant::now()));
                    }
                    Next::GiveUp => return Err(Fault::Silent),
                }
                false
            }
        };
        let Some(changes) = changes.upgrade() else { return Ok(()) };
        if is_news {
            wake(&changes);
        }
    }
}

/// The last question to the server.
struct Probe {
    asked_at: Instant,
    /// It has no answer yet.
    is_open: bool,
}

/// What whoever listens does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Ask,
    GiveUp,
}

impl Probe {
    fn asked(now: Instant) -> Self {
        Self { asked_at: now, is_open: true }
    }

    fn next(&self, now: Instant) -> Next {
        let since = now.duration_since(self.asked_at);
        match self.is_open {
            true if since >= ANSWER_PATIENCE => Next::GiveUp,
            false if since >= PROBE_EVERY => Next::Ask,
            _ => Next::Wait,
        }
    }
}

/// Announces commits to the relays of other processes: many commits in one `NOTIFY`, at most one every few milliseconds,
/// from a connection of its own.
///
/// ```no_run
/// # async fn example() -> postrider_core::Result<()> {
/// use postrider_store_postgres::{Notifier, Postgres};
/// let notifier = Notifier::connect("postgres://localhost/shop", &Postgres::default())?;
/// // … after each commit that enqueued something:
/// notifier.notify();
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Notifier(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    commits: AtomicU32,
    some: Notify,
}

impl Notifier {
    /// Connects in the background; a server that cannot be reached is tried again and costs nobody anything but latency.
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If the URL is malformed, or the certificates that it names cannot be read.
    pub fn connect(url: &str, dialect: &Postgres) -> Result<Self> {
        Ok(Self::start(Access::parse(url)?, dialect))
    }

    pub(crate) fn start(access: Access, dialect: &Postgres) -> Self {
        let asked = Arc::<Asked>::default();
        tokio::spawn(announce(access, dialect.channel(), Arc::downgrade(&asked)));
        Self(asked)
    }

    /// Asks for an announcement. Never blocks and never fails.
    pub fn notify(&self) {
        self.0.commits.fetch_add(1, Ordering::Relaxed);
        self.0.some.notify_one();
    }
}

/// Ends when the last handle is gone.
async fn announce(access: Access, channel: String, asked: Weak<Asked>) {
    let mut pause = Pause::new();
    while asked.strong_count() > 0 {
        let mut worked = false;
        // As with listening.
        let _ = announce_on(&access, &channel, &asked, &mut worked).await;
        tokio::time::sleep(pause.after(worked)).await;
    }
}

/// Until the connection is lost, the server does not answer on it, or the last handle is gone.
async fn announce_on(access: &Access, channel: &str, asked: &Weak<Asked>, worked: &mut bool) -> Work<()> {
    let (client, _connection) = access.driven().await?;
    let (mut rate, mut announced_at) = (0.0, Instant::now());
    while !client.is_closed() {
        let Some(asked) = asked.upgrade() else { return Ok(()) };
        let waited = tokio::time::timeout(Duration::from_secs(5), asked.some.notified()).await;
        let commits = asked.commits.swap(0, Ordering::Relaxed);
        let since = std::mem::replace(&mut announced_at, Instant::now()).elapsed();
        rate = smoothed(rate, commits, since);
        if waited.is_ok() {
            let announcing = async { Ok(client.execute_typed(NOTIFY, &[(&channel, Type::TEXT)]).await?) };
            let announced = in_time(Some(ANSWER_PATIENCE), announcing).await;
            if announced.is_err() {
                // It is announced on the next connection.
                asked.some.notify_one();
            }
            announced?;
            *worked = true;
            drop(asked);
            tokio::time::sleep(pause_at(rate)).await;
        }
    }
    Ok(())
}

/// Commits per second over the last tenth of a second or so.
fn smoothed(rate: f64, commits: u32, since: Duration) -> f64 {
    let seconds = since.as_secs_f64().max(1e-6);
    let weight = (seconds / 0.1).min(1.0);
    rate + weight * (f64::from(commits) / seconds - rate)
}

/// How long after an announcement, at so many commits per second.
fn pause_at(rate: f64) -> Duration {
    let share = ((rate - BUSY.start) / (BUSY.end - BUSY.start)).clamp(0.0, 1.0);
    NOTIFY_EVERY + (NOTIFY_EVERY_MAX - NOTIFY_EVERY).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pause that a steady rate of commits settles at, if a sleep takes a millisecond longer than it should.
    fn settled_at(commits_per_second: f64) -> Duration {
        let (mut rate, mut pause) = (0.0, NOTIFY_EVERY);
        for _ in 0..1000 {
            let since = pause + Duration::from_millis(1);
            rate = smoothed(rate, (commits_per_second * since.as_secs_f64()).round() as u32, since);
            pause = pause_at(rate);
        }
        pause
    }

    #[test]
    fn few_commits_are_announced_soon_and_many_together() {
        assert_eq!(settled_at(10.0), NOTIFY_EVERY);
        assert_eq!(settled_at(2_000.0), NOTIFY_EVERY);
        assert_eq!(settled_at(10_000.0), NOTIFY_EVERY_MAX);
    }

    #[test]
    fn a_connection_that_has_worked_is_tried_again_at_once() {
        let mut pause = Pause::new();
        let failing: Vec<u128> = (0..9).map(|_| pause.after(false).as_millis()).collect();
        assert_eq!(failing, [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!([pause.after(true), pause.after(true)], [Pause::FIRST; 2], "however often it is lost");
        assert_eq!(pause.after(false), Pause::FIRST * 2);
    }

    #[test]
    fn a_server_that_is_quiet_is_asked_now_and_then_and_one_that_does_not_answer_is_given_up() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let mut probe = Probe::asked(began);
        assert_eq!(probe.next(began + ANSWER_PATIENCE - second), Next::Wait);
        assert_eq!(probe.next(began + ANSWER_PATIENCE), Next::GiveUp);
        probe.is_open = false;
        assert_eq!(probe.next(began + PROBE_EVERY - second), Next::Wait, "it has answered");
        assert_eq!(probe.next(began + PROBE_EVERY), Next::Ask);
    }

    #[test]
    fn a_burst_after_a_silence_is_announced_soon() {
        assert_eq!(pause_at(smoothed(0.0, 50, Duration::from_secs(2))), NOTIFY_EVERY);
    }
}
