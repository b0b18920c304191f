use std::path::Path;
use std::time::Duration;

use horchestra_testkit::{Cluster, ClusterOptions, Shutdown, eventually};
use sqlx::{Connection, PgConnection};

async fn answer(url: &str) -> anyhow::Result<i32> {
    let mut connection = PgConnection::connect(url).await?;
    Ok(sqlx::query_scalar("SELECT 42").fetch_one(&mut connection).await?)
}

#[tokio::test]
async fn a_private_server_survives_stops_and_kills_and_leaves_nothing() {
    let mut cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let url = cluster.url("postgres");
    assert_eq!(answer(&url).await.unwrap(), 42);
    assert_eq!(answer(&cluster.socket_url("postgres")).await.unwrap(), 42);

    for how in [Shutdown::Smart, Shutdown::Fast, Shutdown::Immediate] {
        cluster.stop(how).unwrap();
        assert!(answer(&url).await.is_err(), "still answers after {how:?}");
        cluster.start_again().unwrap();
        assert_eq!(answer(&url).await.unwrap(), 42);
    }
    cluster.kill().unwrap();
    assert!(answer(&url).await.is_err());
    cluster.start_again().unwrap();
    assert_eq!(answer(&url).await.unwrap(), 42);

    let (folder, pid) = (cluster.folder().to_owned(), cluster.pid().unwrap());
    drop(cluster);
    assert!(!folder.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn a_paused_server_keeps_its_connections_and_answers_later() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let mut connection = PgConnection::connect(&cluster.url("postgres")).await.unwrap();
    cluster.pause().unwrap();
    let mut query = Box::pin(sqlx::query_scalar::<_, i32>("SELECT 1").fetch_one(&mut connection));
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut query).await.is_err());
    cluster.resume().unwrap();
    assert_eq!(query.await.unwrap(), 1);
}

#[tokio::test]
async fn settings_reach_the_server() {
    let cluster = Cluster::start(ClusterOptions {
        fsync: true,
        settings: vec![("work_mem".to_owned(), "3MB".to_owned())],
        ..ClusterOptions::default()
    })
    .unwrap();
    let mut connection = PgConnection::connect(&cluster.url("postgres")).await.unwrap();
    for (name, expected) in [("fsync", "on"), ("work_mem", "3MB")] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(name)
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(value, expected, "{name}");
    }
}

/// The process that owns a cluster is killed with SIGKILL: its server and its folder go too. The owner is
/// this same test in a second process.
#[tokio::test]
async fn a_killed_owner_leaves_no_server() {
    if std::env::var_os("TESTKIT_OWNER").is_some() {
        own_a_cluster_until_killed();
    }
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cluster::a_killed_owner_leaves_no_server", "--nocapture"])
        .env("TESTKIT_OWNER", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap()));
    let (pid, folder) = loop {
        let line = lines.next().expect("the owner ended early").unwrap();
        if let Some(rest) = line.split_once("owns ").map(|(_, rest)| rest.to_owned()) {
            let (pid, folder) = rest.split_once(' ').unwrap();
            break (pid.parse::<u32>().unwrap(), folder.to_owned());
        }
    };
    assert!(Path::new(&folder).exists());
    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually(Duration::from_secs(20), async || {
        // A zombie counts as gone: whether somebody reaps it depends on the machine's init.
        let gone = std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')));
        gone && !Path::new(&folder).exists()
    })
    .await;
}

fn own_a_cluster_until_killed() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    #[expect(clippy::print_stdout, reason = "the parent process reads this line")]
    {
        println!("owns {} {}", cluster.pid().unwrap(), cluster.folder().display());
    }
    loop {
        std::thread::park();
    }
}
