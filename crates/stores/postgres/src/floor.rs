//! Floors: how low a read of due rows has to begin.
//!
//! A row that has woken leaves an entry in the index of wake times, and while anybody holds an old snapshot nothing removes
//! it. A read that began at the low end would pass all of them every time, and grow slower for as long as the snapshot is
//! held. So a lane remembers below which time no row of its route wakes, and begins there.
//!
//! **Why nothing is passed over.** Whoever writes rows of a route has its lock, and writes no wake time that is earlier than
//! the moment at which it had it (see [`crate::parked`]). A look tries that lock and, if nobody has it, notes the time T: who
//! had it before is seen by every later look, and who has it later writes nothing below T. What the next look finds as the
//! route's first wake time, or T if that is earlier, is a floor.
//!
//! **Clocks are set back.** By less than [`MARGIN`], and the floor is lower by as much. By more, and the next look notices,
//! for the time that has passed here has not passed there; then it is repeated from the bottom. A floor is forgotten with the
//! lease, with the reader's session (a fail-over may bring rows back that were gone), and after [`LIFE`], come what may.

use std::time::{Duration, Instant};

use postrider_core::time::Timestamp;

/// How far a floor stays below what is known, and how much time may be missing there.
const MARGIN: Duration = Duration::from_secs(2);

/// How long one look builds upon the other.
const LIFE: Duration = Duration::from_mins(10);

/// Lower than every wake time.
const BOTTOM: Timestamp = Timestamp::from_micros(i64::MIN);

/// What a lane knows of its route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    session: u64,
    /// No row wakes earlier.
    at: Timestamp,
    /// When nobody had the route's lock, by the database's clock.
    free_at: Timestamp,
    /// A moment before that, by ours.
    asked_at: Instant,
    began_at: Instant,
}

/// What one look has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// The route's first wake time that is not below the floor.
    pub(crate) first: Option<Timestamp>,
    /// When nobody had the route's lock. `None`: somebody had it.
    pub(crate) free_at: Option<Timestamp>,
    /// The database's time.
    pub(crate) now: Timestamp,
    /// Moments before and after the look, by our clock.
    pub(crate) asked_at: Instant,
    pub(crate) answered_at: Instant,
}

impl Floor {
    /// Whether it may be built upon.
    pub(crate) fn is_of(&self, session: Option<u64>, now: Instant) -> bool {
        session == Some(self.session) && now.duration_since(self.began_at) < LIFE
    }

    /// Where to begin.
    pub(crate) fn start(floor: Option<&Self>) -> Timestamp {
        floor.map_or(BOTTOM, |floor| floor.at)
    }

    pub(crate) fn is_at_bottom(&self) -> bool {
        self.at == BOTTOM
    }

    /// Whether a look from here has seen everything: the database's clock was not set back meanwhile.
    pub(crate) fn holds(&self, look: &Look) -> bool {
        look.now.saturating_add(MARGIN) >= self.free_at.saturating_add(look.answered_at.duration_since(self.asked_at))
    }

    /// What is known after a look that began at the floor `known`, or at the bottom.
    pub(crate) fn after(known: Option<&Self>, session: Option<u64>, look: &Look) -> Option<Self> {
        let Look { first, free_at, now, asked_at, .. } = *look;
        let Some(known) = known else {
            let (session, free_at) = session.zip(free_at)?;
            return Some(Self { session, at: BOTTOM, free_at, asked_at, began_at: asked_at });
        };
        let sure = known.free_at.min(now).saturating_sub(MARGIN);
        let at = first.map_or(sure, |first| first.min(sure));
        Some(match free_at {
            Some(free_at) => Self { at, free_at, asked_at, ..*known },
            None => Self { at, ..*known },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: Option<u64> = Some(7);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0).saturating_add(SECOND * u32::try_from(seconds).unwrap())
    }

    /// A look at this second by both clocks, unless they differ.
    struct Looks {
        began: Instant,
        set_back: Duration,
    }

    impl Looks {
        fn new() -> Self {
            Self { began: Instant::now(), set_back: Duration::ZERO }
        }

        fn at(&self, second: u64, first: Option<u64>, is_free: bool) -> Look {
            let now = at(second).saturating_sub(self.set_back);
            let moment = self.began + SECOND * u32::try_from(second).unwrap();
            let first = first.map(at);
            Look { first, free_at: is_free.then_some(now), now, asked_at: moment, answered_at: moment }
        }
    }

    fn start(floor: Option<Floor>) -> Timestamp {
        Floor::start(floor.as_ref())
    }

    #[test]
    fn a_floor_is_what_two_looks_know_together() {
        let looks = Looks::new();
        let one = Floor::after(None, SESSION, &looks.at(100, Some(40), true));
        assert_eq!(start(one), BOTTOM, "who had the lock before the first look may not have been seen by it");
        let two = Floor::after(one.as_ref(), SESSION, &looks.at(110, None, true));
        assert_eq!(start(two), at(98), "nobody writes below what the clock showed when the lock was free");
        let three = Floor::after(two.as_ref(), SESSION, &looks.at(120, Some(101), true));
        assert_eq!(start(three), at(101), "a row that waits is not passed over");
        let four = Floor::after(three.as_ref(), SESSION, &looks.at(130, Some(500), true));
        assert_eq!(start(four), at(118));
    }

    #[test]
    fn a_lock_that_somebody_has_proves_nothing() {
        let looks = Looks::new();
        assert!(Floor::after(None, SESSION, &looks.at(100, None, false)).is_none());
        let one = Floor::after(None, SESSION, &looks.at(100, None, true));
        let two = Floor::after(one.as_ref(), SESSION, &looks.at(150, None, false));
        let three = Floor::after(two.as_ref(), SESSION, &looks.at(160, None, false));
        assert_eq!((start(two), start(three)), (at(98), at(98)), "its holder may have had it since then");
    }

    #[test]
    fn a_clock_that_was_set_back_is_noticed() {
        let mut looks = Looks::new();
        let one = Floor::after(None, SESSION, &looks.at(100, None, true)).unwrap();
        assert!(one.holds(&looks.at(400, None, true)));
        looks.set_back = SECOND;
        let late = looks.at(110, None, true);
        assert!(one.holds(&late), "a little is what the margin is for");
        let two = Floor::after(Some(&one), SESSION, &late).unwrap();
        looks.set_back = SECOND * 3;
        assert!(two.holds(&looks.at(111, None, true)), "and a little more");
        assert!(Floor::start(Some(&two)) <= looks.at(110, None, true).now, "who writes then is not below");
        looks.set_back = SECOND * 4;
        assert!(!two.holds(&looks.at(600, None, true)), "however long ago that was");
    }

    #[test]
    fn a_floor_ends_with_the_session_and_with_time() {
        let looks = Looks::new();
        let floor = Floor::after(None, SESSION, &looks.at(0, None, true)).unwrap();
        assert!(floor.is_of(SESSION, looks.began + LIFE - SECOND));
        assert!(!floor.is_of(SESSION, looks.began + LIFE));
        assert!(!floor.is_of(Some(8), looks.began) && !floor.is_of(None, looks.began));
        assert!(Floor::after(None, None, &looks.at(0, None, true)).is_none(), "who reads nothing remembers nothing");
    }
}
