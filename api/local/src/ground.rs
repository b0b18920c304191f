//! What a stack needs under it. It is looked at before anything is started, so that what is missing is one line that
//! says what to do, and not the end of some log.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, Uid, User, access, geteuid};
use serde_json::Value;

use crate::layout::Layout;

/// What a new stack takes to begin with: the files of a database, and its first write-ahead log.
const ROOM: u64 = 200 << 20;
/// The oldest kubectl that is tried.
const OLDEST_KUBECTL: u32 = 27;
/// What is done about a folder that will not do.
const ELSEWHERE: &str = "name another folder with HORCHESTRA_HOME (--home)";

/// The folder of the stack, made where it is missing, if this user can keep one there.
pub fn folder(root: &Path) -> Result<Layout> {
    let shown = root.display();
    if fs::metadata(root).is_ok_and(|found| !found.is_dir()) {
        bail!("{shown} is not a folder: {ELSEWHERE}");
    }
    ours(root)?;
    let layout = Layout::create(root)
        .map_err(|error| unwritable(root, &error))
        .with_context(|| format!("a stack cannot be kept in {shown}"))?;
    for place in [layout.root(), &layout.run(), &layout.logs(), &layout.agents()] {
        access(place, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|error| unwritable(place, &error.into()))
            .with_context(|| format!("a stack cannot be kept in {shown}"))?;
    }
    if !layout.postgres().exists() {
        room(layout.root())?;
    }
    Ok(layout)
}

/// The stack of this folder, if there is one and this user may touch it.
pub fn existing(root: &Path) -> Result<Option<Layout>> {
    ours(root)?;
    Ok(Layout::open(root))
}

/// Nobody but root works on the stack of somebody else.
fn ours(root: &Path) -> Result<()> {
    let me = geteuid();
    let shown = root.display();
    match fs::metadata(root.join("run")) {
        Ok(found) if !me.is_root() && found.uid() != me.as_raw() => {
            let other = name(Uid::from_raw(found.uid()));
            bail!("the stack in {shown} belongs to {other}: do this as {other}, or {ELSEWHERE}")
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{} may not look into {shown}: {ELSEWHERE}", name(me))
        }
        _ => Ok(()),
    }
}

fn unwritable(place: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("{} cannot write to {} ({error}): {ELSEWHERE}", name(geteuid()), place.display())
}

/// How people call a user.
fn name(user: Uid) -> String {
    User::from_uid(user).ok().flatten().map_or_else(|| format!("user {user}"), |user| user.name)
}

/// Whether there is room for a database at this place.
pub fn room(place: &Path) -> Result<()> {
    let found = statvfs(place).with_context(|| format!("looking at {}", place.display()))?;
    #[allow(clippy::unnecessary_cast, reason = "how wide they are differs between platforms")]
    let free = (found.blocks_available() as u64).saturating_mul(found.fragment_size() as u64);
    if free < ROOM {
        bail!(
            "{} has room for {} MiB more, and a stack takes {} to begin with: make room, or {ELSEWHERE}",
            place.display(),
            free >> 20,
            ROOM >> 20
        );
    }
    Ok(())
}

/// Why a port that was asked for cannot be had. `option` is how another one is named.
pub fn taken(port: u16, what: &str, option: &str, error: &io::Error) -> anyhow::Error {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => match holder(port) {
            Some(holder) => format!("is in use by {holder}"),
            None => "is in use".to_owned(),
        },
        io::ErrorKind::PermissionDenied => "may be listened on by root alone".to_owned(),
        _ => format!("cannot be listened on ({error})"),
    };
    anyhow::anyhow!("port {port}, asked for {what}, {why}: name another one with {option}")
}

/// Who listens on a TCP port of this machine, as far as this user may know.
fn holder(port: u16) -> Option<String> {
    let (user, inode) = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().find_map(|line| listener(line, port))
    })?;
    let socket = format!("socket:[{inode}]");
    let holds = |pid: &Path| {
        let open = fs::read_dir(pid.join("fd")).ok()?;
        let links = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.into_iter().any(|link| link.as_os_str() == socket.as_str()).then_some(())
    };
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let process = processes
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok()))
        .find(|path| holds(path).is_some());
    match process {
        Some(path) => {
            let command = fs::read_to_string(path.join("comm")).unwrap_or_default();
            Some(format!("{} (pid {})", command.trim(), path.file_name()?.to_string_lossy()))
        }
        None => Some(format!("a process of {}", name(Uid::from_raw(user)))),
    }
}

/// User and inode of a listening socket at this port, if the line of the kernel's table is one.
fn listener(line: &str, port: u16) -> Option<(u32, u64)> {
    const LISTENS: &str = "0A";
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, at) = words.get(1)?.rsplit_once(':')?;
    let ours = u16::from_str_radix(at, 16) == Ok(port) && words.get(3) == Some(&LISTENS);
    ours.then_some(())?;
    Some((words.get(7)?.parse().ok()?, words.get(9)?.parse().ok()?))
}

/// What is to be said about the kubectl of whoever starts a stack; nothing where it will do.
pub fn kubectl() -> Option<String> {
    let asked = Command::new("kubectl")
        .args(["version", "--client", "-o", "json"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match asked {
        Err(_) => Some(format!(
            "there is no kubectl on the PATH: install version 1.{OLDEST_KUBECTL} or later (https://kubernetes.io/docs/tasks/tools)"
        )),
        Ok(output) => outdated(&String::from_utf8_lossy(&output.stdout)),
    }
}

fn outdated(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let version = answer["clientVersion"]["gitVersion"].as_str()?;
    let mut numbers = version.trim_start_matches('v').split('.').map(|number| number.parse::<u32>());
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    ((major, minor) < (1, OLDEST_KUBECTL))
        .then(|| format!("this kubectl is {version}, and 1.{OLDEST_KUBECTL} is the oldest that is tried: install a later one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kubectl_is_told_of() {
        let said =
            |version: &str| outdated(&format!(r#"{{"clientVersion": {{"gitVersion": "{version}"}}}}"#));
        for well in ["v1.27.0", "v1.32.4-dispatcher", "v1.30.0+k3s1", "v2.0.0", "whatever"] {
            assert_eq!(said(well), None, "{well}");
        }
        for old in ["v1.26.15", "v1.9.0"] {
            let note = said(old).unwrap();
            assert!(note.contains(old) && note.contains("1.27"), "{note}");
        }
        assert_eq!(outdated("no JSON"), None);
    }

    #[test]
    fn the_table_of_the_kernel_names_listeners() {
        let line = "   3: 0100007F:20FB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100";
        assert_eq!(listener(line, 8443), Some((1000, 4711)));
        assert_eq!(listener(line, 8444), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), 8443), None, "a connection");
        assert_eq!(listener("  sl  local_address rem_address   st", 8443), None);
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = holder(own.local_addr().unwrap().port()).unwrap();
        assert!(holder.contains(&format!("pid {}", std::process::id())), "{holder}");
    }
}
