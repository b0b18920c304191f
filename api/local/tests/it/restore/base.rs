//! A base backup and the archive of the write-ahead log, as the guide says.

use horchestra_testkit::binaries::Account;
use horchestra_testkit::{Cluster, Shutdown, TempDir};

use super::fleet::{Fleet, ended, server, texts};
use crate::guide::Reader;
use crate::plane::running;
use crate::tour::kubectls;

/// A server that archives, with a base backup in this folder.
fn archiving(server: &mut Cluster, backups: &TempDir) -> Reader {
    Account::find().unwrap().own(backups.path()).unwrap();
    let operator = Reader::new(backups.path())
        .on_the_server()
        .with("ADMIN_URL", server.url("postgres"))
        .with("BACKUPS", backups.path().display().to_string())
        .with("PGDATA", server.data().display().to_string());
    operator.run("archive");
    server.restart(Shutdown::Fast).unwrap();
    operator
}

/// Now, by the server's clock.
async fn now(url: &str) -> String {
    texts(url, "select clock_timestamp()::text").await.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_moment_comes_back_behind_running_processes_or_while_nothing_runs() {
    if kubectls().is_empty() {
        return;
    }
    let mut server = server();
    let backups = TempDir::new().unwrap();
    let operator = archiving(&mut server, &backups);
    let url = server.url("postgres");
    let mut fleet = Fleet::start(&url).await;
    let reader = fleet.reader(&url);
    let mut kept = fleet.run("kept").await;
    operator.run("base-backup");
    // In the log alone.
    let archived = fleet.run("archived").await;
    let moment = now(&url).await;
    let lost = fleet.run("lost").await;
    let mut watch = fleet.watch(fleet.revision().await).await;
    let kubectl = fleet.kubectl_watch(&reader);
    fleet.touch("noticed").await;
    watch.wait_for("noticed").await;
    let before = running(&fleet.agents);

    server.stop(Shutdown::Fast).unwrap();
    operator.clone().with("MOMENT", moment.clone()).run("restore-base");
    server.start_again().unwrap();
    watch.assert_expires().await;
    ended(kubectl).await;
    fleet.wait_until_held("HistoryLost").await;
    assert_eq!(running(&fleet.agents), before, "nothing was started or stopped");
    let names = reader.line("kubectl get app -o name");
    assert!(names.contains("/archived-node-1") && !names.contains("/lost-node-1"), "{names}");
    operator.run("restored");
    fleet.converge(&reader, &kept, &lost).await;
    fleet.assert_runs(&archived, "after all");

    // The same while nothing runs that could know better.
    kept.clone_from(&archived);
    reader.line("kubectl delete app later");
    let lost = fleet.run("lost").await;
    let revision = fleet.revision().await;
    fleet.stop_plane();
    let before = running(&fleet.agents);
    server.stop(Shutdown::Fast).unwrap();
    operator.line("rm -r \"$PGDATA.before\"");
    operator.with("MOMENT", moment).run("restore-base");
    server.start_again().unwrap();
    fleet.start_plane(&url).await;
    fleet.wait_until_held("HistoryUnproven").await;
    fleet.watch(revision).await.assert_expires().await;
    assert_eq!(running(&fleet.agents), before, "nothing was started or stopped");
    fleet.converge(&reader, &kept, &lost).await;
}
