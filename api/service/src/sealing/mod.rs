//! Sealed objects at the edge of the process.
//!
//! Objects of a sealed kind are in the clear only between a client (or a node) and this module: what is
//! handed out is opened per answer, what is written is sealed just before the commit. Caches, the change log
//! and everything that works on them hold sealed bodies (see [`horchestra_core::sealed`] for their form, and
//! [`horchestra_auth::sealing`] for the cryptography).
//!
//! * A process without keys neither reads nor writes contents: 503, naming the option that is missing. It
//!   still sees the clear part, so it can list, select, follow owners and delete.
//! * An update is judged, compared and numbered on the opened objects, so generation, "nothing changed",
//!   `immutable` and patches mean what they mean for every other kind. Sealing comes last, with a fresh nonce:
//!   bodies that say the same are different bytes, and are compared by their digest wherever they are not
//!   opened.
//! * A write that was planned on the clear part alone (a deletion mark, a finalizer taken away) carries the
//!   seal over as it was; it needs no key, and cannot touch the contents.
//! * `managedFields` of a sealed object are sealed with it: they name the keys of its data.
//!
//! An opened entry has no `sealed` member in its body; that is how the two are told apart.
//!
//! # Keys that change
//!
//! A process follows its key file ([`horchestra_auth::SecretKeys`]); every body is opened with the ring of that
//! moment, and what is sealed with a key that is not in it is tried again after another look at the file.
//! [`reload`] is the step that processes take again and again, and tells an operator who has taken a key out too
//! early that stored Secrets still need it.
//!
//! # What does not open
//!
//! Asked for by name, an object whose contents do not open is an error that names it and says why: 503 while
//! another replica, or this one in a moment, may have the key, 500 when the stored bytes are not what was sealed.
//! In the first case a list or a watch is refused as well, and whoever comes back gets it whole. In the second
//! there is nothing to wait for, and one broken object would take all others of every list from everybody, for
//! good. So [`closed`] stands in its place: everything that is clear (name, labels, owners, type), no contents, and
//! the annotation [`UNREADABLE`] with the reason; a list also carries a warning that names it. The same goes for
//! keys that an operator has declared lost at the start (`--allow-missing-secret-keys`). Left out it would look
//! deleted, to controllers above all, which then make another one or take down what used it; and what stands in
//! its place cannot be taken for the object and written back, since a write has to open the stored one first, nor
//! be restored elsewhere as an empty Secret, since that annotation is refused in what clients write.

mod closed;
mod keys;
mod reseal;

use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::sealing::{SealError, Subject};
use horchestra_auth::{KeyRing, SecretKeys};
use horchestra_core::kind::Key;
use horchestra_core::object::{self, Object};
use horchestra_core::sealed::{self, Seal};
use horchestra_core::status::Status;
use horchestra_store::{Draft, Entry, Op};
use serde::Deserialize;
use serde_json::Map;
use serde_json::value::RawValue;
use uuid::Uuid;

pub(crate) use closed::Unopened;
pub use horchestra_core::sealed::UNREADABLE;
pub use keys::{MissingKeys, missing_keys, missing_keys_patiently, reload};
pub use reseal::{Resealing, reseal, reseal_telling};

use crate::service::Service;

/// Seconds after which a client may try another replica.
const RETRY_WITHOUT_KEYS: u32 = 10;

/// What is sealed: the contents, and the managers of their fields.
#[derive(Deserialize)]
struct Plain<'a> {
    #[serde(borrow, default)]
    managed: Option<&'a RawValue>,
    object: Map<String, serde_json::Value>,
}

/// What could not be done with a sealed body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("this process was started without --secret-keys")]
    NoKeys,
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("what was sealed is no object")]
    Shape,
}

fn subject(key: &Key, uid: Uuid) -> Subject<'_> {
    Subject { key, uid: uid.into_bytes() }
}

/// The body with its contents sealed in place.
fn seal_body(
    ring: &KeyRing,
    key: &Key,
    uid: Uuid,
    body: &[u8],
    managed: Option<&[u8]>,
) -> Result<Bytes, Unusable> {
    let object = object::decode(body, 0).map_err(|_| Unusable::Shape)?;
    let (mut clear, contents) = sealed::split(object);
    let contents = zeroized(serde_json::to_vec(&contents.0).map_err(|_| Unusable::Shape)?);
    let subject = subject(key, uid);
    let digest = ring.digest(&subject, &contents);
    let plain = {
        let (managed, open) = match managed {
            Some(managed) => (managed, br#"{"managed":"#.as_slice()),
            None => (b"".as_slice(), b"{".as_slice()),
        };
        let middle =
            if managed.is_empty() { br#""object":"#.as_slice() } else { br#","object":"#.as_slice() };
        let parts = [open, managed, middle, &contents, b"}"];
        // Of its final size from the start: what a growing buffer leaves behind would not be wiped.
        let mut plain = zeroized(Vec::with_capacity(parts.iter().map(|part| part.len()).sum()));
        for part in parts {
            plain.extend_from_slice(part);
        }
        plain
    };
    ring.seal(&subject, &plain, digest)?.put(&mut clear);
    Ok(object::encode(key.kind, &clear))
}

/// The draft of an object of a sealed kind as the store takes it, by whoever writes to the store itself.
pub(crate) fn sealed(ring: Option<&KeyRing>, draft: &Draft) -> Result<Draft, Unusable> {
    let ring = ring.ok_or(Unusable::NoKeys)?;
    let body = seal_body(ring, &draft.key, draft.uid, &draft.body, draft.managed.as_deref())?;
    Ok(Draft { body, managed: None, ..draft.clone() })
}

/// The whole object of a sealed body, and its managers. `Ok(None)`: the body is not sealed.
fn open_body(
    ring: Option<&KeyRing>,
    key: &Key,
    uid: Uuid,
    body: &[u8],
) -> Result<Option<(Bytes, Option<Bytes>)>, Unusable> {
    let opened = open_tree(ring, key, uid, body)?;
    Ok(opened.map(|(whole, managed)| (object::encode(key.kind, &whole), managed)))
}

/// As [`open_body`], as a tree.
fn open_tree(
    ring: Option<&KeyRing>,
    key: &Key,
    uid: Uuid,
    body: &[u8],
) -> Result<Option<(Object, Option<Bytes>)>, Unusable> {
    let mut clear = object::decode(body, 0).map_err(|_| Unusable::Shape)?;
    let Some(seal) = Seal::take(&mut clear) else { return Ok(None) };
    let ring = ring.ok_or(Unusable::NoKeys)?;
    let plain = ring.open(&subject(key, uid), &seal)?;
    let plain: Plain<'_> = serde_json::from_slice(&plain).map_err(|_| Unusable::Shape)?;
    let managed = plain.managed.map(|raw| Bytes::copy_from_slice(raw.get().as_bytes()));
    Ok(Some((sealed::join(clear, Object(plain.object)), managed)))
}

/// The entry with what was opened; without, it was open.
fn opened(entry: &Arc<Entry>, found: Option<(Bytes, Option<Bytes>)>) -> Arc<Entry> {
    match found {
        Some((body, managed)) => Arc::new(entry.with_body(body, managed)),
        None => Arc::clone(entry),
    }
}

/// Wiped when it is dropped.
fn zeroized(bytes: Vec<u8>) -> zeroize::Zeroizing<Vec<u8>> {
    zeroize::Zeroizing::new(bytes)
}

impl Unusable {
    fn into_status(self, key: &Key) -> Status {
        match &self {
            Unusable::NoKeys | Unusable::Seal(SealError::UnknownKey { .. }) => {
                tracing::warn!(%key, error = %self, "the contents of an object are not at hand");
                Status::unavailable(
                    format!("the contents of {} cannot be used here: {self}", key.kind.plural()),
                    RETRY_WITHOUT_KEYS,
                )
            }
            Unusable::Seal(_) | Unusable::Shape => {
                tracing::error!(%key, error = %self, "the contents of an object do not open");
                Status::internal(format!("the contents of {key} cannot be used: {self}"))
            }
        }
    }
}

impl Service {
    fn keys(&self) -> Option<&SecretKeys> {
        self.inner.config.secret_keys.as_deref()
    }

    /// Refuses where contents could not be sealed.
    pub(crate) fn require_keys(&self, key: &Key) -> Result<(), Status> {
        match self.keys() {
            None if key.kind.is_sealed() => Err(Unusable::NoKeys.into_status(key)),
            _ => Ok(()),
        }
    }

    /// The entry as clients see it: of a sealed kind with its contents. Anything else, and what is open
    /// already, is returned as it is.
    pub fn open(&self, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
        self.try_open(&entry).map_err(|error| error.into_status(&entry.key))
    }

    fn try_open(&self, entry: &Arc<Entry>) -> Result<Arc<Entry>, Unusable> {
        if !entry.key.kind.is_sealed() {
            return Ok(Arc::clone(entry));
        }
        let found = self.with_ring(|ring| open_body(ring, &entry.key, entry.uid, &entry.body));
        Ok(opened(entry, found?))
    }

    /// The whole object of an entry of a sealed kind as a tree, `resourceVersion` included, `managedFields` not. For
    /// who passes contents on and wants no more copies of them than need be.
    pub fn open_object(&self, entry: &Entry) -> Result<Object, Unusable> {
        match self.with_ring(|ring| open_tree(ring, &entry.key, entry.uid, &entry.body))? {
            Some((mut whole, _)) => {
                whole.set_metadata("resourceVersion", entry.revision.to_string());
                Ok(whole)
            }
            None => entry.object().map_err(|_| Unusable::Shape),
        }
    }

    /// Opens with the ring at present, and with a newer one if that lacks the key.
    fn with_ring<T>(&self, open: impl Fn(Option<&KeyRing>) -> Result<T, Unusable>) -> Result<T, Unusable> {
        let Some(keys) = self.keys() else { return open(None) };
        match open(Some(&keys.ring())) {
            Err(Unusable::Seal(SealError::UnknownKey { id })) => match keys.look_for(&id) {
                Some(ring) => open(Some(&ring)),
                None => Err(SealError::UnknownKey { id }.into()),
            },
            found => found,
        }
    }

    /// As [`Service::seal`], of an operation.
    pub(crate) fn seal_update(&self, op: Op, old: &Entry) -> Result<Op, Status> {
        match op {
            Op::Update { draft, expect, class } => {
                Ok(Op::Update { draft: self.seal(draft, Some(old))?, expect, class })
            }
            other => Ok(other),
        }
    }

    /// The draft as the store takes it. `old` is the entry that it was planned on: where that is sealed, the
    /// write is about the clear part, and the seal stays.
    pub(crate) fn seal(&self, draft: Draft, old: Option<&Entry>) -> Result<Draft, Status> {
        if !draft.key.kind.is_sealed() {
            return Ok(draft);
        }
        if let Some(seal) = old.and_then(|old| Seal::of(&old.body)) {
            return match Seal::of(&draft.body) {
                Some(kept) if kept == seal => Ok(draft),
                _ => Err(Status::internal("the seal of an object got lost on the way")),
            };
        }
        let Some(keys) = self.keys() else { return Err(Unusable::NoKeys.into_status(&draft.key)) };
        sealed(Some(&keys.ring()), &draft).map_err(|error| error.into_status(&draft.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_core::kind::Kind;
    use serde_json::json;

    fn db() -> Key {
        Key::namespaced(Kind::Secret, "shop", "db")
    }

    fn body() -> Bytes {
        let object = json!({
            "metadata": {"name": "db", "namespace": "shop", "uid": "u", "labels": {"a": "b"},
                "annotations": {"note": "s1", "secrets.horchestra.io/path": "p"}},
            "type": "Opaque", "data": {"password": "czI="}, "immutable": true,
        });
        object::encode(Kind::Secret, &Object::from_value(object).unwrap())
    }

    #[test]
    fn a_body_and_its_managers_come_back_and_show_nothing_in_between() {
        let ring = KeyRing::ephemeral().unwrap();
        let uid = Uuid::new_v4();
        for managed in [None, Some(br#"[{"manager":"me","fieldsV1":{"f:password":{}}}]"#.as_slice())] {
            let sealed = seal_body(&ring, &db(), uid, &body(), managed).unwrap();
            let text = std::str::from_utf8(&sealed).unwrap();
            for hidden in ["czI=", "s1", "password", "immutable", "manager"] {
                assert!(!text.contains(hidden), "{hidden} is in {text}");
            }
            for clear in [r#""a":"b""#, "secrets.horchestra.io/path", "Opaque", ring.sealing_key()] {
                assert!(text.contains(clear), "{clear} is not in {text}");
            }
            let (opened, managers) = open_body(Some(&ring), &db(), uid, &sealed).unwrap().expect("sealed");
            assert_eq!((opened, managers.as_deref()), (body(), managed));
            let elsewhere = Key::namespaced(Kind::Secret, "shop", "other");
            let moved = open_body(Some(&ring), &elsewhere, uid, &sealed);
            assert_eq!(moved, Err(Unusable::Seal(SealError::Broken)));
            assert_eq!(open_body(None, &db(), uid, &sealed), Err(Unusable::NoKeys));
        }
        assert_eq!(open_body(None, &db(), uid, &body()), Ok(None), "open already");
    }

    #[test]
    fn the_digest_follows_the_contents_and_nothing_else() {
        let ring = KeyRing::ephemeral().unwrap();
        let uid = Uuid::new_v4();
        let digest = |body: &[u8], managed: Option<&[u8]>| {
            Seal::of(&seal_body(&ring, &db(), uid, body, managed).unwrap()).unwrap().digest
        };
        let changed = |path: &[&str], value: &str| {
            let mut tree: serde_json::Value = serde_json::from_slice(&body()).unwrap();
            let (last, path) = path.split_last().unwrap();
            let place = path.iter().fold(&mut tree, |at, member| &mut at[*member]);
            place[*last] = json!(value);
            digest(tree.to_string().as_bytes(), None)
        };
        let same = digest(&body(), None);
        assert_eq!(digest(&body(), Some(b"[1]")), same, "managers");
        assert_eq!(changed(&["metadata", "labels", "a"], "c"), same, "labels are clear");
        assert_eq!(changed(&["type"], "other"), same, "the type is clear");
        assert_ne!(changed(&["data", "password"], "czM="), same, "data");
        assert_ne!(changed(&["metadata", "annotations", "note"], "s3"), same, "annotations");
    }
}
