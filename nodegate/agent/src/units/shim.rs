//! The supervisor of one unit: starts its command, takes its output, restarts it as
//! its policy says, stops it, and writes down how it ended.
//!
//! It is a process of its own, in a session of its own, and knows nothing of a
//! control plane. So workloads go on, are restarted, and lose neither output nor
//! exit code while the agent is down, is killed or is replaced by another version.
//!
//! Guarantees. One supervisor for a unit: a lock on its directory decides. No command
//! without a supervisor that is written down: if it cannot be, nothing is started. No
//! command runs as root. Nothing
//! is left when it ends: orphans of the workload are adopted by the supervisor, so
//! everything that the workload ever started is found below it and stopped with it,
//! also what moved to a session of its own. Stopping is a TERM to all of them, then,
//! after the grace, a KILL to all of them until none is left. Output goes through
//! the supervisor into files of bounded size.
//!
//! Not guaranteed: limits of CPU and memory are not enforced, and nothing is kept
//! from the workload but what the user that it runs as cannot reach. When the
//! supervisor itself is killed, the agent sweeps up what is left.
//!
//! Refused: handing the log file itself to the workload. It would need no copying,
//! but such a file cannot be rotated without losing what is written in between.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::desired::RestartPolicy;
use crate::logs::LogFile;
use crate::units::ledger::{UnitDirectory, UnitState};
use crate::units::procfs::{self, ProcessId};
use crate::units::{self, Ending, UnitSpec, Why, now_unix_nano};

/// Pause before a restart.
const RESTART_DELAY: Duration = Duration::from_millis(100);
/// This many starts …
const START_LIMIT: usize = 5;
/// … in this time are too many.
const START_WINDOW: Duration = Duration::from_secs(30);
/// Between two looks at whether all that was killed is gone.
const KILL_INTERVAL: Duration = Duration::from_millis(200);
/// Between two attempts to write down how it ended.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// Attempts at taking the supervisor's place …
const LOCK_ATTEMPTS: usize = 50;
/// … and the pause after each.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);
/// User and group of a workload that names none, or that names root.
pub const UNPRIVILEGED: u32 = 65532;
/// Marks the processes of a unit.
pub const UNIT_VARIABLE: &str = "HORCHESTRA_UNIT";
/// Says below which folder a workload finds what is mounted into it.
pub const FILES_VARIABLE: &str = "HORCHESTRA_FILES";

/// Supervises the unit in this directory until it is over. Returns at once when it
/// has a supervisor already.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    let directory = UnitDirectory::at(directory.canonicalize()?);
    let Some(_lock) = lock(&directory)? else { return Ok(()) };
    let spec = directory.spec().ok_or_else(|| anyhow::anyhow!("there is no unit in this directory"))?;

    // Fails only when this process leads a session already, which is as good.
    let _ = setsid();
    set_child_subreaper(true)?;
    std::env::set_current_dir(directory.work())?;

    // Handlers that write into sockets, not blocked signals: what a process blocks,
    // its children block too, and could then not be asked to stop.
    let (stops, stop) = UnixStream::pair()?;
    let (children, child) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        pipe::register(signal, stop.try_clone()?)?;
    }
    pipe::register(SIGCHLD, child)?;
    stops.set_nonblocking(true)?;
    children.set_nonblocking(true)?;
    let (reader, writer) = io::pipe()?;
    fcntl(reader.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;

    let me = std::process::id().cast_signed();
    let state = UnitState {
        boot: procfs::boot_id(),
        supervisor: ProcessId::of(me).unwrap_or(ProcessId { pid: me, start: 0 }),
        main: None,
        since_unix_nano: now_unix_nano(),
        starts: 0,
        ending: None,
    };
    let log = LogFile::open(&directory.log())?;
    let mut shim =
        Shim { directory, spec, state, stops, children, reader, writer, log, stopping: false, exited: None };
    // Before there is anything to lose: a workload whose supervisor nobody can name
    // could not be stopped.
    shim.directory.write_state(&shim.state)?;
    let ending = shim.supervise()?;
    shim.state.main = None;
    shim.state.ending = Some(ending);
    // The one thing that must not be lost, even if the disk is full for a while.
    while let Err(error) = shim.directory.write_state(&shim.state) {
        if shim.stopping {
            return Err(error.into());
        }
        shim.wait(Some(Instant::now() + RECORD_INTERVAL))?;
    }
    Ok(())
}

/// Takes the place of the supervisor. Whoever looks whether it is taken holds it for a
/// moment, so one attempt is not enough.
fn lock(directory: &UnitDirectory) -> io::Result<Option<Flock<fs::File>>> {
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(lock) = directory.lock()? {
            return Ok(Some(lock));
        }
        std::thread::sleep(LOCK_INTERVAL);
    }
    Ok(None)
}

struct Shim {
    directory: UnitDirectory,
    spec: UnitSpec,
    state: UnitState,
    /// Readable when it is to stop.
    stops: UnixStream,
    /// Readable when a child has ended.
    children: UnixStream,
    reader: PipeReader,
    writer: PipeWriter,
    log: LogFile,
    stopping: bool,
    /// Exit code of the process that was waited for last, if it is the main one.
    exited: Option<i32>,
}

impl Shim {
    fn supervise(&mut self) -> anyhow::Result<Ending> {
        let mut starts = VecDeque::new();
        loop {
            // Whoever asked before this supervisor was written down could not send a
            // signal. Whoever asks from now on can.
            if self.directory.stop_request().is_some() {
                let code = 128 + Signal::SIGTERM as i32;
                return Ok(Ending { code, at_unix_nano: now_unix_nano(), why: Why::Stopped });
            }
            let begun = Instant::now();
            starts.push_back(begun);
            starts.retain(|start| begun.duration_since(*start) < START_WINDOW);
            let mut ending = match self.start() {
                Ok(()) => self.wait_for_main(begun)?,
                Err(error) => self.not_started(&error),
            };
            self.clear()?;
            if self.stopping {
                return Ok(Ending { why: Why::Stopped, ..ending });
            }
            let again = match self.spec.restart {
                RestartPolicy::Always => true,
                RestartPolicy::OnFailure => !ending.succeeded(),
                RestartPolicy::Never => false,
            };
            if !again {
                return Ok(ending);
            }
            if starts.len() >= START_LIMIT {
                ending.why = Why::StartLimit;
                return Ok(ending);
            }
            let until = Instant::now() + RESTART_DELAY;
            while !self.stopping && Instant::now() < until {
                self.wait(Some(until))?;
            }
            if self.stopping {
                return Ok(Ending { why: Why::Stopped, ..ending });
            }
        }
    }

    /// Starts the command. The variables are read anew, so a restart sees new values.
    fn start(&mut self) -> io::Result<()> {
        self.exited = None;
        let Some((program, arguments)) = self.spec.argv.split_first() else {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        };
        let work = self.directory.work();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &work)
            .env("PWD", &work)
            .envs(self.directory.environment().unwrap_or_default())
            .env(UNIT_VARIABLE, self.spec.uid.to_string())
            .env(FILES_VARIABLE, self.directory.files())
            .stdin(Stdio::null())
            .stdout(self.writer.try_clone()?)
            .stderr(self.writer.try_clone()?)
            .process_group(0);
        if nix::unistd::geteuid().is_root() {
            let (user, group) = identity(&self.spec);
            command.gid(group).uid(user);
        }
        // The handle is dropped: all children are waited for in one place.
        let pid = command.spawn()?.id().cast_signed();
        self.state.main = ProcessId::of(pid);
        self.state.starts += 1;
        self.record();
        Ok(())
    }

    /// Writes down how it stands. A full disk must not end the workload.
    fn record(&self) {
        let _ = self.directory.write_state(&self.state);
    }

    /// A command that cannot be run ends at once, with the codes that shells use.
    fn not_started(&mut self, error: &io::Error) -> Ending {
        let program = self.spec.argv.first().map_or("", String::as_str);
        let _ = self.log.write(format!("cannot run {program:?}: {error}\n").as_bytes());
        self.state.starts += 1;
        self.record();
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Ending { code, at_unix_nano: now_unix_nano(), why: Why::Exit }
    }

    fn wait_for_main(&mut self, begun: Instant) -> anyhow::Result<Ending> {
        let mut deadline = self.spec.deadline_seconds.map(|seconds| begun + units::seconds(seconds));
        let mut why = Why::Exit;
        let mut kill_at: Option<Instant> = None;
        loop {
            if let Some(code) = self.exited.take() {
                return Ok(Ending { code, at_unix_nano: now_unix_nano(), why });
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| deadline <= now) {
                deadline = None;
                why = Why::Deadline;
                kill_at.get_or_insert(now + self.ask_to_stop());
            }
            if self.stopping && kill_at.is_none() {
                kill_at = Some(now + self.ask_to_stop());
            }
            if kill_at.is_some_and(|at| at <= now) {
                self.signal_all(Signal::SIGKILL);
                kill_at = Some(now + KILL_INTERVAL);
            }
            self.wait([kill_at, deadline].into_iter().flatten().min())?;
        }
    }

    /// Stops what the main process left behind.
    fn clear(&mut self) -> anyhow::Result<()> {
        self.drain()?;
        if self.below().is_empty() {
            return Ok(());
        }
        let mut kill_at = Instant::now() + self.ask_to_stop();
        loop {
            self.wait(Some(kill_at.min(Instant::now() + KILL_INTERVAL)))?;
            if self.below().is_empty() {
                return self.drain();
            }
            if kill_at <= Instant::now() {
                self.signal_all(Signal::SIGKILL);
                kill_at = Instant::now() + KILL_INTERVAL;
            }
        }
    }

    /// Sends TERM to everything, and CONT for what is held still. Returns the grace.
    fn ask_to_stop(&self) -> Duration {
        self.signal_all(Signal::SIGTERM);
        self.signal_all(Signal::SIGCONT);
        let own = u64::try_from(self.spec.grace_seconds).unwrap_or(0);
        let asked = self.directory.stop_request().map(|request| request.grace_seconds);
        units::seconds(asked.unwrap_or(own))
    }

    fn below(&self) -> Vec<i32> {
        let found = procfs::descendants(self.state.supervisor.pid);
        found.into_iter().map(|(pid, _)| pid).collect()
    }

    fn signal_all(&self, signal: Signal) {
        for pid in self.below() {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits for output, a signal, or this moment.
    fn wait(&mut self, until: Option<Instant>) -> anyhow::Result<()> {
        let timeout = match until {
            None => PollTimeout::NONE,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                let milliseconds = u16::try_from(left.as_millis().saturating_add(1)).unwrap_or(u16::MAX);
                PollTimeout::from(milliseconds)
            }
        };
        let mut sources = [
            PollFd::new(self.stops.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.children.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.reader.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut sources, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.take_output()?;
        let mut bytes = [0; 64];
        self.stopping |= self.stops.read(&mut bytes).is_ok_and(|length| length > 0);
        let _ = self.children.read(&mut bytes);
        self.reap()
    }

    /// One piece, so that a chatty workload cannot keep signals waiting.
    fn take_output(&mut self) -> anyhow::Result<bool> {
        let mut piece = [0; 16 * 1024];
        match self.reader.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(length) => {
                // A full disk must not stop the workload; its output is lost then.
                let _ = self.log.write(&piece[..length]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        // Bounded: what is still below may write for ever.
        for _ in 0..256 {
            if !self.take_output()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for every child that has ended, adopted ones included.
    fn reap(&mut self) -> anyhow::Result<()> {
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            if self.state.main.is_some_and(|main| main.pid == pid.as_raw()) {
                self.state.main = None;
                self.exited = Some(code);
            }
        }
    }
}

/// Makes the directories of a unit, its working directory owned by whoever it runs
/// as. Others may pass through but see nothing.
pub fn prepare(directory: &UnitDirectory, spec: &UnitSpec) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
    let make = |path: &Path, mode: u32| {
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    make(directory.path(), 0o711)?;
    make(&directory.log_directory(), 0o700)?;
    make(&directory.work(), 0o700)?;
    if nix::unistd::geteuid().is_root() {
        let (user, group) = identity(spec);
        chown(directory.work(), Some(user), Some(group))?;
    }
    Ok(())
}

/// User and group that a unit runs as when its supervisor is root and may choose. Root
/// is neither the default nor to be had by asking.
pub fn identity(spec: &UnitSpec) -> (u32, u32) {
    let unless_root = |id: Option<u32>| id.filter(|id| *id != 0).unwrap_or(UNPRIVILEGED);
    (unless_root(spec.user), unless_root(spec.group))
}
