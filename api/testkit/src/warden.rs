//! Nothing is left behind: a small shell process per cluster that outlives its users and ends the server.
//!
//! A test can end in ways that run no destructor (a kill, an abort, a process per test), so cleaning up is
//! not left to it. Every process that uses a cluster holds a shared lock on the cluster's `users` file,
//! which the kernel gives back however the process ends. The warden waits for an exclusive lock on the same
//! file: once it gets it, nobody is left. It then waits out a grace period (a runner with a process per
//! test leaves gaps), closes the `gate` that newcomers pass, looks again, and only then kills the server
//! and removes its folder. It never polls, and it sees its peers' end without knowing who they are.
//!
//! Refused: reference counts in a file (wrong after a kill), a destructor in the last user (nobody is the
//! last for sure), a set-up script of the runner (a bare `cargo test` would not run it).

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;

/// Arguments: gate, users, folder, grace in seconds.
const SCRIPT: &str = r#"
gate=$1 users=$2 folder=$3 grace=$4
exec 9>"$folder/warden"
flock -n 9 || exit 0
while :; do
    flock -x "$users" true
    sleep "$grace"
    [ -d "$folder" ] || exit 0
    exec 8>>"$gate"
    flock -x 8
    if flock -n -x "$users" true; then
        if [ -r "$folder/data/postmaster.pid" ]; then
            server=$(head -n 1 "$folder/data/postmaster.pid")
            case $(cat "/proc/$server/comm" 2>/dev/null) in
            postgres)
                # Frozen or not: children do not see the end of their parent while they are stopped.
                kill -9 "$server" $(cat "/proc/$server/task/$server/children" 2>/dev/null)
                while kill -0 "$server" 2>/dev/null && [ "$(sed 's/.*) //;s/ .*//' "/proc/$server/stat" 2>/dev/null)" != Z ]; do
                    sleep 0.1
                done
                ;;
            esac
        fi
        rm -rf "$folder"
        exit 0
    fi
    exec 8>&-
done
"#;

/// Starts the warden of `folder`. A second one for the same folder ends at once.
pub(crate) fn post(gate: &Path, users: &Path, folder: &Path, grace: Duration) -> anyhow::Result<()> {
    let mut child = Command::new("sh")
        .args(["-c", SCRIPT, "testkit-warden"])
        .args([gate, users, folder])
        .arg(grace.as_secs_f64().to_string())
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the shell that cleans up after the tests")?;
    // It outlives this process; until then somebody must reap it.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// Opens (and creates) a lock file.
pub(crate) fn lock_file(path: &Path) -> anyhow::Result<File> {
    File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open the lock file {}", path.display()))
}

/// Whether the programs that the warden is made of are there.
pub(crate) fn check() -> anyhow::Result<()> {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("flock").is_file()));
    anyhow::ensure!(found, "the program flock is not on PATH: install util-linux");
    Ok(())
}
