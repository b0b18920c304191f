//! Sealing anew, with the key that seals now.
//!
//! Every sealed body is opened, heads first, then the log; what is sealed with another key, or has a digest
//! that was made with another digest secret, is replaced in place. No object changes: no revision, no watch
//! event, no push to a node. Running it again does nothing, except for what was written under an old key
//! meanwhile; running it twice at once, or stopping it anywhere, does no harm.
//!
//! A body that a writer replaces in between is looked at again. As long as there are processes that still
//! seal with an old key there is no end to that, so the number of rounds is bounded and what is left is
//! reported.

use horchestra_auth::KeyRing;
use horchestra_core::sealed::Seal;
use horchestra_store::sealing::{KeyUse, Resealed, SealedBody, sealed_kinds};
use horchestra_store::{Backend, BackendError};

use super::{Unusable, open_body, seal_body};

/// Bodies that are read at a time.
const PAGE: usize = 32;
/// Bytes of bodies that are replaced at a time: heads are replaced under the lock that writers wait for.
const BYTES: usize = 1 << 20;
/// Rounds over the heads while writers interfere.
const ROUNDS: usize = 10;
/// Failures that are kept with their names.
const NAMED: usize = 20;

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resealing {
    /// Bodies of objects, and of the log, that were replaced.
    pub objects: u64,
    pub log: u64,
    /// Bodies that were in order.
    pub current: u64,
    /// Bodies that do not open.
    pub failed: u64,
    /// The first of those, and why.
    pub failures: Vec<(String, Unusable)>,
    /// Objects that are still sealed with other keys than the one that seals.
    pub left: Vec<KeyUse>,
}

impl Resealing {
    /// Whether no key but the one that seals is needed any more.
    pub fn complete(&self) -> bool {
        self.failed == 0 && self.left.is_empty()
    }
}

/// Seals everything with the key that seals.
pub async fn reseal(backend: &dyn Backend, ring: &KeyRing) -> Result<Resealing, BackendError> {
    reseal_telling(backend, ring, &|_, _| {}).await
}

/// As [`reseal`], telling how far it has come: bodies that were looked at, or revisions of so many.
pub async fn reseal_telling(
    backend: &dyn Backend,
    ring: &KeyRing,
    tell: &(dyn Fn(u64, u64) + Sync),
) -> Result<Resealing, BackendError> {
    let mut done = Resealing::default();
    let mut looked_at = 0;
    for kind in sealed_kinds() {
        for number in 1..=ROUNDS {
            // What is in order, or broken, counts once.
            let mut round = Resealing::default();
            let mut missed = 0;
            let mut after = (String::new(), String::new());
            loop {
                let page = backend.sealed_heads(kind, (&after.0, &after.1), PAGE).await?;
                let Some(last) = page.last() else { break };
                after = (last.key.namespace.clone(), last.key.name.clone());
                looked_at += page.len() as u64;
                tell(looked_at, 0);
                let (replaced, tried) = replace(backend, ring, page, &mut round).await?;
                round.objects += replaced;
                missed += tried - replaced;
            }
            done.objects += round.objects;
            if missed == 0 || number == ROUNDS {
                done.current += round.current;
                done.failed += round.failed;
                done.failures.append(&mut round.failures);
                break;
            }
        }
        let end = backend.head().await?.revision;
        let mut after = 0;
        while after < end {
            let stretch = backend.sealed_log(kind, after, PAGE).await?;
            let (replaced, _) = replace(backend, ring, stretch.bodies, &mut done).await?;
            done.log += replaced;
            if stretch.upto <= after {
                break;
            }
            after = stretch.upto;
            tell(after.unsigned_abs(), end.unsigned_abs());
        }
    }
    done.left = backend.key_use().await?;
    done.left.retain(|used| used.key_id != ring.sealing_key());
    Ok(done)
}

/// Replaces what has to be; answers how many bodies were, and how many were to be.
async fn replace(
    backend: &dyn Backend,
    ring: &KeyRing,
    bodies: Vec<SealedBody>,
    done: &mut Resealing,
) -> Result<(u64, u64), BackendError> {
    let (mut replaced, mut tried) = (0, 0);
    let mut waiting: Vec<Resealed> = Vec::new();
    let mut bytes = 0;
    for old in bodies {
        match again(ring, &old) {
            Ok(None) => done.current += 1,
            Ok(Some(body)) => {
                bytes += body.len();
                waiting.push(Resealed { old, body });
                tried += 1;
            }
            Err(why) => {
                done.failed += 1;
                if done.failures.len() < NAMED {
                    done.failures.push((format!("{} at revision {}", old.key, old.revision), why));
                }
            }
        }
        if bytes > BYTES {
            replaced += backend.reseal(&std::mem::take(&mut waiting)).await? as u64;
            bytes = 0;
        }
    }
    if !waiting.is_empty() {
        replaced += backend.reseal(&waiting).await? as u64;
    }
    Ok((replaced, tried))
}

/// The body sealed anew; `None` when that would change nothing.
fn again(ring: &KeyRing, old: &SealedBody) -> Result<Option<bytes::Bytes>, Unusable> {
    let seal = Seal::of(&old.body).ok_or(Unusable::Shape)?;
    let opened = open_body(Some(ring), &old.key, old.uid, &old.body)?;
    let (body, managed) = opened.ok_or(Unusable::Shape)?;
    let fresh = seal_body(ring, &old.key, old.uid, &body, managed.as_deref())?;
    let same = Seal::of(&fresh).is_some_and(|fresh| fresh.key == seal.key && fresh.digest == seal.digest);
    Ok((!same).then_some(fresh))
}
