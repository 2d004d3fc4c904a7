//! Endpoints that are gone for good: a webhook that answers 410 wants nothing more, and a restart must not forget it.
//!
//! The publisher stops by itself, but only in its memory. So the route is paused in the store, with the reason and an audit
//! entry: every relay keeps it idle from then on, `status` and `why` say why, and `postrider route resume` is the one way to
//! enable it again.

use std::{sync::Arc, time::Duration};

use postrider::{
    core::admin::{Actor, StoreAdmin},
    relay::{
        RelayHandle,
        events::{Event, Observer},
    },
};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tracing::warn;

/// The code that a publisher gives to an endpoint that is gone.
const GONE: &str = "gone";

/// Who pauses, in the audit record.
const NAME: &str = "postrider";

const REASON: &str =
    "its endpoint has answered 410, so it is gone for good: correct the URL or ask its owner, then resume the route";

/// How long until a store that could not be written to is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Hears of lanes whose endpoint is gone.
pub(super) struct Listener(UnboundedSender<Arc<str>>);

/// The listener, and what it hears: names of routes and replays.
pub(super) fn listener() -> (Listener, UnboundedReceiver<Arc<str>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Listener(sender), receiver)
}

impl Observer for Listener {
    fn observe(&self, event: &Event<'_>) {
        // It may first have been down for a while, and its owner has put up the 410 since; and it may have taken others in
        // between.
        if let Event::BreakerOpened { lane, cause }
        | Event::OutageChanged { lane, cause }
        | Event::SetAside { lane, cause, .. } = event
            && cause.code() == GONE
        {
            // Nobody hears it only when the process ends.
            let _ = self.0.send(Arc::clone(&lane.route));
        }
    }
}

/// Pauses every route that it hears of. Ends with the relay that tells them.
pub(super) async fn pause_routes(
    admin: Arc<dyn StoreAdmin>,
    relay: RelayHandle,
    mut gone: UnboundedReceiver<Arc<str>>,
) {
    while let Some(name) = gone.recv().await {
        while let Err(error) = pause(&*admin, &relay, &name).await {
            warn!(route = %name, why = %error, "a route whose endpoint is gone could not be paused; it is tried again");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// A replay publishes through a route, and it is that one's endpoint. One that somebody has paused meanwhile stays theirs.
///
/// The relay is told of the pause either way: somebody may resume the route before its next heartbeat, and the endpoint is
/// opened again only after a pause.
async fn pause(admin: &dyn StoreAdmin, relay: &RelayHandle, name: &str) -> postrider::Result<()> {
    let overview = admin.overview().await?;
    let status = |name: &str| overview.routes.iter().find(|status| *status.route == *name);
    let route = status(name).and_then(|status| status.replay_of.as_deref()).unwrap_or(name);
    // A route that was forgotten has nothing to pause.
    let Some(status) = status(route) else { return Ok(()) };
    if status.paused.is_some() {
        relay.route_was_paused(route);
        return Ok(());
    }
    admin.pause(route, &Actor { name: NAME.to_owned(), reason: Some(REASON.to_owned()) }).await?;
    relay.route_was_paused(route);
    warn!(
        route,
        "the endpoint has answered 410 and is gone for good; the route is paused until `postrider route resume`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use postrider::core::{envelope::MessageId, lease::LaneId, parked::Cause};

    use super::*;

    #[test]
    fn an_endpoint_that_is_gone_is_heard_of_however_that_is_told() {
        let (listener, mut heard) = listener();
        let lane = LaneId { route: "hooks".into(), number: 0 };
        let (gone, down) = (Cause::new(GONE, "410"), Cause::new("connect", "refused"));
        let told = |cause: &Cause| {
            [
                Event::BreakerOpened { lane: &lane, cause },
                Event::OutageChanged { lane: &lane, cause },
                Event::SetAside { lane: &lane, id: MessageId::generate(), cause },
            ]
            .iter()
            .for_each(|event| listener.observe(event));
        };
        told(&down);
        assert!(heard.try_recv().is_err(), "one that is down comes back by itself");
        told(&gone);
        assert_eq!(std::iter::from_fn(|| heard.try_recv().ok()).count(), 3);
    }
}
