//! Which keys are needed, and which are there.

use std::fmt;
use std::time::Duration;

use horchestra_auth::sealing::RingError;
use horchestra_auth::{KeyRing, SecretKeys};
use horchestra_store::sealing::KeyUse;
use horchestra_store::{ReadError, Store};

/// Keys that stored objects are sealed with and that a process does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKeys(pub Vec<KeyUse>);

impl fmt::Display for MissingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stored Secrets are sealed with keys that this process does not hold: ")?;
        for (at, KeyUse { key_id, objects }) in self.0.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{key_id:?} ({objects})")?;
        }
        f.write_str("; give it the key file that holds them (--secret-keys)")
    }
}

/// What of the keys that stored objects need is not in the ring.
pub async fn missing_keys(store: &Store, ring: Option<&KeyRing>) -> Result<Option<MissingKeys>, ReadError> {
    let mut used = store.key_use().await?;
    used.retain(|used| !ring.is_some_and(|ring| ring.holds(&used.key_id)));
    Ok((!used.is_empty()).then_some(MissingKeys(used)))
}

/// As [`missing_keys`], and waits for a database that cannot be reached yet.
pub async fn missing_keys_patiently(store: &Store, ring: Option<&KeyRing>) -> Option<MissingKeys> {
    loop {
        match missing_keys(store, ring).await {
            Ok(missing) => return missing,
            Err(error) => {
                tracing::warn!(%error, "waiting for the list of keys that Secrets are sealed with");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Takes up a key file that has changed, and says so when stored Secrets need a key that is no longer in it: this
/// process still has that key, and the next one that starts will not. `true`: it had changed.
pub async fn reload(keys: &SecretKeys, store: &Store) -> Result<bool, RingError> {
    let before = keys.ring();
    if !keys.reload()? {
        return Ok(false);
    }
    let ring = keys.ring();
    tracing::info!(keys = ?ring.ids().collect::<Vec<_>>(), seals = ring.sealing_key(), "the keys of Secrets changed");
    if before.ids().any(|id| !ring.holds(id)) {
        match missing_keys(store, Some(&ring)).await {
            Ok(None) => {}
            Ok(Some(missing)) => tracing::error!(
                "{missing}. What was taken out of the file goes on opening here until this process ends: put it back, \
                 and run `horchestra-api reseal` first"
            ),
            Err(error) => {
                tracing::warn!(%error, "whether a key that was taken out is still needed is not known");
            }
        }
    }
    Ok(true)
}
