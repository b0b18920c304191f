//! Files that hold keys.
//!
//! A key is worth as much as the folder it lies in: whoever can write there can swap the authority. So the
//! folder must be the caller's own and writable by nobody else, links are never followed, and a file appears
//! under its name complete and with its final mode, or not at all.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::PkiError;

/// Makes the folder with mode 0700, or checks one that exists.
pub fn private_folder(path: &Path) -> Result<(), PkiError> {
    let fail = |source| PkiError::File { doing: "make the folder", path: path.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(source) => return Err(fail(source)),
    }
    let found = fs::symlink_metadata(path).map_err(fail)?;
    let refuse = |why| Err(PkiError::Folder { path: path.to_owned(), why });
    if found.file_type().is_symlink() {
        refuse("it is a symbolic link")
    } else if !found.is_dir() {
        refuse("it is something else")
    } else if found.uid() != nix::unistd::geteuid().as_raw() {
        refuse("it belongs to another user")
    } else if found.permissions().mode() & 0o022 != 0 {
        refuse("its group or everybody can write there")
    } else {
        Ok(())
    }
}

/// Writes a file with exactly this mode, replacing a regular file of that name in one step.
pub fn write_file(path: &Path, contents: &[u8], mode: u32) -> Result<(), PkiError> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let fail = |doing| move |source| PkiError::File { doing, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => return Err(PkiError::NotAFile { path: path.to_owned() }),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(fail("look at")(source)),
    }
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{count}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = (|| {
        // New or nothing: neither a link nor a file that somebody prepared is opened.
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        // The mode at creation is subject to the umask.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    written.map_err(|source| {
        let _ = fs::remove_file(&temporary);
        fail("write")(source)
    })
}

/// The text of a file; `None` when there is none.
pub(super) fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { doing: "read", path: path.to_owned(), source }),
    }
}
