//! What goes wrong on a newcomer's machine: each time one line says what it is and what to do, and nothing is left
//! running. What can be done without the newcomer is done: long paths, ordinary users, what a crash has left.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use horchestra_testkit::{TempDir, binaries, free_port};
use nix::unistd::geteuid;

use crate::guide::programs;
use crate::stack::said;

/// An ordinary user of every machine.
const NOBODY: u32 = 65534;
const TOOL: &str = env!("CARGO_BIN_EXE_horchestra-local");

fn tool(home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(TOOL);
    command.arg("--home").arg(home).args(words).env_remove("DATABASE_URL").stdin(Stdio::null());
    command
}

/// `up` fails, and one line says all of this.
#[track_caller]
fn fails(what: &str, mut command: Command, parts: &[&str]) {
    let output = command.output().unwrap();
    let text = said(&output);
    assert!(!output.status.success(), "{what}: {text}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let line =
        told.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{what}: {text}"));
    for part in parts {
        assert!(line.contains(part), "{what}: {part:?} is missing in {text}");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The same command as an ordinary user; nothing where this user cannot become another one, or the other one cannot
/// get at the programs.
fn as_nobody(mut command: Command) -> Option<Command> {
    if !geteuid().is_root() {
        return Some(command);
    }
    let mut trial = Command::new(TOOL);
    trial.arg("--version").uid(NOBODY).gid(NOBODY).stdout(Stdio::null());
    trial.status().ok().filter(std::process::ExitStatus::success)?;
    command.uid(NOBODY).gid(NOBODY);
    Some(command)
}

#[test]
fn a_folder_that_will_not_do() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    fails("a file", tool(&at("file"), &["up"]), &["file is not a folder", "HORCHESTRA_HOME"]);
    fs::create_dir(at("open")).unwrap();
    if geteuid().is_root() {
        mode(folder.path(), 0o755);
        // Others may look, and not write.
        fs::create_dir_all(at("roots/run")).unwrap();
        fs::create_dir(at("secret")).unwrap();
        mode(&at("secret"), 0o700);
        for (what, parts) in [
            ("open", ["nobody cannot write to", "HORCHESTRA_HOME"]),
            ("new", ["nobody cannot write to", "HORCHESTRA_HOME"]),
            ("roots", ["belongs to root: do this as root", "HORCHESTRA_HOME"]),
            ("secret", ["nobody may not look into", "HORCHESTRA_HOME"]),
        ] {
            let Some(command) = as_nobody(tool(&at(what), &["up"])) else { return };
            fails(what, command, &parts);
        }
        let Some(down) = as_nobody(tool(&at("roots"), &["down"])) else { return };
        fails("somebody else's stack", down, &["belongs to root"]);
    } else {
        mode(&at("open"), 0o555);
        fails("read only", tool(&at("open"), &["up"]), &["cannot write to", "HORCHESTRA_HOME"]);
        mode(&at("open"), 0o755);
    }
}

#[test]
fn a_port_that_somebody_has() {
    let folder = TempDir::new().unwrap();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let holder = format!("(pid {})", std::process::id());
    for (option, variable) in [("--api-port", "API_PORT"), ("--nodegate-port", "NODEGATE_PORT")] {
        let command = tool(folder.path(), &["up", option, &port]);
        let named = format!("port {port}");
        fails(option, command, &[&named, "is in use by", &holder, variable, option]);
    }
}

#[test]
fn data_and_keys_that_do_not_fit() {
    let folder = TempDir::new().unwrap();
    let old = folder.path().join("old");
    fs::create_dir_all(old.join("pg")).unwrap();
    // Long out of use, and nowhere installed.
    fs::write(old.join("pg/PG_VERSION"), "9\n").unwrap();
    fails("old data", tool(&old, &["up"]), &["was written by PostgreSQL 9", "install postgresql-9", "rm -r"]);

    let swept = folder.path().join("swept");
    fs::create_dir(&swept).unwrap();
    symlink("/var/tmp/horchestra-pg-of-nobody", swept.join("pg")).unwrap();
    fails("data that was swept away", tool(&swept, &["up"]), &["pg-of-nobody, which is gone", "begin anew"]);

    let half = folder.path().join("half");
    fs::create_dir_all(half.join("pki")).unwrap();
    mode(&half.join("pki"), 0o700);
    fs::write(half.join("pki/ca.key"), "").unwrap();
    fails("half an authority", tool(&half, &["up"]), &["ca.key is there", "remove this one to start anew"]);
}

/// A command in a world of its own, where something lies over the machine's folders; nothing where that is not allowed.
fn elsewhere(mounts: &str, command: &Command) -> Option<Command> {
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-euc", script, "sh"]).stdin(Stdio::null());
        command
    };
    let trial = inside("mount -t tmpfs none /mnt").stderr(Stdio::null()).status();
    trial.ok().filter(std::process::ExitStatus::success)?;
    let mut outer = inside(&format!("{mounts}\nexec \"$@\""));
    outer.arg(command.get_program()).args(command.get_args());
    // The PATH is the script's to set.
    for (name, value) in command.get_envs().filter(|(name, _)| *name != "PATH") {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    Some(outer)
}

#[test]
fn a_disk_that_is_full() {
    let folder = TempDir::new().unwrap();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = format!("mount -t tmpfs -o size=20m none {}", small.display());
    let Some(command) = elsewhere(&mount, &tool(&small, &["up"])) else { return };
    fails("no room", command, &["MiB more, and a stack takes 200", "make room", "HORCHESTRA_HOME"]);
}

#[test]
fn a_machine_without_postgresql() {
    let folder = TempDir::new().unwrap();
    let bare = folder.path().join("bin");
    fs::create_dir(&bare).unwrap();
    let home = folder.path().join("home");
    // Debian's package cannot be had.
    let script = |name: &str, text: &str| {
        fs::write(bare.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        mode(&bare.join(name), 0o755);
    };
    script("apt-get", "echo 'E: Unable to locate package postgresql' >&2; exit 100");
    script("pg_config", "exit 1");
    let hidden = "for f in /usr/lib/postgresql /usr/libexec/postgresql; do [ ! -d $f ] || mount -t tmpfs none $f; done";
    let world = format!("{hidden}\nPATH={}", bare.display());
    let Some(command) = elsewhere(&world, &tool(&home, &["up"])) else { return };
    fails("no server", command, &["no PostgreSQL server programs", "install PostgreSQL 14", "DATABASE_URL"]);
}

#[test]
fn a_process_that_does_not_stay_up() {
    let folder = TempDir::new().unwrap();
    let command = tool(folder.path(), &["up", "--feature-gates", "NoSuchThing=true"]);
    let parts =
        ["api-0 ends as soon as it is started", "api-0.log", "there is no feature gate \"NoSuchThing\""];
    fails("a feature that is none", command, &parts);
    let left = fs::read_dir(folder.path().join("run")).unwrap().flatten();
    let pids: Vec<_> = left.filter(|entry| entry.path().extension().is_some_and(|it| it == "pid")).collect();
    assert!(pids.is_empty(), "{pids:?}");
    forget(folder.path());
}

/// Data that lies elsewhere because its user could not get at the folder.
pub fn forget(home: &Path) {
    if let Ok(data) = fs::read_link(home.join("pg")) {
        let _ = fs::remove_dir_all(data);
    }
}

/// Ends a process with the value.
struct Sleeper(std::process::Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_ordinary_user_with_a_long_path_after_a_crash_and_without_kubectl() {
    let folder = TempDir::new().unwrap();
    mode(folder.path(), 0o755);
    // Longer than the address of a socket may be.
    let home = folder.path().join("a".repeat(60)).join("b".repeat(60));
    fs::create_dir_all(home.join("run")).unwrap();
    fs::create_dir(home.join("pg")).unwrap();
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    // A database that was being made, a process of somebody else that has a pid of before, and one that is over.
    fs::write(home.join("pg/PG_VERSION"), "17\n").unwrap();
    fs::write(home.join("run/postgres.unfinished"), "").unwrap();
    fs::write(home.join("run/api-0.pid"), sleeper.0.id().to_string()).unwrap();
    fs::write(home.join("run/postgres.pid"), "4194304\n").unwrap();
    let owned: Vec<PathBuf> = [&home, &home.join("run"), &home.join("pg"), &home.join("pg/PG_VERSION")]
        .into_iter()
        .cloned()
        .chain(fs::read_dir(home.join("run")).unwrap().map(|entry| entry.unwrap().path()))
        .collect();
    if geteuid().is_root() {
        for path in &owned {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    // Only what a stack needs.
    let path = fs::canonicalize(binaries::folder().unwrap().join("postgres")).unwrap();
    let run = |words: &[&str]| -> Option<Output> {
        let mut command = tool(&home, words);
        command.env("PATH", path.parent().unwrap()).current_dir("/");
        Some(as_nobody(command)?.output().unwrap())
    };
    let (api, nodes) = (free_port().unwrap().to_string(), free_port().unwrap().to_string());
    let up = ["up", "--nodes", "1", "--api-port", &api, "--nodegate-port", &nodes];
    let Some(output) = run(&[&up[..], &["--detach"]].concat()) else { return };
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("nodes      1 ready") && text.contains("note: there is no kubectl"), "{text}");

    let again = run(&up).unwrap();
    let text = said(&again);
    assert!(!again.status.success() && text.contains("already runs here (pid"), "{text}");
    assert!(text.contains("`make down` stops it"), "{text}");
    let again = run(&["up", "--detach"]).unwrap();
    assert!(
        again.status.success() && said(&again).contains("to change that, `make down` first"),
        "{}",
        said(&again)
    );

    let down = run(&["down"]).unwrap();
    assert!(down.status.success(), "{}", said(&down));
    let state = fs::read_to_string(format!("/proc/{}/stat", sleeper.0.id())).unwrap();
    assert!(!state.contains(") Z"), "it was ended for what somebody else has left: {state}");
}

#[test]
fn a_tool_that_lies_alone_says_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let alone = folder.path().join("horchestra-local");
    fs::hard_link(TOOL, &alone).or_else(|_| fs::copy(TOOL, &alone).map(drop)).unwrap();
    let mut command = Command::new(&alone);
    command.arg("--home").arg(folder.path().join("home")).arg("up").env_remove("DATABASE_URL");
    fails("not built", command, &["horchestra-api is not built", "cargo build --workspace"]);
    assert!(programs().join("horchestra-api").is_file());
}

#[test]
fn a_database_that_does_not_answer() {
    let folder = TempDir::new().unwrap();
    let mut command = tool(folder.path(), &["up"]);
    let port = free_port().unwrap();
    command.env("DATABASE_URL", format!("postgres://nobody@127.0.0.1:{port}/none"));
    fails(
        "no database",
        command,
        &["the schema could not be brought up to date", "cannot be reached: see whether PostgreSQL runs"],
    );
}
