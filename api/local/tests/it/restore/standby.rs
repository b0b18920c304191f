//! A standby takes over, with everything that anybody has seen or without.

use std::net::SocketAddr;
use std::path::Path;

use horchestra_testkit::binaries::{self, Account};
use horchestra_testkit::{Cluster, TempDir, eventually, free_port};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::fleet::{Fleet, ended, server, sql, texts};
use super::{RECOVERY, SOON};
use crate::guide::Reader;
use crate::plane::{Program, held, running};
use crate::tour::kubectls;

/// The name of the database, so to say: leads to whichever server it is at the moment.
struct Name {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    _tasks: JoinSet<()>,
}

impl Name {
    async fn of(target: u16) -> Name {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = watch::Sender::new(SocketAddr::from(([127, 0, 0, 1], target)));
        let (mut tasks, targets) = (JoinSet::new(), target.subscribe());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(forward(near, targets.clone()));
            }
        });
        Name { address, target, _tasks: tasks }
    }

    /// Leads to another server from now on.
    fn move_to(&self, port: u16) {
        self.target.send_replace(SocketAddr::from(([127, 0, 0, 1], port)));
    }

    fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.address)
    }
}

async fn forward(mut near: TcpStream, mut targets: watch::Receiver<SocketAddr>) {
    let target = *targets.borrow_and_update();
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    tokio::select! {
        _ = targets.changed() => {}
        _ = copy_bidirectional(&mut near, &mut far) => {}
    }
}

/// A server that follows another one.
struct Standby {
    port: u16,
    operator: Reader,
    _program: Program,
    _folder: TempDir,
}

impl Standby {
    async fn of(primary: &Cluster) -> Standby {
        let account = Account::find().unwrap();
        let folder = TempDir::new().unwrap();
        account.own(folder.path()).unwrap();
        let data = folder.path().join("data").display().to_string();
        let operator = Reader::new(folder.path())
            .on_the_server()
            .with("ADMIN_URL", primary.url("postgres"))
            .with("PGDATA", data.clone());
        operator.run("standby");
        let port = free_port().unwrap();
        let mut command = account.command(&binaries::program("postgres").unwrap());
        command.args(["-D", &data, "-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c"]);
        command
            .arg(format!("unix_socket_directories={}", folder.path().display()))
            .current_dir(folder.path());
        command.args(["-c", "max_connections=200"]);
        let program = Program::start(command, Path::new("/dev/null"));
        let standby = Standby { port, operator, _program: program, _folder: folder };
        standby.catch_up(primary).await;
        standby
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// It has everything that was written until now.
    async fn catch_up(&self, primary: &Cluster) {
        let query =
            "select coalesce(replay_lsn >= pg_current_wal_flush_lsn(), false)::text from pg_stat_replication";
        eventually(RECOVERY, async || texts(&primary.url("postgres"), query).await == ["true"]).await;
    }

    /// What is written from now on does not come here.
    async fn cut_off(&self, primary: &Cluster) {
        sql(&self.url(), "alter system set primary_conninfo = ''").await;
        sql(&self.url(), "select pg_reload_conf()").await;
        let query = "select pid::text from pg_stat_replication";
        eventually(RECOVERY, async || texts(&primary.url("postgres"), query).await.is_empty()).await;
    }

    /// The primary is gone: this is the database from now on.
    fn take_over(&self, mut primary: Cluster, name: &Name) {
        primary.kill().unwrap();
        self.operator.run("promote");
        name.move_to(self.port);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_lacks_nothing_is_taken_without_a_word() {
    let primary = server();
    let name = Name::of(primary.port()).await;
    let fleet = Fleet::start(&name.url()).await;
    let kept = fleet.run("kept").await;
    let mut watch = fleet.watch(fleet.revision().await).await;
    let before = running(&fleet.agents);
    let standby = Standby::of(&primary).await;
    standby.catch_up(&primary).await;
    standby.take_over(primary, &name);
    // The watch that was open goes on.
    fleet.touch("afterwards").await;
    watch.wait_for("afterwards").await;
    for agent in &fleet.agents {
        eventually(SOON, async || held(&fleet.client, &agent.node).await.as_deref() == Some("")).await;
    }
    fleet.run("more").await;
    fleet.assert_runs(&kept, "after the failover");
    let after = running(&fleet.agents);
    for (node, units) in before {
        assert!(units.iter().all(|(uid, unit)| after[&node].get(uid) == Some(unit)), "{node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_lacks_something_stops_nothing() {
    if kubectls().is_empty() {
        return;
    }
    let primary = server();
    let name = Name::of(primary.port()).await;
    let fleet = Fleet::start(&name.url()).await;
    let reader = fleet.reader(&name.url());
    let kept = fleet.run("kept").await;
    let standby = Standby::of(&primary).await;
    standby.cut_off(&primary).await;
    let lost = fleet.run("lost").await;
    let watch = fleet.watch(fleet.revision().await).await;
    let kubectl = fleet.kubectl_watch(&reader);
    let before = running(&fleet.agents);
    standby.take_over(primary, &name);
    watch.assert_expires().await;
    ended(kubectl).await;
    fleet.wait_until_held("HistoryLost").await;
    assert_eq!(running(&fleet.agents), before, "nothing was started or stopped");
    fleet.converge(&reader, &kept, &lost).await;
}
