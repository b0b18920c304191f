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
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

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

    /// Makes a key where there is none.
    pub fn ensure(&self) -> Result<(), SigningKeyError> {
        match fs::metadata(&self.0) {
            Ok(found) if found.is_dir() => {
                if self.names()?.is_empty() {
                    create(&self.0.join(FIRST))
                } else {
                    Ok(())
                }
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => create(&self.0),
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

/// Makes a key in a file that must not exist; one that was made meanwhile is as good.
fn create(path: &Path) -> Result<(), SigningKeyError> {
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
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        written => written.map_err(fail),
    }
}
