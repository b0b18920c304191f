//! Sealed bodies, as far as the store knows of them.
//!
//! To the store a sealed body is a body like any other, whose contents nobody down here can read. What it does
//! promise of the kinds concerned ([`Kind::is_sealed`]): an unsealed body is never stored, not even by a
//! program that tries; history and tombstones keep no bodies; the key and the digest of every object can be
//! asked for in SQL; and a body can be put in the place of another that differs in nothing but its seal,
//! without a revision, so that keys can be changed under running readers and writers.
//!
//! Such a replacement names the very bytes that it replaces, and does nothing when they are no longer there.
//! A writer that comes in between is therefore never undone; whoever re-seals looks again. Caches do not hear
//! of it, which is no harm: what they hold says the same, under the key that their process has.

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object;
use horchestra_core::sealed::Seal;
use uuid::Uuid;

use crate::types::{Draft, Revision};

/// Where a sealed body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Place {
    /// The object, at this revision.
    Head = 1,
    /// The row of the log.
    Log = 2,
    /// The state before the change, in the row of the log.
    Before = 3,
}

/// A sealed body where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBody {
    pub place: Place,
    pub revision: Revision,
    pub key: Key,
    pub uid: Uuid,
    pub body: Bytes,
}

/// A body, and the one that is to stand in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resealed {
    pub old: SealedBody,
    pub body: Bytes,
}

/// Sealed bodies of a stretch of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedStretch {
    pub bodies: Vec<SealedBody>,
    /// Everything up to here was looked at.
    pub upto: Revision,
}

/// How many objects are sealed with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyUse {
    pub key_id: String,
    pub objects: u64,
}

/// What is wrong with the seal of a draft.
pub(crate) fn check(draft: &Draft) -> Result<(), String> {
    if draft.key.kind.is_sealed() && Seal::of(&draft.body).is_none() {
        return Err(format!("the contents of {} are not sealed", draft.key));
    }
    Ok(())
}

/// What is wrong with a replacement.
pub(crate) fn check_resealed(resealed: &Resealed) -> Result<(), String> {
    let read = |body: &Bytes| {
        let mut object = object::decode(body, 0).ok()?;
        Seal::take(&mut object)?;
        Some(object)
    };
    match (read(&resealed.old.body), read(&resealed.body)) {
        (Some(old), Some(fresh)) if old == fresh => Ok(()),
        (Some(_), Some(_)) => Err("a body may only be sealed anew, not changed".to_owned()),
        _ => Err(format!("the contents of {} are not sealed", resealed.old.key)),
    }
}

/// The kinds whose bodies are sealed.
pub fn sealed_kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.is_sealed())
}
