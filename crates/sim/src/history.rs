//! What happens in one seed: producers, nodes, operators and faults, and peace at the end.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use postrider::{
    relay::{
        Relay, RelayHandle, Route,
        events::{Event, Observer},
        options::Options,
    },
    runtime::Runtime,
};
use postrider_core::{
    envelope::{Envelope, MessageId},
    key::KeyHash,
    lease::{NodeId, ReplayFilter},
    parked::Parked,
    retry::{Backoff, Jitter, RetryPolicy},
    time::Timestamp,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    broker::{Poison, SimPublisher},
    check::{Totals, Tracker},
    log::SimLog,
    plants::Plant,
    random::Random,
    scenario::Scenario,
    store::{Ending, Store, TOPICS},
    world::{Micros, NodeRuntime, Owner, WORLD, World, lock},
};

const LEASE_LIFE: Micros = 1_500_000;
/// The store's clock does not begin at zero, so that times before the beginning can be written down.
const EPOCH: Micros = 1_000_000_000;

/// Everything that the parts of a history share.
pub struct Sim {
    /// Time and tasks.
    pub world: World,
    /// The store.
    pub store: Mutex<Store>,
    /// Chance.
    pub random: Mutex<Random>,
    /// Chance of another kind, for what nodes have in their files: other histories stay what they are.
    files: Mutex<Random>,
    /// What is wrong with each row.
    pub poison: Mutex<Vec<Poison>>,
    /// What was seen.
    pub tracker: Mutex<Tracker>,
    /// What was drawn.
    pub scenario: Scenario,
    /// Whoever waits for a commit.
    pub hints: Notify,
    plant: Plant,
    traced: bool,
    clock_offset: Mutex<i64>,
    nodes: Mutex<Vec<NodeLife>>,
    locked: Mutex<BTreeSet<u64>>,
    fail_overs_done: Mutex<u64>,
    /// Which of the drawn numbers of lanes is in force.
    lanes_in_force: Mutex<usize>,
}

struct NodeLife {
    owner: Owner,
    id: NodeId,
    handle: RelayHandle,
    alive: bool,
    draining: bool,
}

/// What one seed came to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Counts.
    pub totals: Totals,
    /// A number that depends on every step.
    pub trace: u64,
}

/// Also a history that ends in a panic is cleared away.
struct EndOfWorld(World);

impl Drop for EndOfWorld {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs one seed.
///
/// # Panics
/// With the broken promise.
#[must_use]
pub fn run(seed: u64, plant: Plant) -> Outcome {
    let mut random = Random::new(seed);
    let mut scenario = Scenario::draw(&mut random);
    let mut files = Random::new(!seed);
    if files.chance(100) {
        scenario.files_differ();
    }
    let sim = Arc::new(Sim {
        world: World::new(),
        store: Mutex::new(Store::new(EPOCH, plant.store())),
        random: Mutex::new(random),
        files: Mutex::new(files),
        poison: Mutex::new(Vec::new()),
        tracker: Mutex::new(Tracker::default()),
        scenario,
        hints: Notify::new(),
        plant,
        traced: std::env::var_os("POSTRIDER_SIM_TRACE").is_some(),
        clock_offset: Mutex::new(0),
        nodes: Mutex::new(Vec::new()),
        locked: Mutex::new(BTreeSet::new()),
        fail_overs_done: Mutex::new(0),
        lanes_in_force: Mutex::new(0),
    });
    let _end = EndOfWorld(sim.world.clone());
    sim.schedule();
    let peace = sim.scenario.trouble_until;
    sim.world.run(peace, || false);
    let resting = Arc::clone(&sim);
    let mut look_at = peace + 1_000_000;
    sim.world.run(peace + 120_000_000, move || {
        let now = resting.world.now();
        if now < look_at {
            return false;
        }
        look_at = now + 300_000;
        resting.at_rest()
    });
    let (store, mut tracker) = (lock(&sim.store), lock(&sim.tracker));
    tracker.judge(&store, &sim.scenario);
    let mut trace = sim.world.polls();
    for (route, id) in &tracker.arrivals {
        trace = trace.wrapping_mul(0x100_0000_01b3) ^ id.0.as_u128() as u64 ^ route.len() as u64;
    }
    Outcome { totals: tracker.totals, trace }
}

impl Sim {
    /// Prints a line if the history is traced.
    pub fn trace(&self, line: impl FnOnce() -> String) {
        if self.traced {
            eprintln!("{:>9} {}", self.world.now(), line());
        }
    }

    /// A text that is only made if the history is traced.
    pub fn describe(&self, text: impl FnOnce() -> String) -> String {
        if self.traced { text() } else { String::new() }
    }

    /// Whether there is trouble now.
    pub fn troubled(&self) -> bool {
        self.world.now() < self.scenario.trouble_until
    }

    /// The store's clock.
    pub fn clock(&self) -> Micros {
        (EPOCH + self.world.now()).saturating_add_signed(*lock(&self.clock_offset))
    }

    /// How long something takes on the wire.
    pub fn delay(&self) -> Micros {
        let mut random = lock(&self.random);
        if self.troubled() && random.chance(25) { random.below(600_000) } else { random.between(100, 4_000) }
    }

    /// Whether a route's destination is down for a key.
    pub fn is_down(&self, route: &str, key: Option<KeyHash>) -> bool {
        let now = self.world.now();
        let index = self.scenario.routes.iter().position(|(name, _)| &**name == route);
        let elsewhere = key.is_none_or(|key| key.0 % 2 == 0);
        self.scenario.outages.iter().any(|outage| {
            Some(outage.route) == index && (outage.from..outage.to).contains(&now) && !(outage.in_part && elsewhere)
        })
    }

    fn draw(&self, below: u64) -> u64 {
        lock(&self.random).below(below)
    }

    fn chance(&self, per_mille: u64) -> bool {
        lock(&self.random).chance(per_mille)
    }

    fn at(self: &Arc<Self>, at: Micros, act: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let sim = Arc::clone(self);
        let world = self.world.clone();
        self.world.spawn(WORLD, async move {
            world.sleep_until(at).await;
            act(&sim);
        });
    }

    fn schedule(self: &Arc<Self>) {
        let until = self.scenario.trouble_until;
        for _ in 0..self.scenario.transactions {
            let at = self.draw(until);
            self.at(at, Self::transaction);
        }
        for slot in 0..2_u64 {
            self.at(slot * 10_000, Self::start_node);
        }
        for _ in 0..self.draw(6) {
            let at = self.draw(until);
            self.at(at, Self::crash);
        }
        for _ in 0..self.draw(5) {
            let (at, long) = (self.draw(until), self.draw(3 * LEASE_LIFE));
            self.at(at, move |sim| sim.pause(long));
        }
        for _ in 0..self.draw(5) {
            let at = self.draw(until);
            self.at(at, Self::drain);
        }
        for _ in 0..self.scenario.clock_jumps {
            let at = self.draw(until);
            self.at(at, Self::jump);
        }
        for _ in 0..self.scenario.fail_overs {
            let at = self.draw(until);
            self.at(at, |sim| {
                let replica = lock(&sim.store).clone();
                let lag = sim.draw(400_000);
                let then = sim.world.now() + lag;
                sim.at(then, move |sim| sim.fail_over(&replica));
            });
        }
        if self.scenario.lanes.len() > 1 {
            let at = self.draw(until);
            self.at(at, |sim| {
                *lock(&sim.lanes_in_force) = 1;
                lock(&sim.tracker).totals.upheavals += 1;
                sim.start_node();
            });
        }
        self.at(400_000, Self::operate);
        self.at(until, Self::make_peace);
    }

    // ---- the application ----------------------------------------------------------------------------------------

    fn transaction(self: &Arc<Self>) {
        let mut mine = BTreeSet::new();
        let mut rows = Vec::new();
        for _ in 0..=self.draw(5) {
            let key = (!self.chance(120)).then(|| self.draw(self.scenario.keys));
            if let Some(key) = key {
                // Another transaction holds this key's lock: that is what gives the key an order.
                if !mine.contains(&key) && !lock(&self.locked).insert(key) {
                    continue;
                }
                mine.insert(key);
            }
            rows.push(self.append(key));
        }
        let commit = !self.chance(100);
        let hold = if self.chance(200) { self.draw(1_500_000) } else { self.draw(20_000) };
        let began_in = *lock(&self.fail_overs_done);
        let end = self.world.now() + hold;
        self.at(end, move |sim| {
            if *lock(&sim.fail_overs_done) == began_in {
                let clock = sim.clock();
                let mut store = lock(&sim.store);
                store.now = clock;
                store.end(&rows, commit);
                sim.trace(|| format!("transaction of rows {rows:?} ends, committed: {commit}"));
                drop(store);
                if !sim.chance(150) {
                    sim.hints.notify_waiters();
                }
            }
            let mut locked = lock(&sim.locked);
            mine.iter().for_each(|key| {
                locked.remove(key);
            });
        });
    }

    fn append(&self, key: Option<u64>) -> usize {
        let clock = self.clock();
        let mut store = lock(&self.store);
        store.now = clock;
        let mut envelope = Envelope::new(TOPICS[usize::from(self.chance(300))], "n", "x");
        envelope.id = MessageId(Uuid::from_u128(store.rows.len() as u128 + 1));
        envelope.key = key.map(|key| format!("key-{key}").into());
        let later = |micros: Micros| Some(Timestamp::from_micros((clock + micros).cast_signed()));
        if self.chance(80) {
            envelope.deliver_at = later(self.draw(2_000_000));
        } else if self.chance(40) {
            envelope.expires_at = later(self.draw(1_500_000));
        }
        if self.chance(30) {
            envelope.attempts_max = Some(1 + u32::try_from(self.draw(5)).expect("small"));
        }
        let poison = match self.draw(1000) {
            0..40 => Poison::Times(1 + u32::try_from(self.draw(4)).expect("small")),
            40..60 => Poison::Always,
            60..66 => Poison::Silent,
            _ => Poison::None,
        };
        lock(&self.poison).push(poison);
        store.append(envelope)
    }

    // ---- nodes --------------------------------------------------------------------------------------------------

    fn start_node(self: &Arc<Self>) {
        let scenario = &self.scenario;
        let owner = self.world.new_owner();
        let runtime: Arc<dyn Runtime> = Arc::new(NodeRuntime {
            world: self.world.clone(),
            owner,
            pace: 970 + self.draw(60),
            random: Mutex::new(Random::new(self.draw(u64::MAX))),
        });
        let log = Arc::new(SimLog { sim: Arc::clone(self), skew: self.draw(4_000_000) });
        let node = Arc::new(OnceLock::new());
        let options = Options {
            lease_life: Duration::from_micros(LEASE_LIFE),
            heartbeat_every: Duration::from_micros(LEASE_LIFE / 4),
            drain_deadline: Duration::from_micros(scenario.drain_deadline),
            keep_delivered: Some(Duration::from_micros(500_000)),
            keep_delivered_max: None,
            purge_every: Duration::from_secs(1),
        };
        let observer = Arc::new(Watcher { sim: Arc::clone(self) });
        let mut builder =
            Relay::builder(log).runtime(runtime).options(options).observer(observer).plant(self.plant.engine());
        // The first has a new file, and some that come later do not.
        let is_older = scenario.files_differ && !lock(&self.nodes).is_empty() && lock(&self.files).chance(400);
        for (name, topics) in &scenario.routes {
            let topics = if is_older && &**name == "main" { TOPICS[0] } else { *topics };
            let publisher = SimPublisher { sim: Arc::clone(self), node: Arc::clone(&node), route: Arc::clone(name) };
            builder = builder.route(self.route(name, topics, publisher));
        }
        let relay = builder.build().expect("a scenario that can be built");
        let handle = relay.handle();
        node.set(handle.node()).expect("once");
        let life = NodeLife { owner, id: handle.node(), handle, alive: true, draining: false };
        lock(&self.nodes).push(life);
        let sim = Arc::clone(self);
        self.world.spawn(owner, async move {
            relay.run().await.expect("the simulated store never refuses for good");
            sim.node_ended(owner);
        });
    }

    fn route(&self, name: &str, topics: &str, publisher: SimPublisher) -> Route {
        let scenario = &self.scenario;
        let lanes = if name == "main" { scenario.lanes[*lock(&self.lanes_in_force)] } else { 1 };
        let backoff =
            Backoff::Exponential { first: Duration::from_millis(30), factor: 2.0, max: Duration::from_millis(400) };
        let micros = Duration::from_micros;
        let route = Route::new(name, publisher)
            .topics([topics])
            .order(scenario.order)
            .lanes(lanes)
            .retry(RetryPolicy { attempts_max: scenario.attempts_max, backoff, jitter: Jitter::Half })
            .on_dead(scenario.on_dead)
            .window(scenario.window)
            .page(scenario.page)
            .batches(scenario.batch, scenario.batches)
            .settle(scenario.settle_every, micros(scenario.settle_after))
            .unknown(scenario.unknown_max, micros(50_000))
            .breaker(micros(50_000), micros(500_000))
            .poll(micros(20_000), micros(300_000))
            .due(scenario.due.0, scenario.due.1)
            .hold_at_most(scenario.limits.0, scenario.limits.1)
            .publish_timeout(micros(scenario.publish_timeout));
        match scenario.rate {
            Some(rate) => route.rate(rate),
            None => route,
        }
    }

    fn node_ended(self: &Arc<Self>, owner: Owner) {
        if let Some(life) = lock(&self.nodes).iter_mut().find(|life| life.owner == owner) {
            life.alive = false;
        }
        let soon = self.world.now() + self.draw(300_000);
        self.at(soon, Self::start_node);
    }

    /// A random living node.
    fn any_node(&self) -> Option<usize> {
        let nodes = lock(&self.nodes);
        let alive: Vec<usize> = (0..nodes.len()).filter(|&i| nodes[i].alive && !nodes[i].draining).collect();
        drop(nodes);
        let pick = usize::try_from(self.draw(alive.len() as u64)).expect("small");
        alive.get(pick).copied()
    }

    fn crash(self: &Arc<Self>) {
        let Some(index) = self.any_node() else { return };
        let (owner, id) = {
            let mut nodes = lock(&self.nodes);
            let life = &mut nodes[index];
            life.alive = false;
            (life.owner, life.id)
        };
        self.world.kill(owner);
        self.trace(|| format!("crash {id:?}"));
        let mut tracker = lock(&self.tracker);
        tracker.forget(id);
        tracker.totals.disturbances += 1;
        drop(tracker);
        let later = self.world.now() + self.draw(1_000_000);
        self.at(later, Self::start_node);
    }

    fn lane_in_memory(&self) -> u64 {
        self.scenario.lane_in_memory()
    }

    fn pause(self: &Arc<Self>, long: Micros) {
        let Some(index) = self.any_node() else { return };
        let owner = lock(&self.nodes)[index].owner;
        lock(&self.tracker).totals.disturbances += 1;
        self.trace(|| format!("pause {owner} for {long}"));
        self.world.pause(owner, self.world.now() + long);
    }

    fn drain(self: &Arc<Self>) {
        let Some(index) = self.any_node() else { return };
        lock(&self.tracker).totals.disturbances += 1;
        let mut nodes = lock(&self.nodes);
        nodes[index].draining = true;
        self.trace(|| format!("drain {:?}", nodes[index].id));
        nodes[index].handle.drain();
    }

    // ---- the store's misfortunes ------------------------------------------------------------------------------

    fn jump(self: &Arc<Self>) {
        let forward = self.chance(700);
        let far = i64::try_from(self.draw(if forward { 5_000_000 } else { 1_000_000 })).expect("small");
        *lock(&self.clock_offset) += if forward { far } else { -far };
    }

    fn fail_over(self: &Arc<Self>, replica: &Store) {
        *lock(&self.fail_overs_done) += 1;
        let clock = self.clock();
        let mut store = lock(&self.store);
        store.now = clock;
        let committed: Vec<MessageId> = store
            .rows
            .iter()
            .filter(|row| matches!(row.ending, Ending::Committed(_)))
            .map(|row| row.envelope.id)
            .collect();
        store.fail_over(replica);
        let mut tracker = lock(&self.tracker);
        let gone = |id: &MessageId| !matches!(store.rows[crate::check::row_of(*id)].ending, Ending::Committed(_));
        tracker.taken_back.extend(committed.into_iter().filter(gone));
        tracker.totals.upheavals += 1;
    }

    // ---- operators ----------------------------------------------------------------------------------------------

    fn operate(self: &Arc<Self>) {
        if !self.troubled() {
            return;
        }
        let clock = self.clock();
        let dead: Vec<(Arc<str>, u64, MessageId)> = {
            let mut store = lock(&self.store);
            store.now = clock;
            let rows = store.routes.iter().flat_map(|(name, route)| route.parked.iter().map(move |row| (name, row)));
            rows.filter(|(_, (_, row))| matches!(row.parked, Parked::Dead { .. }))
                .map(|(name, (ordinal, row))| (Arc::clone(name), *ordinal, row.record.envelope.id))
                .collect()
        };
        for (route, ordinal, id) in dead {
            match self.draw(100) {
                0..25 => lock(&self.store).redrive(&route, ordinal),
                25..35 => self.discard(&route, ordinal, id),
                _ => {}
            }
        }
        if self.chance(60) {
            let names: Vec<Arc<str>> = lock(&self.store).routes.keys().cloned().collect();
            for name in names {
                let pause = self.chance(400);
                if let Some(route) = lock(&self.store).routes.get_mut(&name) {
                    route.paused = pause;
                }
            }
        }
        if self.chance(25) && lock(&self.store).routes.contains_key("main") {
            self.replay(clock);
        }
        let next = self.world.now() + 250_000 + self.draw(300_000);
        self.at(next, Self::operate);
    }

    fn replay(&self, clock: Micros) {
        let since = self.chance(500).then(|| Timestamp::from_micros((clock - self.draw(2_000_000)).cast_signed()));
        let key = self.chance(300).then(|| format!("key-{}", self.draw(self.scenario.keys)));
        let filter = ReplayFilter { since, key, ..ReplayFilter::default() };
        let rate = self.chance(300).then_some(100);
        let (name, messages) = lock(&self.store).replay(&"main".into(), filter, rate);
        lock(&self.tracker).replays.push((name, messages));
    }

    fn discard(&self, route: &Arc<str>, ordinal: u64, id: MessageId) {
        lock(&self.store).discard(route, ordinal);
        lock(&self.tracker).discarded.insert((Arc::clone(route), id));
    }

    fn make_peace(self: &Arc<Self>) {
        let alive = lock(&self.nodes).iter().filter(|life| life.alive).count();
        if alive == 0 {
            self.start_node();
        }
        self.sweep();
    }

    /// In peace an operator resumes what is paused and gives up on what is dead, so that everything can come to rest.
    fn sweep(self: &Arc<Self>) {
        for route in lock(&self.store).routes.values_mut() {
            route.paused = false;
        }
        let dead: HashMap<(Arc<str>, u64), MessageId> = {
            let store = lock(&self.store);
            let rows = store.routes.iter().flat_map(|(name, route)| route.parked.iter().map(move |row| (name, row)));
            rows.filter(|(_, (_, row))| matches!(row.parked, Parked::Dead { .. }))
                .map(|(name, (ordinal, row))| ((Arc::clone(name), *ordinal), row.record.envelope.id))
                .collect()
        };
        for ((route, ordinal), id) in dead {
            self.discard(&route, ordinal, id);
        }
        let next = self.world.now() + 500_000;
        self.at(next, Self::sweep);
    }

    fn at_rest(&self) -> bool {
        lock(&self.tracker).at_rest(&lock(&self.store))
    }
}

/// Hears how lanes end.
struct Watcher {
    sim: Arc<Sim>,
}

impl Observer for Watcher {
    fn observe(&self, event: &Event<'_>) {
        self.sim.trace(|| format!("{event:?}"));
        if let Event::LaneEnded { how: "deadline" | "crashed", .. } = event {
            lock(&self.sim.tracker).duplicates_allowed += self.sim.lane_in_memory();
        }
    }
}
