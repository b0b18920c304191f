//! The key file.
//!
//! ```text
//! # Anything after a hash sign is a comment.
//! digest <secret>
//! key 2026-01-07-5c2f9a10 <secret> seals
//! key 2026-11-29-a41b66e3 <secret> seals 2026-11-29T12:00:00Z
//! ```
//!
//! A secret is 32 random bytes in base64. There is one `digest` line, and one `key` line for each key that
//! opens. The key marked `seals` is the one that new payloads are sealed with, from the moment on that stands
//! behind the mark: of several whose moment has come it is the one with the latest. So a file that says today
//! which key seals from tomorrow on says the same to everybody who has it by then. Without a mark it is the last
//! key, so keys are added at the end. Ids are up to 64 letters, digits, dots, dashes and underscores; they
//! stand beside every payload and in error messages, so there is nothing secret about them.
//!
//! The file must be readable by its owner alone (mode 0600 or 0400), and belong to the user of the process or
//! to root.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use zeroize::Zeroizing;

use super::RingError;
use crate::pki;

/// Bytes of a secret.
pub(super) const SECRET: usize = 32;
const ID_LIMIT: usize = 64;
/// Larger than any sensible ring; guards against being pointed at something else.
const FILE_LIMIT: u64 = 1 << 20;

pub(super) type Secret = Zeroizing<[u8; SECRET]>;

/// Since when, or from when on, a key is marked as the one that seals; a mark without a time is the earliest
/// moment that there is.
pub(super) type Mark = Option<Timestamp>;

/// A line of the file.
pub(super) struct KeyLine {
    pub id: String,
    pub secret: Secret,
    pub seals: Mark,
}

/// The contents of a key file, for use and for change.
pub struct RingFile {
    pub(super) digest: Secret,
    /// Never empty.
    pub(super) keys: Vec<KeyLine>,
}

/// The place of the key that seals at a moment. Where no mark's moment has come it is the last key without a
/// mark, and among keys that all have one the first to come.
pub(super) fn sealing_at(marks: impl Iterator<Item = Mark> + Clone, now: Timestamp) -> usize {
    let marked = || marks.clone().enumerate().filter_map(|(at, mark)| mark.map(|from| (from, at)));
    let due = marked().filter(|(from, _)| *from <= now).max();
    let unmarked = || marks.clone().enumerate().filter(|(_, mark)| mark.is_none()).last();
    due.map(|(_, at)| at)
        .or_else(|| unmarked().map(|(at, _)| at))
        .or_else(|| marked().min().map(|(_, at)| at))
        .unwrap_or(0)
}

impl std::fmt::Debug for RingFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingFile").field("keys", &self.ids()).finish_non_exhaustive()
    }
}

impl RingFile {
    /// A new ring with one key.
    pub fn generate() -> Result<RingFile, RingError> {
        let first = KeyLine { id: new_id()?, secret: random()?, seals: Some(Timestamp::MIN) };
        Ok(RingFile { digest: random()?, keys: vec![first] })
    }

    /// Reads a file, after checking whose it is and who can read it.
    pub fn load(path: &Path) -> Result<RingFile, RingError> {
        RingFile::parse(&RingFile::read(path)?)
    }

    /// The text of a file, after the same checks.
    pub(super) fn read(path: &Path) -> Result<Zeroizing<String>, RingError> {
        let fail = |source| RingError::File { doing: "read", path: path.to_owned(), source };
        let file = File::open(path).map_err(fail)?;
        // Of the open file: what is checked is what is read, whatever happens to the name.
        let found = file.metadata().map_err(fail)?;
        if !found.is_file() {
            return Err(RingError::NotAFile { path: path.to_owned() });
        }
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(RingError::Exposed { path: path.to_owned(), mode });
        }
        let owner = found.uid();
        if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
            return Err(RingError::Foreign { path: path.to_owned(), owner });
        }
        let size = usize::try_from(found.len().min(FILE_LIMIT)).unwrap_or(0);
        let mut text = Zeroizing::new(String::with_capacity(size + 1));
        file.take(FILE_LIMIT).read_to_string(&mut text).map_err(fail)?;
        Ok(text)
    }

    /// Writes a file that must not exist yet.
    pub fn create(&self, path: &Path) -> Result<(), RingError> {
        let fail = |source| RingError::File { doing: "create", path: path.to_owned(), source };
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(fail)?;
        let written = (|| {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
            file.write_all(self.render().as_bytes())?;
            file.sync_all()
        })();
        written.map_err(|source| {
            // Half a ring must not pass for one.
            let _ = fs::remove_file(path);
            fail(source)
        })
    }

    /// Replaces a file in one step.
    pub fn replace(&self, path: &Path) -> Result<(), RingError> {
        pki::write_file(path, self.render().as_bytes(), 0o600)
            .map_err(|source| RingError::Write { path: path.to_owned(), source })
    }

    /// The ring in a file; made when there is none.
    pub fn ensure(path: &Path) -> Result<RingFile, RingError> {
        match RingFile::load(path) {
            Err(RingError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
                let ring = RingFile::generate()?;
                ring.create(path)?;
                Ok(ring)
            }
            loaded => loaded,
        }
    }

    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<RingFile, RingError> {
        let mut digest = None;
        let mut keys: Vec<KeyLine> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let fail = |why| Err(RingError::Line { line: at + 1, why });
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                None => continue,
                Some("digest") if digest.is_some() => return fail("there is a digest line already"),
                Some("digest") => match words.next().and_then(secret) {
                    Some(secret) => digest = Some(secret),
                    None => return fail("after digest come 32 bytes in base64"),
                },
                Some("key") => {
                    let Some(id) = words.next().filter(|id| is_id(id)) else {
                        return fail(
                            "after key comes an id of letters, digits, dots, dashes and underscores",
                        );
                    };
                    if keys.iter().any(|key| key.id == id) {
                        return fail("there is a key of this id already");
                    }
                    let Some(secret) = words.next().and_then(secret) else {
                        return fail("after the id come 32 bytes in base64");
                    };
                    let seals = match words.next() {
                        None => None,
                        Some("seals") => match words.next().map(str::parse) {
                            None => Some(Timestamp::MIN),
                            Some(Ok(from)) => Some(from),
                            Some(Err(_)) => {
                                return fail(
                                    "after the word seals comes nothing, or a time like 2026-11-29T12:00:00Z",
                                );
                            }
                        },
                        Some(_) => return fail("after the bytes there may only be the word seals"),
                    };
                    if seals.is_some() && keys.iter().any(|key| key.seals == seals) {
                        return fail("there is a key already that seals from the same moment on");
                    }
                    keys.push(KeyLine { id: id.to_owned(), secret, seals });
                }
                Some(_) => return fail("it begins neither with digest nor with key"),
            }
            if words.next().is_some() {
                return fail("there are too many words in it");
            }
        }
        let digest = digest.ok_or(RingError::Missing { what: "digest" })?;
        if keys.is_empty() {
            return Err(RingError::Missing { what: "key" });
        }
        Ok(RingFile { digest, keys })
    }

    /// The text of the file.
    pub fn render(&self) -> Zeroizing<String> {
        let head =
            "# Keys of sealed Secrets. Who reads this file can read every Secret; who loses it loses them.\n";
        // Never grown: what a growing text leaves behind would not be wiped.
        let mut text =
            Zeroizing::new(String::with_capacity(head.len() + 64 + self.keys.len() * (ID_LIMIT + 96)));
        text.push_str(head);
        let mut line = |words: &[&str]| {
            for (at, word) in words.iter().enumerate() {
                text.push_str(if at > 0 { " " } else { "" });
                text.push_str(word);
            }
            text.push('\n');
        };
        line(&["digest", &encoded(&self.digest)]);
        for key in &self.keys {
            let secret = encoded(&key.secret);
            match key.seals {
                None => line(&["key", &key.id, &secret]),
                Some(from) if from == Timestamp::MIN => line(&["key", &key.id, &secret, "seals"]),
                Some(from) => line(&["key", &key.id, &secret, "seals", &from.to_string()]),
            }
        }
        text
    }

    /// Ids of all keys, in the order of the file.
    pub fn ids(&self) -> Vec<&str> {
        self.keys.iter().map(|key| key.id.as_str()).collect()
    }

    /// Id of the key that seals at present.
    pub fn sealing(&self) -> &str {
        &self.keys[self.sealing_at(Timestamp::now())].id
    }

    /// The key that is to seal later, and from when on.
    pub fn next(&self) -> Option<(&str, Timestamp)> {
        let now = Timestamp::now();
        let coming = self.keys.iter().filter_map(|key| Some((key.seals?, key.id.as_str())));
        coming.filter(|(from, _)| *from > now).min().map(|(from, id)| (id, from))
    }

    pub(super) fn sealing_at(&self, now: Timestamp) -> usize {
        sealing_at(self.keys.iter().map(|key| key.seals), now)
    }

    /// Adds a key that opens; the one that seals stays the same. Answers its id.
    pub fn add(&mut self) -> Result<String, RingError> {
        if self.keys.iter().all(|key| key.seals.is_none()) {
            // Without a mark it would be the last one, which is about to be another.
            let at = self.sealing_at(Timestamp::now());
            self.keys[at].seals = Some(Timestamp::MIN);
        }
        let id = new_id()?;
        self.keys.push(KeyLine { id: id.clone(), secret: random()?, seals: None });
        Ok(id)
    }

    /// Lets another key seal, at once.
    pub fn seal_with(&mut self, id: &str) -> Result<(), RingError> {
        self.seal_with_from(id, Timestamp::MIN)
    }

    /// Lets another key seal from a moment on; until then the one goes on that seals now.
    pub fn seal_with_from(&mut self, id: &str, from: Timestamp) -> Result<(), RingError> {
        let next = self.place(id)?;
        let now = Timestamp::now();
        let current = self.sealing_at(now);
        for key in &mut self.keys {
            key.seals = None;
        }
        if next == current || from <= now {
            self.keys[next].seals = Some(Timestamp::MIN);
        } else {
            self.keys[current].seals = Some(Timestamp::MIN);
            self.keys[next].seals = Some(from);
        }
        Ok(())
    }

    /// Takes a key out. What is still sealed with it is lost.
    pub fn remove(&mut self, id: &str) -> Result<(), RingError> {
        let at = self.place(id)?;
        let coming = self.next().is_some_and(|(coming, _)| coming == id);
        if coming || at == self.sealing_at(Timestamp::now()) {
            return Err(RingError::Seals { id: id.to_owned() });
        }
        self.keys.remove(at);
        Ok(())
    }

    fn place(&self, id: &str) -> Result<usize, RingError> {
        let found = self.keys.iter().position(|key| key.id == id);
        found.ok_or_else(|| RingError::NoSuchKey { id: id.to_owned() })
    }
}

fn is_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= ID_LIMIT && text.bytes().all(allowed)
}

/// The day, for people, and enough chance that two operators do not make the same one.
fn new_id() -> Result<String, RingError> {
    let mut chance = [0; 4];
    aws_lc_rs::rand::fill(&mut chance).map_err(|_| RingError::Random)?;
    let day = Timestamp::now().strftime("%Y-%m-%d");
    Ok(format!("{day}-{:08x}", u32::from_be_bytes(chance)))
}

fn random() -> Result<Secret, RingError> {
    let mut secret = Zeroizing::new([0; SECRET]);
    aws_lc_rs::rand::fill(&mut *secret).map_err(|_| RingError::Random)?;
    Ok(secret)
}

fn secret(word: &str) -> Option<Secret> {
    // The decoder wants a little more room than the result takes.
    let mut bytes = Zeroizing::new([0; SECRET + 4]);
    let length = STANDARD.decode_slice(word, &mut *bytes).ok()?;
    let mut secret = Zeroizing::new([0; SECRET]);
    secret.copy_from_slice(bytes.get(..length).filter(|found| found.len() == SECRET)?);
    Some(secret)
}

fn encoded(secret: &Secret) -> Zeroizing<String> {
    Zeroizing::new(STANDARD.encode(secret.as_slice()))
}
