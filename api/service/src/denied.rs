//! Following which client certificates are denied.
//!
//! Every process that takes connections reads the list before it takes the first, and every few seconds after
//! that; while the database is away it goes on with what it knows. Whoever denies a certificate can thus rely
//! on it within that time, on connections that are open as well, and whoever starts while the database is
//! away does not serve.

use std::time::Duration;

use horchestra_auth::DenyList;
use horchestra_store::store::DeniedCertificates;
use horchestra_store::{ReadError, Store};
use jiff::Timestamp;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

/// Pause after the list could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// The list as this process knows it.
pub struct Denials {
    store: Store,
    known: Vec<DeniedCertificates>,
    apply: Box<dyn Fn(DenyList) + Send + Sync>,
}

impl Denials {
    /// Reads the list for the first time, however long that takes. Every new one is given to `apply`.
    pub async fn read_patiently(store: &Store, apply: impl Fn(DenyList) + Send + Sync + 'static) -> Denials {
        let mut denials = Denials { store: store.clone(), known: Vec::new(), apply: Box::new(apply) };
        while let Err(error) = denials.look().await {
            tracing::warn!(%error, "waiting for the list of denied certificates");
            sleep(PAUSE).await;
        }
        denials
    }

    /// Looks for changes at every interval until `stop`.
    pub async fn follow(mut self, every: Duration, stop: CancellationToken) {
        let mut ticks = interval(every.max(Duration::from_millis(10)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.look().await {
                tracing::debug!(%error, "the list of denied certificates could not be read");
            }
        }
    }

    async fn look(&mut self) -> Result<(), ReadError> {
        let denied = self.store.denied_certificates().await?;
        if denied != self.known {
            tracing::info!(entries = denied.len(), "the list of denied certificates has changed");
            (self.apply)(list(&denied));
            self.known = denied;
        }
        Ok(())
    }
}

fn list(denied: &[DeniedCertificates]) -> DenyList {
    let mut list = DenyList::default();
    for entry in denied {
        match entry {
            DeniedCertificates::Name { name, begun_until } => {
                let until = Timestamp::from_microsecond(*begun_until).unwrap_or(Timestamp::MAX);
                list.deny_name(name, until);
            }
            DeniedCertificates::Fingerprint(fingerprint) => list.deny_fingerprint(fingerprint),
        }
    }
    list
}
