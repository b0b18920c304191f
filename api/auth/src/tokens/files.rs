//! Keys on disk.
//!
//! Either one file with a key, or a folder of them (`*.pem`; what begins with a dot is not looked at). All
//! keys verify. The one with the last name, in byte order, signs, so names begin with a date. Order by name, and
//! not by the time of a file, because copies of a folder have the same names and seldom the same times.
//!
//! A key that appears in a folder reaches the processes one after the other. It therefore signs only when its
//! file has been there for [`SETTLE`]; by then every process that reads the same folder, or is given a copy
//! at about the same time, can verify what it signs. Where all keys are that young, as in a folder that was
//! just made, there is nothing to wait for.
//!
//! Nothing there at all: a key is made, in a file that only its owner can read, and it appears complete or not
//! at all. Of several processes that start at once one makes it and the others read it.
//!
//! A file must not be readable by everybody nor writable by anybody but its owner. Its group may read it, which is
//! how service managers hand keys out.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use zeroize::Zeroizing;

use super::SigningKeyError;
use super::key::Key;
use crate::pki::sec1_pem;

/// How long a key is there before it signs.
pub const SETTLE: Duration = Duration::from_secs(60);

/// Larger than any key; guards against being pointed at something else.
const FILE_LIMIT: u64 = 64 << 10;

/// The name of the first key of a folder: before every date.
const FIRST: &str = "0000-first.pem";

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles(PathBuf);

/// What was read: equal when nothing changed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Found {
    files: Vec<KeyFile>,
}

#[derive(Clone, PartialEq, Eq)]
struct KeyFile {
    path: PathBuf,
    pem: Zeroizing<Vec<u8>>,
    /// When the file came to be what it is.
    since: SystemTime,
}

/// A key as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Of its file.
    pub name: String,
    /// As in the header of what it signs (`kid`).
    pub id: String,
    pub signs: Signs,
}

/// Whether a key signs. All of them verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signs {
    Now,
    /// Nothing before this moment: not everybody may have read it yet.
    From(Timestamp),
    No,
}

/// Which key signs: the newest that has been there for some time, or of very young ones the newest.
pub(super) fn signing(keys: &[Placed], now: SystemTime) -> Option<usize> {
    let settled = |placed: &Placed| now.duration_since(placed.since).is_ok_and(|since| since >= SETTLE);
    keys.iter().rposition(settled).or_else(|| keys.len().checked_sub(1))
}

/// A key, and since when it is there.
pub(super) struct Placed {
    pub key: Key,
    pub since: SystemTime,
}

impl KeyFiles {
    pub fn new(path: impl Into<PathBuf>) -> KeyFiles {
        KeyFiles(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the folder, which must be empty if it is there, and a first key in it. Answers the name of the file.
    pub fn begin(&self, now: Timestamp) -> Result<String, SigningKeyError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(|source| self.failed("make", source))?;
        if !self.names()?.is_empty() {
            return Err(SigningKeyError::Begun { path: self.0.clone() });
        }
        self.add(now)
    }

    /// Makes another key in the folder, in a file that is named by the time. Answers its name.
    pub fn add(&self, now: Timestamp) -> Result<String, SigningKeyError> {
        let name = now.strftime("%Y-%m-%dT%H%M%SZ.pem").to_string();
        let path = self.0.join(&name);
        if let Some(last) = self.names()?.pop().filter(|last| *last >= path) {
            return Err(SigningKeyError::NeverLast { path: self.0.clone(), name, last });
        }
        if make(&path)? {
            Ok(name)
        } else {
            Err(self.failed("make a key in", ErrorKind::AlreadyExists.into()))
        }
    }

    /// The keys, in the order of the names of their files, and what each is for at this moment.
    pub fn list(&self, now: Timestamp) -> Result<Vec<Listed>, SigningKeyError> {
        let found = self.read()?;
        let keys = found.keys()?;
        let signing = signing(&keys, SystemTime::from(now));
        let listed = |(at, (file, placed)): (usize, (&KeyFile, &Placed))| {
            let signs = match signing {
                Some(signing) if at == signing => Signs::Now,
                Some(signing) if at < signing => Signs::No,
                _ => Signs::From(Timestamp::try_from(placed.since + SETTLE).unwrap_or(Timestamp::MAX)),
            };
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Listed { name, id: placed.key.id.clone(), signs }
        };
        Ok(found.files.iter().zip(&keys).enumerate().map(listed).collect())
    }

    fn failed(&self, doing: &'static str, source: std::io::Error) -> SigningKeyError {
        SigningKeyError::File { doing, path: self.0.clone(), source }
    }

    /// Makes a key where there is none.
    pub fn ensure(&self) -> Result<(), SigningKeyError> {
        match fs::metadata(&self.0) {
            Ok(found) if found.is_dir() => {
                if self.names()?.is_empty() {
                    make(&self.0.join(FIRST)).map(drop)
                } else {
                    Ok(())
                }
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => make(&self.0).map(drop),
            Err(source) => Err(SigningKeyError::File { doing: "read", path: self.0.clone(), source }),
        }
    }

    pub(super) fn read(&self) -> Result<Found, SigningKeyError> {
        let found = fs::metadata(&self.0).map_err(|source| SigningKeyError::File {
            doing: "read",
            path: self.0.clone(),
            source,
        })?;
        let paths = if found.is_dir() { self.names()? } else { vec![self.0.clone()] };
        if paths.is_empty() {
            return Err(SigningKeyError::Empty { path: self.0.clone() });
        }
        let files = paths.into_iter().map(KeyFile::read).collect::<Result<_, _>>()?;
        Ok(Found { files })
    }

    /// The key files of a folder, in the order of their names.
    fn names(&self) -> Result<Vec<PathBuf>, SigningKeyError> {
        let fail = |source| SigningKeyError::File { doing: "list", path: self.0.clone(), source };
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            if name.as_bytes().ends_with(b".pem") && !name.as_bytes().starts_with(b".") {
                names.push(name);
            }
        }
        names.sort();
        Ok(names.into_iter().map(|name| self.0.join(name)).collect())
    }
}

impl Found {
    pub(super) fn keys(&self) -> Result<Vec<Placed>, SigningKeyError> {
        let parse =
            |file: &KeyFile| Ok(Placed { key: Key::from_pem(&file.pem, &file.path)?, since: file.since });
        self.files.iter().map(parse).collect()
    }
}

impl KeyFile {
    fn read(path: PathBuf) -> Result<KeyFile, SigningKeyError> {
        let fail = |source| SigningKeyError::File { doing: "read", path: path.clone(), source };
        let file = File::open(&path).map_err(fail)?;
        // Of the open file: what is checked is what is read, whatever happens to the name.
        let found = file.metadata().map_err(fail)?;
        if !found.is_file() {
            return Err(SigningKeyError::NotAFile { path });
        }
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o037 != 0 {
            return Err(SigningKeyError::Exposed { path, mode });
        }
        let size = usize::try_from(found.len().min(FILE_LIMIT)).unwrap_or(0);
        let mut pem = Zeroizing::new(Vec::with_capacity(size + 1));
        file.take(FILE_LIMIT).read_to_end(&mut pem).map_err(fail)?;
        let since = u64::try_from(found.ctime())
            .ok()
            .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
            .unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(KeyFile { path, pem, since })
    }
}

/// Makes a key in a file that does not exist yet; `false`: there is one now, and it was not made here.
fn make(path: &Path) -> Result<bool, SigningKeyError> {
    let fail = |source| SigningKeyError::File { doing: "make a key in", path: path.to_owned(), source };
    let pem = sec1_pem().map_err(|_| SigningKeyError::Random)?;
    let mut chance = [0; 8];
    aws_lc_rs::rand::fill(&mut chance).map_err(|_| SigningKeyError::Random)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{:016x}.new", u64::from_be_bytes(chance)));
    let temporary = path.with_file_name(name);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(pem.as_bytes())?;
        file.sync_all()?;
        // Unlike a rename this fails when the name is taken.
        fs::hard_link(&temporary, path)
    })();
    let _ = fs::remove_file(&temporary);
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        written => written.map(|()| true).map_err(fail),
    }
}
