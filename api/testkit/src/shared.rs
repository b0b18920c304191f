//! The one server that all tests of a build directory share.
//!
//! It is started by whoever comes first and found by everybody else through a folder whose name is derived
//! from the build directory, so it serves threads of one process (`cargo test`), a process per test
//! (nextest) and the test binaries of several packages alike. It ends a few seconds after its last user.

use std::env;
use std::fs::{self, DirBuilder, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::cluster::{ClusterOptions, Layout, postmaster};
use crate::warden;

/// How long the server stays without a user.
const GRACE: Duration = Duration::from_secs(5);

/// Held for the life of the process, which is what keeps the server alive.
struct Membership {
    port: u16,
    _users: File,
}

/// The server's port; starts the server when none runs. Blocks while it does.
pub(crate) fn port() -> anyhow::Result<u16> {
    static MEMBERSHIP: Mutex<Option<Membership>> = Mutex::new(None);
    let mut membership = MEMBERSHIP.lock();
    if let Some(joined) = membership.as_ref() {
        return Ok(joined.port);
    }
    let joined = join()?;
    Ok(membership.insert(joined).port)
}

fn join() -> anyhow::Result<Membership> {
    warden::check()?;
    let home = home()?;
    let key = key();
    let gate_path = home.join(format!("{key}.gate"));
    let users_path = home.join(format!("{key}.users"));
    let folder = home.join(&key);

    let gate = warden::lock_file(&gate_path)?;
    gate.lock().context("cannot pass the gate of the shared server")?;
    let users = warden::lock_file(&users_path)?;
    users.lock_shared()?;

    let port = match running(&folder) {
        Some(port) => port,
        None => {
            clear(&folder)?;
            DirBuilder::new().mode(0o700).create(&folder)?;
            warden::post(&gate_path, &users_path, &folder, GRACE)?;
            let mut layout =
                Layout::make(&folder, ClusterOptions { max_connections: 400, ..Default::default() })?;
            let mut server = layout.launch_anywhere()?;
            std::thread::spawn(move || server.wait());
            layout.port
        }
    };
    // Costs nothing when the warden is there, and replaces one that somebody killed.
    warden::post(&gate_path, &users_path, &folder, GRACE)?;
    drop(gate);
    Ok(Membership { port, _users: users })
}

/// A folder for this user's shared servers, which nobody else can have prepared.
fn home() -> anyhow::Result<PathBuf> {
    let uid = nix::unistd::geteuid();
    let home = env::temp_dir().join(format!("horchestra-testkit-{uid}"));
    match DirBuilder::new().mode(0o711).create(&home) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot create {}", home.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&home)?;
    ensure!(
        found.is_dir() && found.uid() == uid.as_raw() && found.permissions().mode() & 0o022 == 0,
        "{} is not a folder of this user alone: remove it",
        home.display()
    );
    Ok(home)
}

/// One server per build directory: checkouts do not see each other's load.
fn key() -> String {
    let exe = env::current_exe().unwrap_or_default();
    // target/<profile>/deps/<test binary>
    let build = exe.ancestors().find(|path| path.join(".fingerprint").is_dir()).or(exe.parent());
    let mut hasher = DefaultHasher::new();
    build.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn running(folder: &Path) -> Option<u16> {
    let found = postmaster(&folder.join("data")).filter(|found| found.ready)?;
    let comm = fs::read_to_string(format!("/proc/{}/comm", found.pid)).ok()?;
    let alive = comm.trim() == "postgres" && TcpStream::connect((Ipv4Addr::LOCALHOST, found.port)).is_ok();
    alive.then_some(found.port)
}

/// Removes what a server that is no more (or that does not answer) has left.
fn clear(folder: &Path) -> anyhow::Result<()> {
    if let Some(found) = postmaster(&folder.join("data"))
        && fs::read_to_string(format!("/proc/{}/comm", found.pid)).is_ok_and(|comm| comm.trim() == "postgres")
    {
        let _ = kill(Pid::from_raw(found.pid.cast_signed()), Signal::SIGKILL);
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
