//! Leases: renewing one in time, knowing when it must be taken for lost, and when to ask for one that somebody else
//! holds.

use std::time::Duration;

use horchestra_store::Store;
use horchestra_store::store::Lease;
use rand::Rng;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::RunnerOptions;
use super::runner::jittered;

/// How long to wait before asking for a lease again of whose holder's term so much was left.
///
/// Nobody can have it before that term ends, and when its holder has died, everybody is late who asks later. A holder that
/// lives has prolonged it by then. What is added keeps those who wait from asking all at once. No wait is longer than a
/// term of our own, should the clock of the database be set back.
pub fn until_attempt(left: Option<Duration>, options: &RunnerOptions) -> Duration {
    match left {
        Some(left) => {
            let apart = options.campaign_every.mul_f64(rand::rng().random_range(0.02..0.2));
            left.min(options.lease_ttl) + apart
        }
        None => jittered(options.campaign_every),
    }
}

/// Renews `lease` until it is lost, and then cancels `lost`.
///
/// The holder counts from the moment *before* it asked, so its own idea of the end of the term is never
/// later than the database's. Failing to reach the database is not losing: renewal goes on until the term
/// is over by that count, less a margin for a write in flight.
pub async fn hold(store: Store, lease: Lease, ttl: Duration, acquired: Instant, lost: CancellationToken) {
    let margin = ttl / 8;
    let mut ends = acquired + ttl - margin;
    let mut pause = ttl / 3;
    loop {
        tokio::select! {
            () = lost.cancelled() => return,
            () = tokio::time::sleep_until(ends.min(Instant::now() + pause)) => {}
        }
        let asked = Instant::now();
        if asked >= ends {
            break;
        }
        // One connection on which nothing is answered must not cost the whole term.
        match tokio::time::timeout_at(ends.min(asked + ttl / 4), store.renew_lease(&lease, ttl)).await {
            Ok(Ok(true)) => {
                (ends, pause) = (asked + ttl - margin, ttl / 3);
                continue;
            }
            Ok(Ok(false)) => break,
            Ok(Err(error)) => {
                tracing::warn!(lease = lease.name, %error, "could not renew a lease; trying again");
            }
            Err(_) => tracing::warn!(lease = lease.name, "no answer to the renewal of a lease; trying again"),
        }
        // A failed attempt must not become a busy loop.
        pause = ttl / 15;
    }
    tracing::warn!(lease = lease.name, epoch = lease.epoch, "lost a lease");
    lost.cancel();
}
