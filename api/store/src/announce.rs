//! Processes say that they are there, so that people can see who runs, in which version, and how far behind the log
//! each is. Nothing depends on it: an announcement that is lost is made good by the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backend::Backend;
use crate::cache::Cache;

/// The time between two announcements of a process.
pub const INTERVAL: Duration = Duration::from_secs(10);
/// How long a process that goes waits for its farewell to be written.
const FAREWELL: Duration = Duration::from_secs(1);

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Of workers the holder of their leases, of gateways their own id.
    pub id: Uuid,
    /// Such as `horchestra-api`.
    pub program: String,
    /// Where it is to be found: host and process.
    pub place: String,
    pub version: String,
}

/// Announces the process now and then, once it has loaded what is stored, until it stops.
pub(crate) async fn run(
    announcement: Announcement,
    backend: Arc<dyn Backend>,
    cache: Arc<Cache>,
    stop: CancellationToken,
) {
    tokio::select! {
        _ = cache.until(|now| now.loaded) => {}
        () = stop.cancelled() => return,
    }
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => break,
        }
        if let Err(error) = backend.announce(&announcement, cache.progress().revision).await {
            tracing::debug!(%error, "store.announcement.failed");
        }
    }
    // Whoever does not say goodbye is seen to be gone half a minute later.
    let _ = timeout(FAREWELL, backend.withdraw(announcement.id)).await;
}
