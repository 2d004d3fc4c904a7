//! The run itself: keeps the processes going, kills them in the middle of their work, and ends when every committed order
//! has arrived, or when for a long time nothing has.

use std::{
    thread,
    time::{Duration, Instant},
};

use postrider::{
    core::admin::Actor,
    sqlite::{Sqlite, migrations},
};
use rusqlite::Connection;

use super::{
    Arguments, PROCESSES, arrivals::Tail, files::Files, kills::Schedule, process::Process, progress::Progress, service,
    witness::Witness,
};
use crate::exit::{Code, Failure, Outcome};

/// How often the parent looks.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// How long nothing may happen before the run ends as it stands. Far longer than any lease or lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a relay may take for a clean stop.
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// How long the services take about, if the machine lets them: long enough to be killed in between.
const WORK_MICROS: u64 = 9_000_000;

/// The longest that a service thinks after an order.
const PAUSE_MICROS_MAX: u64 = 20_000;

/// What happened beside the messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) service_kills: u32,
    pub(super) relay_kills: u32,
    pub(super) elapsed: Duration,
}

impl Run {
    pub(super) fn kills(&self) -> u32 {
        self.service_kills + self.relay_kills
    }
}

pub(super) fn direct(arguments: &Arguments, files: &Files) -> Outcome<Run> {
    prepare(files)?;
    let mut stage = Stage::set(arguments, files)?;
    while !stage.is_over()? {
        stage.look()?;
        stage.kill_if_due()?;
        stage.keep_running()?;
        thread::sleep(LOOK_EVERY);
    }
    stage.clear()
}

/// The outbox's tables and the business table, in one database.
fn prepare(files: &Files) -> Outcome<()> {
    migrations::up(files.database(), &Sqlite::default(), &Actor::new("demo"))?;
    let made = Connection::open(files.database()).and_then(|connection| connection.execute_batch(service::SCHEMA));
    made.map_err(|error| Failure::because(Code::Problem, "the table of orders cannot be made", &error))
}

struct Stage {
    quotas: [u32; PROCESSES as usize],
    services: Vec<Process>,
    relays: Vec<Process>,
    service_kills: Schedule,
    relay_kills: Schedule,
    witness: Witness,
    tail: Tail,
    committed: [u32; PROCESSES as usize],
    delivered: u32,
    moved_at: Instant,
    started_at: Instant,
    progress: Progress,
    run: Run,
}

impl Stage {
    fn set(arguments: &Arguments, files: &Files) -> Outcome<Self> {
        let Arguments { orders, kills, keys, .. } = *arguments;
        let quotas = service::quotas(orders, keys);
        let pause = (WORK_MICROS * u64::from(PROCESSES) / u64::from(orders)).min(PAUSE_MICROS_MAX);
        let service = |index: u32| {
            let quota = quotas[index as usize];
            let words = format!("service --service {index} --keys {keys} --quota {quota} --pause-micros {pause}");
            Process::new(format!("service-{index}"), words.split(' ').map(str::to_owned).collect(), files)
        };
        let relay = |index: u32| {
            let words = format!("relay --relay {index}");
            Process::new(format!("relay-{index}"), words.split(' ').map(str::to_owned).collect(), files)
        };
        Ok(Self {
            quotas,
            services: (0..PROCESSES).map(service).collect(),
            relays: (0..PROCESSES).map(relay).collect(),
            service_kills: Schedule::new(kills - kills / 2, orders),
            relay_kills: Schedule::new(kills / 2, orders),
            witness: Witness::open(files)?,
            tail: Tail::new(files.arrivals()),
            committed: [0; PROCESSES as usize],
            delivered: 0,
            moved_at: Instant::now(),
            started_at: Instant::now(),
            progress: Progress::new(orders, kills),
            run: Run { service_kills: 0, relay_kills: 0, elapsed: Duration::ZERO },
        })
    }

    fn all_committed(&self) -> bool {
        self.committed == self.quotas
    }

    fn orders_committed(&self) -> u32 {
        self.committed.iter().sum()
    }

    /// Over when all has arrived. If nothing moves any more, the verdict shall say what is missing.
    fn is_over(&self) -> Outcome<bool> {
        if self.all_committed() && self.delivered >= self.orders_committed() {
            return Ok(true);
        }
        let stuck = self.moved_at.elapsed() > PATIENCE;
        if stuck && !self.all_committed() {
            let message = format!("no order was committed for {} s; the logs may say why", PATIENCE.as_secs());
            return Err(Failure::new(Code::Problem, message));
        }
        Ok(stuck)
    }

    fn look(&mut self) -> Outcome<()> {
        let before = (self.committed, self.delivered);
        self.committed = self.witness.committed()?;
        self.delivered = self.tail.delivered()?;
        if before != (self.committed, self.delivered) {
            self.moved_at = Instant::now();
        }
        self.progress.show(self.orders_committed(), self.delivered, self.run.kills(), self.started_at.elapsed());
        Ok(())
    }

    fn kill_if_due(&mut self) -> Outcome<()> {
        let committed = self.orders_committed();
        if !self.all_committed() && self.service_kills.is_due(committed) && self.kill_service()? {
            self.service_kills.happened(committed);
            self.run.service_kills += 1;
        }
        let all_delivered = self.delivered >= self.quotas.iter().sum();
        if !all_delivered && self.relay_kills.is_due(self.delivered) && self.kill_relay()? {
            self.relay_kills.happened(self.delivered);
            self.run.relay_kills += 1;
        }
        Ok(())
    }

    /// Services take turns, but one that has nothing left to do is not worth killing.
    fn kill_service(&mut self) -> Outcome<bool> {
        let first = self.run.service_kills as usize % self.services.len();
        let turns = (0..self.services.len()).map(|turn| (first + turn) % self.services.len());
        let working = turns.into_iter().find(|index| self.committed[*index] < self.quotas[*index]);
        working.map_or(Ok(false), |index| self.services[index].kill())
    }

    fn kill_relay(&mut self) -> Outcome<bool> {
        let index = self.run.relay_kills as usize % self.relays.len();
        self.relays[index].kill()
    }

    fn keep_running(&mut self) -> Outcome<()> {
        for (index, service) in self.services.iter_mut().enumerate() {
            if self.committed[index] < self.quotas[index] {
                service.keep_running()?;
            }
        }
        self.relays.iter_mut().try_for_each(Process::keep_running)
    }

    /// Lets everybody stop cleanly. What still arrives meanwhile counts.
    fn clear(mut self) -> Outcome<Run> {
        for process in self.services.iter_mut().chain(&mut self.relays) {
            process.stop(DRAIN_PATIENCE)?;
        }
        self.look()?;
        self.progress.end();
        Ok(Run { elapsed: self.started_at.elapsed(), ..self.run })
    }
}
