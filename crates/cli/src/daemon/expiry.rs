//! Dead messages that have waited for an operator for longer than `relay.keep_dead`: they are discarded, as the operator who
//! wrote that setting would do it by hand, with an audit entry for every slice. Left out, nothing dead ever goes by itself.

use std::{sync::Arc, time::Duration};

use postrider::core::{
    admin::{Actor, ParkedFilter, StoreAdmin},
    parked::ParkedState,
};
use tracing::{info, warn};

/// Who discards, in the audit record.
const NAME: &str = "postrider";

/// Rows of one transaction.
const SLICE: u32 = 500;

/// Looks every so often. Ends with the daemon, which drops it: a discard that is under way then is done or not done.
pub(super) async fn run(admin: Arc<dyn StoreAdmin>, keep: Duration, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        match discard(&*admin, keep).await {
            Ok(0) => {}
            Ok(messages) => {
                info!(messages, "dead messages were discarded: they had waited for longer than `keep_dead`");
            }
            Err(error) => warn!(why = %error, "dead messages could not be looked through; they are tried again"),
        }
    }
}

/// Everything that has been dead for longer than `keep`, by the store's clock; how many. What is found by when it was parked is
/// found by when it died: a store sets that instant anew when it does. Ends with the rows.
async fn discard(admin: &dyn StoreAdmin, keep: Duration) -> postrider::Result<u64> {
    let parked_before = Some(admin.overview().await?.at.saturating_sub(keep));
    let filter = ParkedFilter { state: Some(ParkedState::Dead), parked_before, ..ParkedFilter::default() };
    let actor = Actor { name: NAME.to_owned(), reason: Some("it was dead for longer than relay.keep_dead".to_owned()) };
    let (mut after, mut discarded) = (None, 0);
    loop {
        let rows = admin.parked(&filter, after, SLICE).await?;
        let Some(last) = rows.last() else { return Ok(discarded) };
        after = Some((Arc::clone(&last.route), last.ordinal));
        for slice in rows.chunk_by(|one, other| one.route == other.route) {
            discarded += admin.discard(&filter.only(slice), &actor).await?;
        }
    }
}
