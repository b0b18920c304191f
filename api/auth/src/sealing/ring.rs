//! The keys at work.

use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use horchestra_core::sealed::Seal;
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::file::{Mark, SECRET, Secret, sealing_at};
use super::{RingError, RingFile, SealError, Subject};

/// First byte of a payload: how the rest is made.
const FORM: u8 = 1;
/// Bytes that AES-GCM adds.
const TAG_LEN: usize = 16;

const PAYLOAD: &str = "horchestra/secret/payload";
const DIGEST: &str = "horchestra/secret/digest";
const FINGERPRINT: &str = "horchestra/secret/fingerprint";

/// Keys: one seals, all open.
pub struct KeyRing {
    /// Those of the file in its order, and behind them those that it held before.
    keys: Vec<Held>,
    /// How many of them the file holds.
    filed: usize,
    digest: hmac::Key,
}

#[derive(Clone)]
struct Held {
    id: String,
    key: Arc<RandomizedNonceKey>,
    /// Tells two secrets of one id apart, and nothing else about them.
    fingerprint: Zeroizing<[u8; SECRET]>,
    seals: Mark,
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&str> = self.ids().collect();
        f.debug_struct("KeyRing")
            .field("ids", &ids)
            .field("sealing", &self.sealing_key())
            .finish_non_exhaustive()
    }
}

impl KeyRing {
    /// The ring of a file.
    pub fn load(path: &Path) -> Result<KeyRing, RingError> {
        KeyRing::new(&RingFile::load(path)?)
    }

    /// A ring of its own, which is gone with the value: for tests and simulations.
    pub fn ephemeral() -> Result<KeyRing, RingError> {
        KeyRing::new(&RingFile::generate()?)
    }

    pub fn new(file: &RingFile) -> Result<KeyRing, RingError> {
        let mut keys = Vec::with_capacity(file.keys.len());
        for line in &file.keys {
            let bytes = derive(&line.secret, PAYLOAD)?;
            let key = RandomizedNonceKey::new(&AES_256_GCM, &*bytes).map_err(|_| RingError::Library)?;
            let fingerprint = derive(&line.secret, FINGERPRINT)?;
            keys.push(Held { id: line.id.clone(), key: Arc::new(key), fingerprint, seals: line.seals });
        }
        let digest = hmac::Key::new(hmac::HMAC_SHA256, &*derive(&file.digest, DIGEST)?);
        Ok(KeyRing { filed: keys.len(), keys, digest })
    }

    /// The ring of a file that has changed. Keys that are no longer in it go on opening.
    pub(super) fn after(file: &RingFile, before: &KeyRing) -> Result<KeyRing, RingError> {
        let mut ring = KeyRing::new(file)?;
        let mut common = false;
        for old in &before.keys {
            match ring.keys.iter().find(|key| key.id == old.id) {
                Some(found) if found.fingerprint != old.fingerprint => {
                    return Err(RingError::Reused { id: old.id.clone() });
                }
                Some(_) => common = true,
                None => ring.keys.push(Held { seals: None, ..old.clone() }),
            }
        }
        if common { Ok(ring) } else { Err(RingError::Stranger) }
    }

    /// Id of the key that seals.
    pub fn sealing_key(&self) -> &str {
        &self.sealing().id
    }

    fn sealing(&self) -> &Held {
        &self.keys[sealing_at(self.keys[..self.filed].iter().map(|key| key.seals), Timestamp::now())]
    }

    /// Ids of the keys in the file.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys[..self.filed].iter().map(|key| key.id.as_str())
    }

    /// Whether the file holds the key.
    pub fn holds(&self, id: &str) -> bool {
        self.ids().any(|held| held == id)
    }

    /// Whether what this key sealed can be opened: by the file, or by what it held before.
    pub fn opens(&self, id: &str) -> bool {
        self.keys.iter().any(|held| held.id == id)
    }

    /// The keyed digest of contents in their canonical form. It depends on the object, so that it does not
    /// tell whether two objects hold the same; it does not depend on the key that seals.
    pub fn digest(&self, subject: &Subject<'_>, canonical: &[u8]) -> [u8; 32] {
        let mut mac = hmac::Context::with_key(&self.digest);
        mac.update(&subject.bytes(DIGEST, ""));
        mac.update(canonical);
        let mut digest = [0; 32];
        digest.copy_from_slice(mac.sign().as_ref());
        digest
    }

    /// Seals contents with the key that seals. `digest` is kept beside them.
    pub fn seal(&self, subject: &Subject<'_>, contents: &[u8], digest: [u8; 32]) -> Result<Seal, SealError> {
        let Held { id, key, .. } = self.sealing();
        // The tag fits: what a growing buffer leaves behind would not be wiped.
        let mut bytes = Zeroizing::new(Vec::with_capacity(contents.len() + TAG_LEN));
        bytes.extend_from_slice(contents);
        let aad = Aad::from(subject.bytes(PAYLOAD, id));
        let nonce = key.seal_in_place_append_tag(aad, &mut *bytes).map_err(|_| SealError::Library)?;
        let mut payload = Vec::with_capacity(1 + NONCE_LEN + bytes.len());
        payload.push(FORM);
        payload.extend_from_slice(nonce.as_ref());
        payload.extend_from_slice(&bytes);
        Ok(Seal { key: id.clone(), digest, payload })
    }

    /// Opens sealed contents of this object.
    pub fn open(&self, subject: &Subject<'_>, seal: &Seal) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let found = self.keys.iter().find(|held| held.id == seal.key);
        let Some(Held { id, key, .. }) = found else {
            return Err(SealError::UnknownKey { id: seal.key.clone() });
        };
        let (form, rest) = seal.payload.split_first().ok_or(SealError::Broken)?;
        if *form != FORM {
            return Err(SealError::Form);
        }
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or(SealError::Broken)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Broken)?;
        let mut bytes = Zeroizing::new(sealed.to_vec());
        let aad = Aad::from(subject.bytes(PAYLOAD, id));
        let length = key.open_in_place(nonce, aad, &mut bytes).map_err(|_| SealError::Broken)?.len();
        bytes.truncate(length);
        Ok(bytes)
    }
}

/// A key of its own for each purpose.
fn derive(secret: &Secret, purpose: &str) -> Result<Zeroizing<[u8; SECRET]>, RingError> {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            SECRET
        }
    }
    let derived = Salt::new(HKDF_SHA256, b"horchestra").extract(secret.as_slice());
    let info = [purpose.as_bytes()];
    let mut key = Zeroizing::new([0; SECRET]);
    derived.expand(&info, Length).and_then(|okm| okm.fill(&mut *key)).map_err(|_| RingError::Library)?;
    Ok(key)
}
