//! Which keys are needed, and which are there.

use std::fmt;
use std::time::Duration;

use horchestra_auth::KeyRing;
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
