//! Holding a lease: renewing it in time, and knowing when it must be taken for lost.

use std::time::Duration;

use horchestra_store::Store;
use horchestra_store::store::Lease;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Renews `lease` until it is lost, and then cancels `lost`.
///
/// The holder counts from the moment *before* it asked, so its own idea of the end of the term is never
/// later than the database's. Failing to reach the database is not losing: renewal goes on until the term
/// is over by that count, less a margin for a write in flight.
pub async fn hold(store: Store, lease: Lease, ttl: Duration, acquired: Instant, lost: CancellationToken) {
    let margin = ttl / 8;
    let mut ends = acquired + ttl - margin;
    loop {
        let pause = (ttl / 3).min(ends.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = lost.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let asked = Instant::now();
        if asked >= ends {
            break;
        }
        match tokio::time::timeout_at(ends, store.renew_lease(&lease, ttl)).await {
            Ok(Ok(true)) => ends = asked + ttl - margin,
            Ok(Ok(false)) => break,
            Ok(Err(error)) => {
                tracing::warn!(lease = lease.name, %error, "could not renew a lease; trying again");
                // A failed attempt must not become a busy loop.
                tokio::time::sleep((ttl / 15).min(ends.saturating_duration_since(Instant::now()))).await;
            }
            Err(_) => break,
        }
    }
    tracing::warn!(lease = lease.name, epoch = lease.epoch, "lost a lease");
    lost.cancel();
}
