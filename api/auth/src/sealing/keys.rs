//! The keys of a process that runs while its key file changes.
//!
//! # What it guarantees
//!
//! * A changed file is in use at the next look at it, without a restart, and as a whole or not at all: a file
//!   that does not read, that holds none of the keys in use, or that has another secret under a known id leaves
//!   the keys as they were, and is an error at every look until it is mended.
//! * A key that leaves the file seals no more, and goes on opening for as long as this process runs: its caches
//!   hold bodies from before they were sealed anew in the database. Taking a key out is the end of a
//!   rotation; it takes nothing away from who could read a moment ago.
//! * A payload whose key is not known is not refused before the file was looked at again. So where several
//!   processes share a file, whichever sees a change first, the others can read what it seals at once.
//!
//! # What keeps processes from sealing with a key that others do not know
//!
//! A key that was added does not seal. The command that lets it seal names a moment that lies ahead, and the
//! file says so; by then every process that reads the file, or is given a copy, knows the key and the
//! moment. Unlike a time that each process would count by itself this is the same for all, and for those that
//! start in between. Where files are copied and a copy is late, the key is known from the step before.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::{KeyRing, RingError, RingFile};

/// The ring of a process, and the file that it follows.
pub struct SecretKeys {
    ring: ArcSwap<KeyRing>,
    file: Option<Followed>,
    given_up: BTreeSet<String>,
}

struct Followed {
    path: PathBuf,
    seen: Mutex<Seen>,
}

struct Seen {
    text: Zeroizing<String>,
    failing: bool,
}

impl std::fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretKeys").field("ring", &self.ring.load()).finish_non_exhaustive()
    }
}

impl From<Arc<KeyRing>> for SecretKeys {
    /// Keys that stay as they are.
    fn from(ring: Arc<KeyRing>) -> SecretKeys {
        SecretKeys { ring: ArcSwap::new(ring), file: None, given_up: BTreeSet::new() }
    }
}

impl SecretKeys {
    /// The keys of a file, which is followed from here on by whoever calls [`SecretKeys::reload`].
    pub fn load(path: &Path) -> Result<SecretKeys, RingError> {
        let text = RingFile::read(path)?;
        let ring = KeyRing::new(&RingFile::parse(&text)?)?;
        let seen = Mutex::new(Seen { text, failing: false });
        let file = Some(Followed { path: path.to_owned(), seen });
        Ok(SecretKeys { ring: ArcSwap::from_pointee(ring), file, given_up: BTreeSet::new() })
    }

    /// Keys that are lost, as the operator says: what they sealed will not open again.
    pub fn give_up(&mut self, ids: impl IntoIterator<Item = String>) {
        self.given_up.extend(ids);
    }

    /// Whether the key was given up.
    pub fn has_given_up(&self, id: &str) -> bool {
        self.given_up.contains(id)
    }

    /// The ring at present.
    pub fn ring(&self) -> Arc<KeyRing> {
        self.ring.load_full()
    }

    /// Looks at the file. `true`: it had changed, and its keys are in use now. On an error the previous ones
    /// are.
    pub fn reload(&self) -> Result<bool, RingError> {
        let Some(file) = &self.file else { return Ok(false) };
        let mut seen = file.seen.lock();
        let changed = self.take_up(file, &mut seen);
        seen.failing = changed.is_err();
        changed
    }

    fn take_up(&self, file: &Followed, seen: &mut Seen) -> Result<bool, RingError> {
        let text = RingFile::read(&file.path)?;
        if text == seen.text {
            return Ok(false);
        }
        let ring = KeyRing::after(&RingFile::parse(&text)?, &self.ring.load())?;
        self.ring.store(Arc::new(ring));
        seen.text = text;
        Ok(true)
    }

    /// A ring that holds this key, after another look at the file if need be. A key that was given up is not
    /// looked for.
    pub fn look_for(&self, id: &str) -> Option<Arc<KeyRing>> {
        let with = |ring: Arc<KeyRing>| ring.opens(id).then_some(ring);
        // Somebody else may have looked meanwhile.
        if let Some(ring) = with(self.ring()) {
            return Some(ring);
        }
        if self.given_up.contains(id) {
            return None;
        }
        if let Err(error) = self.reload() {
            tracing::debug!(%error, "the keys of Secrets could not be read again");
        }
        with(self.ring())
    }

    /// Whether the file could not be used at the last look.
    pub fn failing(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.seen.lock().failing)
    }
}
