//! What is written down about a unit, and where.
//!
//! One directory for each unit:
//!
//! ```text
//! unit.json    how to run it; written by the agent
//! env.json     its variables; written by the agent, for its owner's eyes only
//! state.json   what became of it; written by its supervisor
//! stop.json    that it is to stop, since when and with which grace
//! lock         held by its supervisor as long as that lives
//! log/output   what it wrote, and output.previous before that
//! work/        its working directory
//! files/       keys of Secrets and tokens, at the paths where they are mounted; written by the agent
//! ```
//!
//! When a unit goes away its log is put aside for a while, as a journal would keep it:
//! a job that is over is removed at once, and that is when people ask for its log.
//!
//! Files are replaced as a whole, so a reader sees the old or the new one. Processes
//! are named by number, start time and boot, so that a later process with the same
//! number is never taken for it, and never signalled.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::units::procfs::{self, ProcessId};
use crate::units::{Ending, Environment, UnitSpec};

/// Name of the file that a unit's output is in.
pub const LOG_NAME: &str = "output";

/// What a supervisor says of its unit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UnitState {
    /// Boot in which the numbers below mean something.
    pub boot: String,
    /// The supervisor.
    pub supervisor: ProcessId,
    /// The workload's first process, while there is one.
    pub main: Option<ProcessId>,
    /// When the supervisor began, in nanoseconds since the epoch.
    pub since_unix_nano: i64,
    /// Starts so far under this supervisor.
    pub starts: u32,
    /// How it ended, once it has.
    pub ending: Option<Ending>,
}

impl UnitState {
    /// The supervisor is still there.
    pub fn is_supervised(&self) -> bool {
        self.boot == procfs::boot_id() && self.supervisor.is_alive()
    }
}

/// That a unit is to stop.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct StopRequest {
    /// Seconds until it is killed.
    pub grace_seconds: u64,
    /// When it was asked, in nanoseconds since the epoch.
    pub at_unix_nano: i64,
}

/// The directory of one unit.
#[derive(Debug, Clone)]
pub struct UnitDirectory(PathBuf);

impl UnitDirectory {
    /// The directory at this path, whether it exists or not.
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// How to run the unit.
    pub fn spec(&self) -> Option<UnitSpec> {
        read(&self.0.join("unit.json"))
    }

    /// Writes down how to run it.
    pub fn write_spec(&self, spec: &UnitSpec) -> io::Result<()> {
        write_atomically(&self.0.join("unit.json"), spec)
    }

    /// Its variables.
    pub fn environment(&self) -> Option<Environment> {
        read(&self.0.join("env.json"))
    }

    /// Writes down its variables.
    pub fn write_environment(&self, env: &Environment) -> io::Result<()> {
        write_atomically(&self.0.join("env.json"), env)
    }

    /// What became of it.
    pub fn state(&self) -> Option<UnitState> {
        read(&self.0.join("state.json"))
    }

    /// Writes down what became of it.
    pub fn write_state(&self, state: &UnitState) -> io::Result<()> {
        write_atomically(&self.0.join("state.json"), state)
    }

    /// Whether it is to stop.
    pub fn stop_request(&self) -> Option<StopRequest> {
        read(&self.0.join("stop.json"))
    }

    /// Writes down that it is to stop.
    pub fn write_stop_request(&self, request: &StopRequest) -> io::Result<()> {
        write_atomically(&self.0.join("stop.json"), request)
    }

    /// Forgets what became of its last run.
    pub fn clear_run(&self) -> io::Result<()> {
        for name in ["state.json", "stop.json"] {
            match fs::remove_file(self.0.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes the place of its supervisor, if that is free.
    pub fn lock(&self) -> io::Result<Option<Flock<File>>> {
        let file = OpenOptions::new().create(true).append(true).open(self.0.join("lock"))?;
        Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).ok())
    }

    /// It has a supervisor, be it one that has written nothing yet.
    pub fn is_locked(&self) -> bool {
        self.lock().is_ok_and(|lock| lock.is_none())
    }

    /// What it wrote.
    pub fn log(&self) -> PathBuf {
        self.log_directory().join(LOG_NAME)
    }

    /// The directory of that and of what was before it.
    pub fn log_directory(&self) -> PathBuf {
        self.0.join("log")
    }

    /// What is mounted into it, as files.
    pub fn files(&self) -> PathBuf {
        self.0.join("files")
    }

    /// Its working directory.
    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Replaces a file as a whole, readable for its owner only.
pub(crate) fn write_atomically<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    drop(file);
    fs::rename(next, path)
}
