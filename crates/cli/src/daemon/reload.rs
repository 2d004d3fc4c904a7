//! SIGHUP: the configuration is read again, and what can be changed under way is.
//!
//! The level of the log, the token, and of a route everything but what the store knows of it. Every destination is opened
//! again, so secrets and certificates are looked up anew, and a rotated file is made anew; lanes drain before they go on, so
//! nothing is published twice. What needs a restart is named and stays as it was; a secret that stands in a file has changed
//! if that file has. A configuration that is wrong changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use postrider::relay::RelayHandle;
use tracing::{info, warn};

use super::{
    build::open_route,
    log::{Level, Log},
};
use crate::{
    admin::Told,
    config::{Config, Loaded, RouteConfig, Source, keys, show::Shown},
    exit::Outcome,
    telemetry::Telemetry,
};

/// Which value: its key, and the name of its section if there are several.
type Which = (&'static str, String);

const TOKEN: &str = "admin.token";

/// What runs, and what it was made from.
pub(super) struct Reloader {
    source: Source,
    routes: Vec<RouteConfig>,
    /// What holds, by fingerprint.
    holds: BTreeMap<Which, u64>,
    log: Log,
    /// By the name of the store.
    relays: BTreeMap<String, RelayHandle>,
    telemetry: Arc<Telemetry>,
    /// Who answers over HTTP, if anybody does.
    told: Option<Told>,
}

impl Reloader {
    pub(super) fn new(
        source: Source,
        loaded: &Loaded,
        routes: Vec<RouteConfig>,
        log: Log,
        relays: BTreeMap<String, RelayHandle>,
        telemetry: Arc<Telemetry>,
        told: Option<Told>,
    ) -> Self {
        let holds = fingerprints(&loaded.shown);
        Self { source, routes, holds, log, relays, telemetry, told }
    }

    /// Reads everything again and takes what can be taken.
    pub(super) fn read_again(&mut self) {
        let Loaded { config, shown, warnings } = match self.source.load() {
            Ok(loaded) => loaded,
            Err(failure) => {
                warn!(why = %failure, "the configuration is not usable; everything stays as it was");
                return;
            }
        };
        for warning in warnings {
            warn!("{warning}");
        }
        let new = fingerprints(&shown);
        // The table is asked, not the file: a key whose section is gone is in no file any more.
        let live = |path: &str| keys::find(path).is_some_and(|(_, key)| key.live);
        let differs = |which: &&Which| self.holds.get(*which) != new.get(*which);
        let changed: BTreeSet<Which> = self.holds.keys().chain(new.keys()).filter(differs).cloned().collect();
        let is_route = |name: &str| self.routes.iter().any(|route| route.name == name);
        let (mut taken, mut waiting) = (Vec::new(), Vec::new());
        for which in changed {
            let can_be_taken = match which.0 {
                "log.level" => true,
                TOKEN => self.take_token(&config),
                _ => is_route(&which.1) && config.routes.iter().any(|route| route.name == which.1),
            };
            if live(which.0) && can_be_taken { &mut taken } else { &mut waiting }.push(which);
        }
        if let Level::DecidedByEnvironment = self.log.set_level(config.log.level) {
            info!("the level of the log stays: RUST_LOG decides it");
        }
        let failed = self.reopen_routes(&config);
        taken.retain(|(_, name)| !failed.contains(name));
        match failed.is_empty() {
            true => info!(
                changed = in_words(&taken),
                "the configuration was read again; every destination was opened again"
            ),
            false => info!(changed = in_words(&taken), "the configuration was read again; what could be opened was"),
        }
        if !waiting.is_empty() {
            warn!(
                keys = in_words(&self.whole_routes(waiting, &config)),
                "restart needed: these stay as they were until then"
            );
        }
        for which in taken {
            match new.get(&which) {
                Some(value) => self.holds.insert(which, *value),
                None => self.holds.remove(&which),
            };
        }
    }

    /// A new token is asked for at once. That none is asked for any more needs a restart, which also looks at the address.
    fn take_token(&self, config: &Config) -> bool {
        let new = config.admin.as_ref().and_then(|admin| admin.token().ok().flatten());
        match (&self.told, new) {
            (Some(told), Some(token)) => {
                told.ask_for(token);
                true
            }
            _ => false,
        }
    }

    /// A route that is new or gone is one thing, however many keys it has.
    fn whole_routes(&self, waiting: Vec<Which>, config: &Config) -> BTreeSet<Which> {
        let in_both = |name: &str| {
            let has = |routes: &[RouteConfig]| routes.iter().any(|route| route.name == name);
            has(&self.routes) && has(&config.routes)
        };
        let whole = |(path, name): Which| match path.starts_with("route.") && !in_both(&name) {
            true => ("route", name),
            false => (path, name),
        };
        waiting.into_iter().map(whole).collect()
    }

    /// Opens every destination again. Returns the routes for which that failed; they go on as they were.
    fn reopen_routes(&mut self, config: &Config) -> BTreeSet<String> {
        let mut failed = BTreeSet::new();
        for route in &mut self.routes {
            let Some(new) = config.routes.iter().find(|new| new.name == route.name) else { continue };
            let merged = merged(route, new);
            match self.relays.get(&route.store).map(|relay| replace(relay, &merged, &self.telemetry)) {
                Some(Ok(())) => *route = merged,
                Some(Err(failure)) => {
                    warn!(route = route.name, why = %failure, "the route goes on as it was");
                    failed.insert(route.name.clone());
                }
                None => {}
            }
        }
        failed
    }
}

fn replace(relay: &RelayHandle, route: &RouteConfig, telemetry: &Telemetry) -> Outcome<()> {
    Ok(relay.replace_route(open_route(route, telemetry)?)?)
}

/// The new one, with what the store knows of the old one.
fn merged(old: &RouteConfig, new: &RouteConfig) -> RouteConfig {
    RouteConfig {
        store: old.store.clone(),
        topics: old.topics.clone(),
        lanes: old.lanes,
        order: old.order,
        start: old.start,
        ..new.clone()
    }
}

fn fingerprints(shown: &[Shown]) -> BTreeMap<Which, u64> {
    shown.iter().map(|value| ((value.key.path, value.name.clone()), value.fingerprint)).collect()
}

fn in_words<'a>(which: impl IntoIterator<Item = &'a Which>) -> String {
    let one = |(path, name): &Which| match (path.split_once('.'), name.as_str()) {
        (_, "") => (*path).to_owned(),
        (Some((section, key)), name) => format!("{section}.{name}.{key}"),
        (None, name) => format!("{path}.{name}"),
    };
    let words: Vec<String> = which.into_iter().map(one).collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}
