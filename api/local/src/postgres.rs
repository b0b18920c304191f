//! The private PostgreSQL of a local stack: found, initialised once, run as an unprivileged user.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_testkit::binaries::{self, Account};
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};
use sqlx::Connection;
use tokio::time::Instant;

use crate::ground;
use crate::layout::{Layout, write_private};
use crate::process::Spec;

const NAME: &str = "postgres";
const DATABASE: &str = "horchestra";
/// Where data lies that its user could not get at in the stack's folder.
const OUTSIDE: &str = "/var/tmp";

/// How to start the private PostgreSQL and how to reach it.
pub struct Private {
    pub spec: Spec,
    pub url: String,
    /// Where its socket lies.
    sockets: PathBuf,
}

/// The oldest server that will do.
const OLDEST: u32 = 14;

/// Finds the server's programs, installing the distribution's package where that is possible.
fn programs() -> Result<PathBuf> {
    let missing = match binaries::folder() {
        Ok(found) => return Ok(found),
        Err(_) => {
            "no PostgreSQL server programs (initdb, postgres) on the PATH, through pg_config or under \
                   /usr/lib/postgresql"
        }
    };
    let advice = "install PostgreSQL 14 or later (`apt-get install postgresql`, `dnf install postgresql-server`, …), or \
                  name a database of your own with DATABASE_URL";
    let debian = fs::read_to_string("/etc/os-release").is_ok_and(|text| {
        text.lines()
            .any(|line| line.starts_with("ID") && (line.contains("debian") || line.contains("ubuntu")))
    });
    if !(debian && geteuid().is_root()) {
        bail!("{missing}: {advice}");
    }
    crate::say("  installing the package postgresql");
    for args in [&["update"][..], &["install", "-y", "--no-install-recommends", "postgresql"][..]] {
        let done = Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive").output();
        let failure = match done {
            Ok(done) if done.status.success() => continue,
            Ok(done) => last_error(&done),
            Err(error) => error.to_string(),
        };
        bail!("{missing}, and `apt-get {}` failed ({failure}): {advice}", args.join(" "));
    }
    binaries::folder()
}

/// The programs for this data, or for new data.
fn fitting(data: &Path) -> Result<PathBuf> {
    let found = programs()?;
    let version = binaries::version(&found)?;
    let Some(wanted) = data_version(data) else {
        if version < OLDEST {
            bail!(
                "the PostgreSQL in {} is version {version}: install {OLDEST} or later, or name a database of your own \
                 with DATABASE_URL",
                found.display()
            );
        }
        return Ok(found);
    };
    if version == wanted {
        return Ok(found);
    }
    binaries::of_version(wanted).with_context(|| {
        format!(
            "the data in {data} was written by PostgreSQL {wanted}, and only version {version} is here: install \
             postgresql-{wanted}, or give the data up (`rm -r {data}`)",
            data = data.display()
        )
    })
}

/// Which major version has written the data; nothing where there is none.
fn data_version(data: &Path) -> Option<u32> {
    fs::read_to_string(data.join("PG_VERSION")).ok()?.trim().parse().ok()
}

/// What a program said last about why it failed.
fn last_error(output: &Output) -> String {
    let text =
        format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors = ["error:", "FATAL:", "E:", "Err:"];
    let telling = lines.iter().rev().find(|line| errors.iter().any(|word| line.contains(word)));
    telling.or(lines.last()).map_or_else(|| output.status.to_string(), |line| (*line).to_owned())
}

/// Prepares the data folder and says how to start the server on this port.
pub fn prepare(layout: &Layout, port: u16) -> Result<Private> {
    let account = Account::find()?;
    let user = account.ids();
    let data = data_folder(layout, user)?;
    let unfinished = layout.run().join("postgres.unfinished");
    if unfinished.exists() {
        empty(&data)?;
    }
    let binaries = fitting(&data)?;
    if data_version(&data).is_none() {
        fs::write(&unfinished, "")?;
        init(&binaries, &data, account)?;
        fs::remove_file(&unfinished)?;
    }
    let sockets = socket_folder(&data, user)?;
    let password = match fs::read_to_string(password_file(layout)) {
        Ok(kept) => kept,
        Err(_) => {
            let fresh = random_password();
            write_private(&password_file(layout), fresh.as_bytes())?;
            fresh
        }
    };
    let mut spec = Spec::new(NAME, binaries.join("postgres")).args([
        "-D".to_owned(),
        data.display().to_string(),
        "-p".to_owned(),
        port.to_string(),
        "-c".to_owned(),
        "listen_addresses=127.0.0.1".to_owned(),
        "-c".to_owned(),
        format!("unix_socket_directories={}", sockets.display()),
        "-c".to_owned(),
        "max_connections=200".to_owned(),
        "-c".to_owned(),
        "shared_buffers=128MB".to_owned(),
        "-c".to_owned(),
        "wal_compression=on".to_owned(),
    ]);
    spec.user = user;
    // SIGINT is PostgreSQL's fast shutdown: sessions are ended, data is flushed.
    spec.stop_signal = Signal::SIGINT;
    spec.stop_within = Duration::from_secs(30);
    let url = format!("postgres://horchestra:{password}@127.0.0.1:{port}/{DATABASE}");
    Ok(Private { spec, url, sockets })
}

/// Takes everything out of the folder.
fn empty(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}

/// The folder for the socket of data whose path is too long for one.
fn short_sockets(data: &Path) -> Option<PathBuf> {
    const LONGEST: usize = 107;
    (data.as_os_str().len() + "/.s.PGSQL.65535".len() > LONGEST).then(|| {
        PathBuf::from("/tmp").join(format!("horchestra-{:016x}", stable_hash(&data.to_string_lossy())))
    })
}

/// Takes away what a server that has ended leaves outside of its data.
pub fn tidy(layout: &Layout) {
    if let Some(folder) = fs::canonicalize(layout.postgres()).ok().and_then(|data| short_sockets(&data)) {
        let _ = fs::remove_dir(folder);
    }
}

/// Where the server's socket lies: beside the data, or where a path that long does not fit into an address, in a
/// folder of its user alone.
fn socket_folder(data: &Path, user: Option<(u32, u32)>) -> Result<PathBuf> {
    let Some(folder) = short_sockets(data) else { return Ok(data.to_owned()) };
    let (uid, gid) = user.unwrap_or((geteuid().as_raw(), getegid().as_raw()));
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => chown(&folder, Some(uid), Some(gid))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(&folder)?;
            if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
                bail!(
                    "{} is somebody else's: remove it, or name a shorter HORCHESTRA_HOME",
                    folder.display()
                );
            }
        }
        Err(error) => return Err(error).context(format!("making {}", folder.display())),
    }
    Ok(folder)
}

fn password_file(layout: &Layout) -> PathBuf {
    layout.run().join("postgres.password")
}

fn random_password() -> String {
    use rand::Rng;
    rand::rng().sample_iter(rand::distr::Alphanumeric).take(32).map(char::from).collect()
}

/// The data folder. Where its user could not walk to it (a checkout below root's home, say) the data lies
/// in /var/tmp and the stack's folder holds a link.
fn data_folder(layout: &Layout, user: Option<(u32, u32)>) -> Result<PathBuf> {
    let place = layout.postgres();
    if let (false, Ok(gone)) = (place.exists(), fs::read_link(&place)) {
        bail!(
            "the database of this stack lay in {}, which is gone: begin anew (`rm -r {}`)",
            gone.display(),
            layout.root().display()
        );
    }
    if !place.exists() {
        let reachable = user.is_none_or(|(uid, gid)| can_walk(layout.root(), uid, gid));
        if reachable {
            fs::create_dir_all(&place)?;
        } else {
            ground::room(Path::new(OUTSIDE))?;
            let outside = outside(layout.root())?;
            symlink(&outside, &place).context("linking the data folder")?;
        }
    }
    let data = fs::canonicalize(&place)?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
    if let Some((uid, gid)) = user {
        chown(&data, Some(uid), Some(gid))?;
    }
    Ok(data)
}

/// A new folder outside. What a stack has left whose folder was removed since is not taken up: its keys went with it.
fn outside(root: &Path) -> Result<PathBuf> {
    let name = format!("horchestra-pg-{:016x}", stable_hash(&root.to_string_lossy()));
    for count in 1.. {
        let path = PathBuf::from(OUTSIDE).join(match count {
            1 => name.clone(),
            _ => format!("{name}-{count}"),
        });
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => crate::say(&format!(
                "  note       {} is what an earlier stack of this folder has left; nothing needs it any more",
                path.display()
            )),
            Err(error) => return Err(error).context(format!("making {}", path.display())),
        }
    }
    bail!("there is no name left in {OUTSIDE}")
}

fn can_walk(folder: &Path, uid: u32, gid: u32) -> bool {
    folder.ancestors().all(|ancestor| {
        fs::metadata(ancestor).is_ok_and(|meta| {
            let mode = meta.mode();
            let bit = if meta.uid() == uid {
                0o100
            } else if meta.gid() == gid {
                0o010
            } else {
                0o001
            };
            mode & bit != 0
        })
    })
}

fn stable_hash(text: &str) -> u64 {
    // FNV-1a: the same folder must lead to the same place with every build.
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn init(programs: &Path, data: &Path, account: Account) -> Result<()> {
    let done = account
        .command(&programs.join("initdb"))
        .arg("-D")
        .arg(data)
        .args([
            "-U",
            NAME,
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ])
        .current_dir("/")
        .output()
        .context("running initdb")?;
    if !done.status.success() {
        bail!("a database could not be made in {}: {}", data.display(), last_error(&done));
    }
    Ok(())
}

/// Waits until the server answers, and sees to the role and the database of the stack.
pub async fn ensure_database(layout: &Layout, port: u16, private: &Private) -> Result<()> {
    let password = fs::read_to_string(password_file(layout))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut admin = loop {
        let options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
            .socket(&private.sockets)
            .port(port)
            .username(NAME)
            .database("postgres");
        match sqlx::PgConnection::connect_with(&options).await {
            Ok(connection) => break connection,
            Err(error) if Instant::now() > deadline => {
                return Err(error).context(format!(
                    "PostgreSQL does not answer; its log is {}",
                    layout.log_of(NAME).display()
                ));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let known: bool = sqlx::query_scalar("select exists (select from pg_roles where rolname = 'horchestra')")
        .fetch_one(&mut admin)
        .await?;
    // The password is ours: letters and digits only.
    let verb = if known { "alter" } else { "create" };
    let role = format!("{verb} role horchestra login createrole password '{password}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(role)).execute(&mut admin).await?;
    let there: bool =
        sqlx::query_scalar("select exists (select from pg_database where datname = 'horchestra')")
            .fetch_one(&mut admin)
            .await?;
    if !there {
        sqlx::raw_sql("create database horchestra owner horchestra").execute(&mut admin).await?;
    }
    admin.close().await?;
    sqlx::PgConnection::connect(&private.url)
        .await
        .context("connecting as the stack's own role")?
        .close()
        .await?;
    Ok(())
}
