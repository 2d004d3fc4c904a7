//! What operators do to the simulated store, and what becomes of it when its machine fails.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use postrider_core::{
    asked::Asked,
    envelope::MessageId,
    lease::{Reader, Replay, ReplayFilter},
    parked::{Cause, Parked},
};

use super::{Ending, LaneState, Place, RouteState, Row, Store, replayed};

impl Store {
    /// `StoreAdmin::discard` of one row.
    pub fn discard(&mut self, route: &Arc<str>, ordinal: u64) {
        let Some(route) = self.routes.get_mut(route) else { return };
        if let Some(row) = route.parked.remove(&ordinal) {
            route.by_id.remove(&row.record.envelope.id);
        }
    }

    /// `StoreAdmin::redrive` of one row.
    pub fn redrive(&mut self, route: &Arc<str>, ordinal: u64) {
        let now = self.now;
        let Some(row) = self.routes.get_mut(route).and_then(|route| route.parked.get_mut(&ordinal)) else { return };
        if let Parked::Dead { blocks, .. } = row.parked {
            row.attempts = 0;
            row.due_at = now;
            row.parked = if blocks {
                Parked::Retrying { after: Duration::ZERO, attempts: 0, cause: Cause::new("redriven", "by an operator") }
            } else {
                Parked::Scheduled { after: Duration::ZERO }
            };
        }
    }

    /// `StoreAdmin::replay`. Answers its name and the messages that it will deliver.
    pub fn replay(&mut self, of: &Arc<str>, filter: ReplayFilter, rate: Option<u32>) -> (Arc<str>, Vec<MessageId>) {
        self.next_replay += 1;
        let name: Arc<str> = format!("{of}#replay-{}", self.next_replay).into();
        let route = &self.routes[of];
        let replay = Replay { of: Arc::clone(of), filter, rate };
        let reader = Reader { topics: route.reader.topics.clone(), order: route.reader.order, replay: Some(replay) };
        let lane = LaneState { epoch: 0, owner: None, expires_at: 0, place: Place::default(), settled: (0, 0) };
        let wanted = |row: &&Row| {
            matches!(row.ending, Ending::Committed(_))
                && !row.purged
                && reader.topics.matches(&row.envelope.topic)
                && replayed(reader.replay.as_ref(), row)
        };
        let messages = self.rows.iter().filter(wanted).map(|row| row.envelope.id).collect();
        let state = RouteState {
            reader: Arc::new(reader),
            asked: Asked::default(),
            promised: Vec::new(),
            paused: false,
            lanes: vec![lane],
            parked: BTreeMap::new(),
            by_id: HashMap::new(),
            until: Some(self.commits),
        };
        self.routes.insert(Arc::clone(&name), state);
        (name, messages)
    }

    /// A fail-over to a replica that is behind: everything is as it was then, and every lease from before is void.
    pub fn fail_over(&mut self, replica: &Self) {
        let (now, stale, ordinal, takeovers) = (self.now, self.stale_writes, self.next_ordinal, self.takeovers);
        let verdicts = std::mem::take(&mut self.verdicts);
        // Open transactions do not survive, and ids are never drawn twice.
        let drawn = self.rows.len();
        let lost = self.rows.split_off(replica.rows.len().min(drawn));
        *self = replica.clone();
        (self.now, self.stale_writes, self.verdicts, self.next_ordinal) = (now, stale, verdicts, ordinal);
        self.takeovers = takeovers;
        self.rows.extend(lost.into_iter().map(|row| Row { ending: Ending::RolledBack, ..row }));
        for row in self.rows.iter_mut().filter(|row| row.ending == Ending::Open) {
            row.ending = Ending::RolledBack;
        }
        for lane in self.routes.values_mut().flat_map(|route| &mut route.lanes) {
            lane.epoch = (lane.epoch + 1).max(now);
            lane.owner = None;
        }
        self.written.clear();
        self.void_before = now;
    }
}
