//! How busy the rest of the machine is while something is measured.
//!
//! What belongs to a measurement are this process, the processes of the servers that it uses, and the children of both.
//! All else that the cores did meanwhile is foreign, and is reported beside the figures.

use std::{collections::HashSet, fs, time::Instant};

/// The state of the machine when watching began.
pub(crate) struct Watch {
    began: Instant,
    /// Processes whose children are ours too. `None`: a server runs somewhere else.
    roots: Option<HashSet<u32>>,
    ours: Option<f64>,
    all: Option<f64>,
}

impl Watch {
    /// Begins to watch. A server that cannot be found on this machine makes the answer unknown.
    pub(crate) fn begin(servers: impl IntoIterator<Item = Option<u32>>) -> Self {
        let own = Some(std::process::id());
        let roots: Option<HashSet<u32>> = std::iter::once(own).chain(servers).collect();
        let ours = roots.as_ref().and_then(busy);
        Self { began: Instant::now(), roots, ours, all: all_busy() }
    }

    /// Cores that other processes have used since. `None` where the system does not tell.
    pub(crate) fn foreign_cores(&self) -> Option<f64> {
        let all = all_busy()? - self.all?;
        let ours = busy(self.roots.as_ref()?)? - self.ours?;
        Some(((all - ours) / self.began.elapsed().as_secs_f64()).max(0.0))
    }
}

/// Seconds of the processor that these processes and their children have used.
fn busy(roots: &HashSet<u32>) -> Option<f64> {
    let mut trees = roots.clone();
    let mut seconds = trees.iter().filter_map(|pid| stat(*pid)).map(|stat| stat.own + stat.reaped).sum::<f64>();
    let pids: Vec<u32> =
        fs::read_dir("/proc").ok()?.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    // Children of children do not occur: neither a server's process nor our relay starts any.
    for stat in pids.iter().filter_map(|pid| stat(*pid)) {
        if trees.contains(&stat.parent) && trees.insert(stat.pid) {
            seconds += stat.own;
        }
    }
    Some(seconds)
}

/// The parent of a process of this machine, if it has the name that it should have.
pub(crate) fn parent_of(pid: u32, name: &str) -> Option<u32> {
    is_called(pid, name).then(|| stat(pid)).flatten().map(|stat| stat.parent)
}

/// Whether a process of this machine has this name, or one that begins with it.
pub(crate) fn is_called(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name))
}

struct Stat {
    pid: u32,
    parent: u32,
    /// Seconds of its own.
    own: f64,
    /// Seconds of its children that have ended.
    reaped: f64,
}

/// Linux counts in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let seconds = |at: usize| Some(fields.get(at)?.parse::<f64>().ok()? / TICKS_PER_SECOND);
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        own: seconds(11)? + seconds(12)?,
        reaped: seconds(13)? + seconds(14)?,
    })
}

/// Seconds that all cores together were busy, without waiting for disks and without what the host took.
fn all_busy() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    let busy: f64 = [0, 1, 2, 5, 6].into_iter().filter_map(|at| fields.get(at)).sum();
    Some(busy / TICKS_PER_SECOND)
}
