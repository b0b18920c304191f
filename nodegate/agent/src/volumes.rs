//! Directories behind persistent volumes, and what happens to them when a volume is
//! gone.
//!
//! The ledger of what was made here survives restarts: without it, data of a volume
//! that is deleted while the agent is down would stay for ever. Data is removed only
//! when all of this holds: the push names volumes at all, this one is not among
//! them, it was made here, its policy is not to retain, and no wanted workload still
//! mounts it. An empty list is taken for a gateway that knows nothing, not for an
//! order to delete everything.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

use crate::desired::{Desired, Source, Volume, volume_id};
use crate::units::ledger::write_atomically;

/// The volumes that this node has made. Without a directory they exist in memory
/// only, for simulated nodes.
#[derive(Debug)]
pub struct Volumes {
    root: Option<PathBuf>,
    /// Whether data is retained, by volume id.
    ledger: Mutex<BTreeMap<String, bool>>,
}

impl Volumes {
    /// Volumes below this directory.
    pub fn open(root: Option<PathBuf>) -> io::Result<Self> {
        let mut ledger = BTreeMap::new();
        if let Some(root) = &root {
            std::fs::create_dir_all(root)?;
            match std::fs::read(root.join("ledger.json")) {
                Ok(text) => ledger = serde_json::from_slice(&text)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { root, ledger: Mutex::new(ledger) })
    }

    /// Makes this node's volumes, and takes over changes of their policy.
    pub fn provision(&self, volumes: &[Volume]) -> io::Result<()> {
        let mut ledger = self.ledger.lock();
        let mut changed = false;
        for volume in volumes {
            if ledger.get(&volume.id) == Some(&volume.retain) {
                continue;
            }
            if let Some(path) = self.path(&volume.id) {
                std::fs::create_dir_all(path)?;
            }
            ledger.insert(volume.id.clone(), volume.retain);
            changed = true;
        }
        if changed { self.save(&ledger) } else { Ok(()) }
    }

    /// Removes data of volumes that are gone; answers the ids of those, and whether their data was kept.
    pub fn reclaim(&self, desired: &Desired) -> io::Result<Vec<(String, bool)>> {
        if desired.volume_ids.is_empty() {
            return Ok(Vec::new());
        }
        let mounted: HashSet<String> = desired
            .apps
            .iter()
            .flat_map(|app| {
                app.mounts.iter().filter_map(|mount| match &mount.source {
                    Source::Volume { name, .. } => Some(volume_id(&app.namespace, name)),
                    _ => None,
                })
            })
            .collect();
        let mut ledger = self.ledger.lock();
        let gone: Vec<(String, bool)> = ledger
            .iter()
            .filter(|(id, _)| !desired.volume_ids.contains(*id) && !mounted.contains(*id))
            .map(|(id, retain)| (id.clone(), *retain))
            .collect();
        if gone.is_empty() {
            return Ok(gone);
        }
        for (id, retain) in &gone {
            if !retain && let Some(path) = self.path(id) {
                match std::fs::remove_dir_all(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => tracing::info!(volume = id, "removed the data of a volume that is gone"),
                }
            }
            ledger.remove(id);
        }
        self.save(&ledger)?;
        Ok(gone)
    }

    /// Where a volume's data is. `None` when it has no place, or a name that could
    /// lead elsewhere.
    pub fn path(&self, id: &str) -> Option<PathBuf> {
        let safe = !id.is_empty() && !id.starts_with('.') && !id.contains(['/', '\0']);
        let root = self.root.as_ref().filter(|_| safe)?;
        Some(root.join("data").join(id))
    }

    /// Ids of the volumes made here.
    pub fn made(&self) -> Vec<String> {
        self.ledger.lock().keys().cloned().collect()
    }

    fn save(&self, ledger: &BTreeMap<String, bool>) -> io::Result<()> {
        match &self.root {
            Some(root) => write_atomically(&root.join("ledger.json"), ledger),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use horchestra_proto::node::v1::DesiredState;
    use serde_json::json;

    use super::*;

    fn push(volumes: &[(&str, &str, &str)], mounts: &[&str]) -> Desired {
        let volume = |(name, node, policy): &(&str, &str, &str)| {
            json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"node": node, "reclaimPolicy": policy}})
                .to_string()
                .into()
        };
        let app = |name: &&str| {
            json!({"metadata": {"namespace": "shop", "name": "db", "uid": uuid::Uuid::new_v4()},
                   "spec": {"placement": {"nodeName": "n1"},
                            "volumes": [{"mountPath": "/d", "volume": {"type": "pv", "name": name}}]}})
            .to_string()
            .into()
        };
        let state = DesiredState {
            persistent_volumes: volumes.iter().map(volume).collect(),
            applications: mounts.iter().map(app).collect(),
            ..DesiredState::default()
        };
        Desired::read(&state, "n1")
    }

    #[test]
    fn data_goes_only_when_nothing_speaks_for_it() {
        let other = [("other", "n2", "")];
        for (what, policy, then, kept_data, kept_entry) in [
            ("still there", "", push(&[("v", "n1", ""), ("other", "n2", "")], &[]), true, true),
            ("moved to another node, still listed", "", push(&[("v", "n2", "")], &[]), true, true),
            ("gone", "", push(&other, &[]), false, false),
            ("gone, Delete spelled out", "Delete", push(&other, &[]), false, false),
            ("gone, retained", "Retain", push(&other, &[]), true, false),
            ("gone, still mounted", "", push(&other, &["v"]), true, true),
            ("empty list", "", push(&[], &[]), true, true),
        ] {
            let scratch = tempfile::tempdir().expect("a directory");
            let root = Some(scratch.path().to_owned());
            let volumes = Volumes::open(root.clone()).expect("opens");
            volumes.provision(&push(&[("v", "n1", policy)], &[]).volumes).expect("provisions");
            let data = volumes.path("shop_v").expect("a path");
            std::fs::write(data.join("file"), "precious").expect("writes");

            // A restart in between must not forget what was made.
            let volumes = Volumes::open(root).expect("opens");
            volumes.provision(&then.volumes).expect("provisions");
            volumes.reclaim(&then).expect("reclaims");
            assert_eq!(data.join("file").exists(), kept_data, "{what}");
            assert_eq!(volumes.made().contains(&"shop_v".to_owned()), kept_entry, "{what}");
        }
    }

    #[test]
    fn no_volume_leads_out_of_its_place() {
        let scratch = tempfile::tempdir().expect("a directory");
        let volumes = Volumes::open(Some(scratch.path().to_owned())).expect("opens");
        for id in ["", "..", "../x", "a/b", ".hidden"] {
            assert_eq!(volumes.path(id), None, "{id}");
        }
    }
}
