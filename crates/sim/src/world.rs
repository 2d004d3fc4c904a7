//! Virtual time and tasks. Everything runs on one thread in an order that only the seed decides.
//!
//! Every task has an owner: the world itself (store, network, broker) or one life of a node. Killing a life drops all its
//! tasks at once, wherever they are waiting; pausing it means that none of them is polled until it goes on, while the
//! world around it does.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use postrider::runtime::Runtime;
use postrider_core::BoxFuture;

use crate::random::Random;

/// Microseconds of virtual time.
pub type Micros = u64;

/// Who a task belongs to. 0 is the world itself.
pub type Owner = usize;

/// The world's own tasks.
pub const WORLD: Owner = 0;

#[derive(Default)]
struct Inner {
    now: Micros,
    sequence: u64,
    timers: BinaryHeap<Reverse<(Micros, u64)>>,
    wakers: std::collections::HashMap<u64, Waker>,
    tasks: Vec<Option<Task>>,
    free: Vec<usize>,
    owners: Vec<OwnerState>,
    polls: u64,
}

struct Task {
    future: Option<BoxFuture<'static, ()>>,
    owner: Owner,
    waker: Waker,
}

#[derive(Clone, Copy)]
struct OwnerState {
    alive: bool,
    paused_until: Micros,
}

/// Tasks that want to be polled. Apart from the rest, because a waker may be used while the world is locked.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

struct TaskWaker {
    task: usize,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.ready.0).push_back(self.task);
    }
}

/// A handle on the world.
#[derive(Clone, Default)]
pub struct World {
    inner: Arc<Mutex<Inner>>,
    ready: Arc<Ready>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A new world at time 0.
    #[must_use]
    pub fn new() -> Self {
        let world = Self::default();
        lock(&world.inner).owners.push(OwnerState { alive: true, paused_until: 0 });
        world
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        lock(&self.inner).now
    }

    /// A new life.
    pub fn new_owner(&self) -> Owner {
        let mut inner = lock(&self.inner);
        inner.owners.push(OwnerState { alive: true, paused_until: 0 });
        inner.owners.len() - 1
    }

    /// Ends a life: all its tasks are dropped.
    pub fn kill(&self, owner: Owner) {
        let mut inner = lock(&self.inner);
        inner.owners[owner].alive = false;
        let dead: Vec<_> = inner
            .tasks
            .iter_mut()
            .flatten()
            .filter(|task| task.owner == owner)
            .filter_map(|task| task.future.take())
            .collect();
        drop(inner); // dropping futures may wake others
        drop(dead);
    }

    /// Lets none of a life's tasks run until then.
    pub fn pause(&self, owner: Owner, until: Micros) {
        let mut inner = lock(&self.inner);
        let state = &mut inner.owners[owner];
        state.paused_until = state.paused_until.max(until);
    }

    /// Whether a life is paused now.
    #[must_use]
    pub fn is_paused(&self, owner: Owner) -> bool {
        let inner = lock(&self.inner);
        inner.owners[owner].paused_until > inner.now
    }

    /// Starts a task.
    pub fn spawn(&self, owner: Owner, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(owner, Box::pin(future));
    }

    fn spawn_boxed(&self, owner: Owner, future: BoxFuture<'static, ()>) {
        let mut inner = lock(&self.inner);
        if !inner.owners[owner].alive {
            return;
        }
        let id = inner.free.pop().unwrap_or_else(|| {
            inner.tasks.push(None);
            inner.tasks.len() - 1
        });
        let waker = Waker::from(Arc::new(TaskWaker { task: id, ready: Arc::clone(&self.ready) }));
        inner.tasks[id] = Some(Task { future: Some(future), owner, waker });
        drop(inner);
        lock(&self.ready.0).push_back(id);
    }

    /// Resolves after this much time.
    pub fn sleep(&self, time: Micros) -> Sleep {
        let at = self.now() + time;
        Sleep { world: self.clone(), at, timer: None }
    }

    /// Resolves at that time.
    pub fn sleep_until(&self, at: Micros) -> Sleep {
        Sleep { world: self.clone(), at, timer: None }
    }

    /// Runs until `done` says so after some step, or until that time. Answers whether `done` did.
    ///
    /// # Panics
    /// If something spins without letting time pass.
    pub fn run(&self, until: Micros, mut done: impl FnMut() -> bool) -> bool {
        let mut polls_in_this_instant = 0_u64;
        loop {
            let next = lock(&self.ready.0).pop_front();
            if let Some(id) = next {
                polls_in_this_instant += 1;
                assert!(polls_in_this_instant < 200_000, "something spins at {}", self.now());
                self.poll(id);
                continue;
            }
            if done() {
                return true;
            }
            let mut inner = lock(&self.inner);
            let Some(&Reverse((at, number))) = inner.timers.peek() else { return false };
            if at > until {
                return false;
            }
            inner.timers.pop();
            let waker = inner.wakers.remove(&number);
            if waker.is_some() && at > inner.now {
                polls_in_this_instant = 0;
                inner.now = at;
            }
            drop(inner);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Drops every task. They hold on to the world and the world to them, so a history must be ended.
    pub fn end(&self) {
        let mut inner = lock(&self.inner);
        inner.owners.iter_mut().for_each(|owner| owner.alive = false);
        let tasks = std::mem::take(&mut inner.tasks);
        let wakers = std::mem::take(&mut inner.wakers);
        drop(inner); // dropping a task may need the world
        drop((tasks, wakers));
    }

    /// How many polls there have been: a part of the trace of a history.
    #[must_use]
    pub fn polls(&self) -> u64 {
        lock(&self.inner).polls
    }

    fn poll(&self, id: usize) {
        let mut inner = lock(&self.inner);
        inner.polls += 1;
        let now = inner.now;
        let Some(task) = inner.tasks[id].as_mut() else { return };
        let (owner, waker) = (task.owner, task.waker.clone());
        let paused_until = inner.owners[owner].paused_until;
        if paused_until > now {
            let number = inner.sequence;
            inner.sequence += 1;
            inner.timers.push(Reverse((paused_until, number)));
            inner.wakers.insert(number, waker);
            return;
        }
        let Some(mut future) = inner.tasks[id].as_mut().and_then(|task| task.future.take()) else {
            inner.tasks[id] = None;
            inner.free.push(id);
            return;
        };
        drop(inner);
        let ready = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut inner = lock(&self.inner);
        if ready || !inner.owners[owner].alive {
            inner.tasks[id] = None;
            inner.free.push(id);
            drop(inner); // dropping the future may need the world
        } else if let Some(task) = inner.tasks[id].as_mut() {
            task.future = Some(future);
        }
    }
}

/// A point in virtual time to wait for.
pub struct Sleep {
    world: World,
    at: Micros,
    timer: Option<u64>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            lock(&self.world.inner).wakers.remove(&timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut inner = lock(&world.inner);
        if inner.now >= self.at {
            return Poll::Ready(());
        }
        if self.timer.is_none() {
            let number = inner.sequence;
            self.timer = Some(number);
            inner.sequence += 1;
            inner.timers.push(Reverse((self.at, number)));
            inner.wakers.insert(number, context.waker().clone());
        }
        Poll::Pending
    }
}

/// What one life of a node sees of the world: its own monotonic clock, which runs a little fast or slow.
pub struct NodeRuntime {
    /// The world.
    pub world: World,
    /// This life.
    pub owner: Owner,
    /// How fast its clock runs, in thousandths.
    pub pace: u64,
    /// Its numbers.
    pub random: Mutex<Random>,
}

impl Runtime for NodeRuntime {
    fn now(&self) -> Duration {
        Duration::from_micros(self.world.now() * self.pace / 1000)
    }

    fn sleep_until(&self, at: Duration) -> BoxFuture<'static, ()> {
        let at = u64::try_from(at.as_micros()).unwrap_or(u64::MAX / 4096).min(u64::MAX / 4096);
        Box::pin(self.world.sleep_until((at * 1000).div_ceil(self.pace)))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.world.spawn_boxed(self.owner, task);
    }

    fn random(&self) -> u64 {
        lock(&self.random).next()
    }
}
