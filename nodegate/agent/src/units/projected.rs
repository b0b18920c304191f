//! The files that are mounted into a unit: keys of Secrets, and tokens.
//!
//! What is there is made equal to what should be there: a file is replaced as a whole, so that a workload reads the old
//! content or the new one, and what nobody wants any more goes. The folders belong to the agent and only the files to
//! whoever the workload runs as: otherwise a workload could lay a link in the way and have the agent write elsewhere.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, fchown};
use std::path::Path;

use crate::units::Files;

/// Makes what is below `root` these files, readable for their owner alone.
pub(super) fn project(root: &Path, files: &Files, owner: Option<(u32, u32)>) -> io::Result<()> {
    if files.is_empty() && !root.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o755).create(root)?;
    prune(root, Path::new(""), files)?;
    for (path, content) in files {
        let target = root.join(path);
        if fs::read(&target).is_ok_and(|present| present == *content) {
            continue;
        }
        if let Some(folder) = target.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        // Beside all of them, where no file can have the name.
        let next = root.with_extension("next");
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&next)?;
        file.write_all(content)?;
        if let Some((user, group)) = owner {
            fchown(&file, Some(user), Some(group))?;
        }
        fs::rename(next, target)?;
    }
    Ok(())
}

/// Removes everything below `folder` that is neither wanted nor on the way to what is.
fn prune(root: &Path, folder: &Path, files: &Files) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if !entry.file_type()?.is_dir() {
            if !files.contains_key(&path) {
                fs::remove_file(entry.path())?;
            }
        } else if files.keys().any(|file| file != &path && file.starts_with(&path)) {
            prune(root, &path, files)?;
        } else {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    fn below(root: &Path, folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(root, &path, into);
            } else {
                let content = fs::read_to_string(&path).expect("a file");
                let mode = entry.metadata().expect("a file").permissions().mode() & 0o777;
                let path = path.strip_prefix(root).expect("below").display().to_string();
                into.push(format!("{path}={content} {mode:o}"));
            }
        }
        into.sort();
    }

    #[test]
    fn what_is_there_becomes_what_is_wanted() {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = scratch.path().join("files");
        for (what, wanted, expected) in [
            ("nothing", vec![], vec![]),
            (
                "files",
                vec![("a/x", "1"), ("a/y", "2"), ("b", "3")],
                vec!["a/x=1 400", "a/y=2 400", "b=3 400"],
            ),
            (
                "another content",
                vec![("a/x", "9"), ("a/y", "2"), ("b", "3")],
                vec!["a/x=9 400", "a/y=2 400", "b=3 400"],
            ),
            ("one less", vec![("a/x", "9")], vec!["a/x=9 400"]),
            ("a folder where a file was", vec![("a/x/z", "9")], vec!["a/x/z=9 400"]),
            ("a file where a folder was", vec![("a", "9")], vec!["a=9 400"]),
            ("nothing any more", vec![], vec![]),
        ] {
            let files: Files = wanted
                .into_iter()
                .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()))
                .collect();
            for _ in 0..2 {
                project(&root, &files, None).expect(what);
                let mut found = Vec::new();
                if root.exists() {
                    below(&root, &root, &mut found);
                }
                assert_eq!(found, expected, "{what}");
            }
        }
    }
}
