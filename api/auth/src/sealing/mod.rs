//! Sealing: what makes the contents of a Secret unreadable for everybody who can only read the database.
//!
//! # What it guarantees
//!
//! * Contents are encrypted and authenticated with AES-256-GCM under a random nonce before they leave the
//!   process. The database, its replicas, dumps and write-ahead log, and whoever listens in between, see
//!   ciphertext.
//! * A sealed payload opens only as what it was sealed as: the id of the key, the kind, namespace, name and uid
//!   of the object are authenticated with it ([`Subject`]). Moved to another object (also one of the same
//!   name, created later), shortened, or changed in any bit, it does not open.
//! * Equal contents of one object have equal digests, whichever key they are sealed with; contents of
//!   different objects never do. The digest is HMAC-SHA-256, so without its key it is good for nothing.
//! * Neither errors nor `Debug` ever show a key or contents. Key material and opened contents are wiped from
//!   memory when they are dropped.
//!
//! # What it does not
//!
//! It hides neither that a Secret exists nor roughly how large it is, nor that its contents came back to what
//! they were before. It does not keep the database from putting an older payload of the *same* object back:
//! the order of changes is the store's affair. It does not protect from who can read the key file or the
//! memory of a process that holds it.
//!
//! # Keys and their rotation
//!
//! A [`KeyRing`] holds several keys: one seals, all open. A payload names its key, so old and new ones live
//! side by side until everything was sealed anew. [`SecretKeys`] is the ring of a process that follows its
//! file, so that none of the steps needs a restart; what it sees to is said there. The digest has a secret of its own in the ring, which
//! rotation leaves alone: otherwise every digest would change with the key, an unchanged Secret would look
//! changed to whoever compares digests (a gateway would push it again), and digests made before and after
//! could not be compared. Who has reason to fear for that secret (the whole file was read by a stranger) makes
//! a new ring's worth of secrets: with another digest secret, re-sealing brings the digests up to date too.
//!
//! Every use has its own key, derived (HKDF-SHA-256) from the secret in the file, so that a secret that
//! somebody puts in two lines still makes two different keys. Random nonces are good for 2^32 payloads per
//! key; a key that is rotated once a year may seal a hundred a second.
//!
//! # Refused
//!
//! Encryption in the database (its log, its statistics and its administrators would see the contents and the
//! key), deterministic encryption in place of a digest (the key would decide over equality), a key per
//! Secret wrapped by a master key (a second layer of the same thing while the master key lies in a file).

mod file;
mod keys;
mod ring;

use std::path::PathBuf;

use horchestra_core::kind::Key;

pub use file::RingFile;
pub use keys::SecretKeys;
pub use ring::KeyRing;

/// The object that contents belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    pub key: &'a Key,
    pub uid: [u8; 16],
}

impl Subject<'_> {
    /// What is authenticated beside the contents; every part with its length, so that no two subjects read
    /// the same.
    fn bytes(&self, purpose: &str, key_id: &str) -> Vec<u8> {
        let kind = self.key.kind;
        let parts = [
            purpose.as_bytes(),
            key_id.as_bytes(),
            kind.group().as_bytes(),
            kind.name().as_bytes(),
            self.key.namespace.as_bytes(),
            self.key.name.as_bytes(),
            &self.uid,
        ];
        let mut bytes = Vec::with_capacity(192);
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

/// Why contents could not be sealed or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("they are sealed with the key {id:?}, which this process does not hold")]
    UnknownKey { id: String },
    /// Changed, cut, moved from another object, or sealed with another key of the same id.
    #[error("they do not open: the stored bytes were changed, or belong to another object")]
    Broken,
    #[error("they are sealed in a form that this version does not know")]
    Form,
    #[error("the cryptographic library failed")]
    Library,
}

/// Why a key file cannot be used or changed.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error("cannot {doing} the key file {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write the key file {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: crate::pki::PkiError,
    },
    #[error("the key file {} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("the key file {} can be read by others (mode {mode:04o}): chmod 600 it", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the key file {} belongs to user {owner}, who is neither this process's user nor root: chown it", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("line {line} of the key file: {why}")]
    Line { line: usize, why: &'static str },
    #[error("the key file has no line that begins with {what:?}")]
    Missing { what: &'static str },
    #[error("the key file has no key {id:?}")]
    NoSuchKey { id: String },
    #[error("the key {id:?} is the one that seals, or is about to: let another one seal first")]
    Seals { id: String },
    /// Refused to a process that runs.
    #[error(
        "the key file holds none of the keys in use: it is that of another system, or some steps of a rotation were missed; start this process anew if it is right"
    )]
    Stranger,
    #[error("the key file has another secret for the key {id:?} than the one in use: give new keys new ids")]
    Reused { id: String },
    #[error("that moment is too far away")]
    Moment,
    #[error("the random source failed")]
    Random,
    #[error("the cryptographic library refused a key")]
    Library,
}
