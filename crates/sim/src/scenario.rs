//! What a seed draws before its history begins: options of the engine, kinds of trouble, and how exact the checks can be.
//!
//! Windows are small and keys few, because that is where the rare mistakes live; and every seed has some kinds of trouble
//! rather than all of them, so that the checks which one kind would blur stay sharp in the others.

use std::sync::Arc;

use postrider::relay::OnDead;
use postrider_core::lease::Order;

use crate::{random::Random, world::Micros};

/// What a seed has drawn.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Until when there is trouble.
    pub trouble_until: Micros,
    /// Attempts before a message is dead.
    pub attempts_max: u32,
    /// Unknown outcomes that count as one attempt.
    pub unknown_max: u32,
    /// What becomes of a key whose head is dead.
    pub on_dead: OnDead,
    /// Messages of one key in one batch.
    pub run_max: u32,
    /// How long a publish may take.
    pub publish_timeout: Micros,
    /// Whether a lease can only be lost by not being renewed.
    pub leases_are_exact: bool,
    /// Whether no upheaval explains any number of duplicates.
    pub duplicates_are_bounded: bool,
    /// How many fail-overs there are.
    pub fail_overs: u64,
    /// How far clocks may be apart for times that were computed by one and judged by another.
    pub clock_slack: Micros,
    pub(crate) window: u32,
    pub(crate) page: u32,
    pub(crate) batch: u32,
    pub(crate) batches: u32,
    pub(crate) settle_every: u32,
    pub(crate) settle_after: Micros,
    pub(crate) due: (u32, u32),
    pub(crate) limits: (u32, u32),
    pub(crate) keys: u64,
    pub(crate) routes: Vec<(Arc<str>, &'static str)>,
    pub(crate) lanes: Vec<u32>,
    pub(crate) order: Order,
    pub(crate) transactions: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) outages: Vec<Outage>,
    pub(crate) drain_deadline: Micros,
    pub(crate) rate: Option<u32>,
    /// Whether some nodes do not know all topics of a route.
    pub(crate) files_differ: bool,
}

/// A while in which a route's destination takes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) route: usize,
    pub(crate) from: Micros,
    pub(crate) to: Micros,
    /// Half of the keys go elsewhere, where nothing is wrong.
    pub(crate) in_part: bool,
}

impl Scenario {
    /// Draws one.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let trouble_until = random.between(3_000_000, 8_000_000);
        let two_routes = random.chance(250);
        let mut routes: Vec<(Arc<str>, &'static str)> = vec![("main".into(), "**")];
        if two_routes {
            routes.push(("other".into(), "t.b"));
        }
        let order = if random.chance(60) { Order::Total } else { Order::Key };
        let first_lanes = if order == Order::Total || random.chance(650) { 1 } else { random.between(2, 3) };
        let mut lanes = vec![u32::try_from(first_lanes).expect("small")];
        if order == Order::Key && random.chance(80) {
            lanes.push(u32::try_from(random.between(1, 3)).expect("small"));
        }
        let fail_overs = u64::from(random.chance(80));
        let clock_jumps = if random.chance(150) { random.between(1, 3) } else { 0 };
        let outages = (0..random.below(3))
            .map(|_| {
                let from = random.below(trouble_until);
                let route = usize::try_from(random.below(routes.len() as u64)).expect("small");
                Outage { route, from, to: from + random.below(2_500_000), in_part: random.chance(400) }
            })
            .collect();
        let small = |random: &mut Random, low, high| u32::try_from(random.between(low, high)).expect("small");
        Self {
            trouble_until,
            attempts_max: small(random, 2, 4),
            unknown_max: small(random, 2, 4),
            on_dead: if random.chance(550) { OnDead::Hold } else { OnDead::Continue },
            run_max: small(random, 1, 3),
            publish_timeout: 800_000,
            leases_are_exact: fail_overs == 0 && clock_jumps == 0 && lanes.len() == 1,
            duplicates_are_bounded: fail_overs == 0 && lanes.len() == 1,
            fail_overs,
            clock_slack: if clock_jumps > 0 { 10_000_000 } else { 100_000 },
            window: small(random, 6, 50),
            page: small(random, 2, 16),
            batch: small(random, 1, 10),
            batches: small(random, 1, 4),
            settle_every: small(random, 1, 20),
            settle_after: random.between(2_000, 60_000),
            due: (small(random, 1, 5), small(random, 1, 4)),
            limits: if random.chance(100) { (small(random, 2, 6), small(random, 1, 3)) } else { (10_000, 1_000) },
            keys: random.between(1, 6),
            routes,
            order,
            transactions: random.between(15, 60),
            clock_jumps,
            outages,
            drain_deadline: random.between(200_000, 2_000_000),
            rate: random.chance(80).then(|| small(random, 40, 400)),
            lanes,
            files_differ: false,
        }
    }

    /// Whoever asks for something new fences the owners.
    pub(crate) fn files_differ(&mut self) {
        (self.files_differ, self.leases_are_exact, self.duplicates_are_bounded) = (true, false, false);
    }

    /// What a lane that ends badly may have published without having settled it: its window, and parked rows in memory.
    #[must_use]
    pub fn lane_in_memory(&self) -> u64 {
        u64::from(self.window) + u64::from(self.due.0) * u64::from(self.due.1 + 1)
    }
}
