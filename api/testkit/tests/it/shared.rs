//! The server that tests share, seen from outside: by processes that come, use it and go. A temporary folder
//! of their own gives these processes a server of their own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use horchestra_testkit::{Cluster, ClusterOptions, TempDir, empty_database, eventually, server_url};
use sqlx::{Connection, PgConnection};

const DEADLINE: Duration = Duration::from_secs(60);

/// A temporary folder that the database's account can pass through.
fn passable() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
    dir
}

/// The test of this name in a second process.
fn again(test: &str, temporary: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", temporary)
        .env_remove("TEST_DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Folders of shared servers below `temporary`, each with the server's process.
fn servers(temporary: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for home in fs::read_dir(temporary).into_iter().flatten().flatten() {
        for folder in fs::read_dir(home.path()).into_iter().flatten().flatten() {
            let pid = fs::read_to_string(folder.path().join("data/postmaster.pid")).unwrap_or_default();
            if let Some(pid) = pid.lines().next().and_then(|pid| pid.parse().ok()) {
                found.push((folder.path(), pid));
            }
        }
    }
    found
}

fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
        && !fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[tokio::test]
async fn processes_share_one_server_and_it_goes_after_the_last_of_them_however_they_end() {
    if std::env::var_os("TESTKIT_USER").is_some() {
        let database = empty_database().await.unwrap();
        PgConnection::connect(database.url()).await.unwrap();
        // No destructor runs.
        std::process::abort();
    }
    let temporary = passable();
    let test = "shared::processes_share_one_server_and_it_goes_after_the_last_of_them_however_they_end";
    let mut users: Vec<_> = (0..3)
        .map(|_| {
            again(test, temporary.path()).env("TESTKIT_USER", "1").stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for user in &mut users {
        let status = user.wait().unwrap();
        assert!(status.code().is_none(), "{status}: it did not come as far as its abort");
    }
    let found = servers(temporary.path());
    assert_eq!(found.len(), 1, "{found:?}");
    let (folder, pid) = &found[0];
    eventually(DEADLINE, async || !runs(*pid) && !folder.exists()).await;
}

#[tokio::test]
async fn a_server_that_was_named_is_used_and_none_is_started() {
    if std::env::var_os("TESTKIT_NAMED").is_some() {
        let database = empty_database().await.unwrap();
        assert!(database.url().starts_with(server_url("").await.unwrap().as_str()));
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        sqlx::raw_sql("CREATE ROLE seen_by_the_parent").execute(&mut connection).await.unwrap();
        return;
    }
    let temporary = passable();
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let status = again("shared::a_server_that_was_named_is_used_and_none_is_started", temporary.path())
        .env("TESTKIT_NAMED", "1")
        .env("TEST_DATABASE_URL", cluster.url("postgres"))
        .status()
        .unwrap();
    assert!(status.success());
    assert!(servers(temporary.path()).is_empty());
    let mut server = PgConnection::connect(&cluster.url("postgres")).await.unwrap();
    let look = "SELECT (SELECT count(*) FROM pg_roles WHERE rolname = 'seen_by_the_parent'), \
                (SELECT count(*) FROM pg_database WHERE datname LIKE 'ht\\_%')";
    let counts: (i64, i64) = sqlx::query_as(look).fetch_one(&mut server).await.unwrap();
    assert_eq!(counts, (1, 0), "the role stays, the database was dropped");
}
