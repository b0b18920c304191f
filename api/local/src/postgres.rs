//! The private PostgreSQL of a local stack: found, initialised once, run as an unprivileged user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_testkit::binaries::{self, Account};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use sqlx::Connection;
use tokio::time::Instant;

use crate::layout::{Layout, write_private};
use crate::process::Spec;

const NAME: &str = "postgres";
const DATABASE: &str = "horchestra";

/// How to start the private PostgreSQL and how to reach it.
pub struct Private {
    pub spec: Spec,
    pub url: String,
}

/// Finds the server's programs, installing the distribution's package where that is possible.
fn programs() -> Result<PathBuf> {
    let missing = match binaries::folder() {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    let debian = fs::read_to_string("/etc/os-release").is_ok_and(|text| {
        text.lines()
            .any(|line| line.starts_with("ID") && (line.contains("debian") || line.contains("ubuntu")))
    });
    if !(debian && geteuid().is_root()) {
        return Err(missing.context(
            "PostgreSQL 14 or later is needed: install it (`apt-get install postgresql`, `dnf install \
             postgresql-server`, …) or set DATABASE_URL to a server of your own",
        ));
    }
    crate::say("  installing the package postgresql");
    for args in [&["update"][..], &["install", "-y", "--no-install-recommends", "postgresql"][..]] {
        let done = Command::new("apt-get")
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output()
            .context("running apt-get")?;
        if !done.status.success() {
            bail!("apt-get {} failed:\n{}", args.join(" "), String::from_utf8_lossy(&done.stderr));
        }
    }
    binaries::folder()
}

/// Prepares the data folder and says how to start the server on this port.
pub fn prepare(layout: &Layout, port: u16) -> Result<Private> {
    let binaries = programs()?;
    let account = Account::find()?;
    let user = account.ids();
    let data = data_folder(layout, user)?;
    if !data.join("PG_VERSION").is_file() {
        init(&binaries, &data, account)?;
    }
    let password = fs::read_to_string(password_file(layout)).ok();
    let password = match password {
        Some(kept) if data.join("PG_VERSION").is_file() => kept,
        _ => {
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
        format!("unix_socket_directories={}", data.display()),
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
    Ok(Private { spec, url })
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
    if !place.exists() {
        let reachable = user.is_none_or(|(uid, gid)| can_walk(layout.root(), uid, gid));
        if reachable {
            fs::create_dir_all(&place)?;
        } else {
            let outside = PathBuf::from("/var/tmp")
                .join(format!("horchestra-pg-{:016x}", stable_hash(&layout.root().to_string_lossy())));
            fs::create_dir_all(&outside)?;
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
        bail!(
            "initdb failed:\n{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    Ok(())
}

/// Waits until the server answers, and sees to the role and the database of the stack.
pub async fn ensure_database(layout: &Layout, port: u16, url: &str) -> Result<()> {
    let data = fs::canonicalize(layout.postgres())?;
    let password = fs::read_to_string(password_file(layout))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut admin = loop {
        let options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
            .socket(&data)
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
    sqlx::PgConnection::connect(url).await.context("connecting as the stack's own role")?.close().await?;
    Ok(())
}
