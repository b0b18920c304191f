//! After the storm: everything comes to rest, and then nothing is written any more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::application_set::ApplicationSet;
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_store::{Entry, Revision};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::leaders::{self, LOOPS};
use super::processes::Processes;
use super::recorder::{Recorder, Watcher};
use super::site::Site;
use crate::say;

/// How long everything may take to come about that was wished for.
const PATIENCE: Duration = Duration::from_secs(240);
/// Without a change for so long, what is left is told: nobody collects observations for longer.
const CALM: Duration = Duration::from_secs(8);
/// Two times the longest wait between two passes of a loop, and some.
const RESYNCS: Duration = Duration::from_secs(130);

/// Waits until everything is as it was wished for and nothing has been written for a while. Answers the revision.
pub async fn come_to_rest<W: Watcher>(recorder: &Recorder<W>) -> Result<Revision> {
    let deadline = Instant::now() + PATIENCE;
    let (mut head, mut since) = (recorder.newest().await?, Instant::now());
    loop {
        sleep(Duration::from_millis(250)).await;
        let now = recorder.newest().await?;
        if now != head {
            (head, since) = (now, Instant::now());
        }
        if since.elapsed() >= CALM || Instant::now() > deadline {
            let open: Vec<String> = recorder.stored().await?.iter().filter_map(open).collect();
            if open.is_empty() && since.elapsed() >= CALM {
                return Ok(head);
            }
            if Instant::now() > deadline {
                bail!("not at rest after {PATIENCE:?}: at revision {now}, open: {}", open.join("; "));
            }
        }
    }
}

/// What an object still waits for.
fn open(entry: &Arc<Entry>) -> Option<String> {
    let key = &entry.key;
    if entry.deleting {
        return Some(format!("{key} is being deleted"));
    }
    match key.kind {
        Kind::Application => {
            let app = entry.typed::<Application>().ok()?;
            let placed = !app.node_name().is_empty();
            let current = app.status.observed_generation == app.metadata.generation;
            let well =
                if app.is_job() { app.is_finished() } else { app.status.phase == "Running" && current };
            let status = (&app.status.phase, &app.status.message);
            (!placed || !well).then(|| format!("{key} on {:?}: {status:?}", app.node_name()))
        }
        Kind::ApplicationSet => {
            let set = entry.typed::<ApplicationSet>().ok()?;
            (set.status.phase != "Ready").then(|| format!("{key}: {}", set.status.phase))
        }
        Kind::Node => {
            let node = entry.typed::<Node>().ok()?;
            let well = !node.spec.unschedulable && node.ready() == Some(ConditionStatus::True);
            (!well).then(|| format!("{key}: {:?}, cordoned: {}", node.ready(), node.spec.unschedulable))
        }
        _ => None,
    }
}

/// One process of the loops after the other is told to end, so that every loop gets a new leader, who looks at
/// everything anew. Answers what is wrong with what it did.
pub async fn one_more_pass(site: &Site, recorder: &Recorder, head: Revision) -> Result<Option<String>> {
    let mut database = site.connect().await?;
    let before = leaders::terms(&mut database).await?;
    for process in Site::workers() {
        let pid = site.signal(&process, Signal::SIGTERM)?;
        site.replaced(&process, pid).await?;
    }
    for reconciler in LOOPS {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let epoch = leaders::terms(&mut database).await?.get(reconciler).copied().unwrap_or_default();
            let anew = epoch > before.get(reconciler).copied().unwrap_or_default();
            if anew && leaders::passes(site, reconciler, epoch).await.is_some_and(|passes| passes > 0) {
                break;
            }
            if Instant::now() > deadline {
                bail!("nobody made another pass of {reconciler}");
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
    still_at(recorder, head, "one more pass of every loop").await
}

/// Waits for every loop's own next passes.
pub async fn resyncs<W: Watcher>(recorder: &Recorder<W>, head: Revision) -> Result<Option<String>> {
    say(&format!("  nothing is asked for {} s, for every loop to look again twice", RESYNCS.as_secs()));
    sleep(RESYNCS).await;
    still_at(recorder, head, "two resyncs").await
}

pub async fn still_at<W: Watcher>(
    recorder: &Recorder<W>,
    head: Revision,
    what: &str,
) -> Result<Option<String>> {
    // What is under way would come now.
    sleep(Duration::from_secs(1)).await;
    let now = recorder.newest().await?;
    Ok((now != head).then(|| format!("{what} wrote something: from revision {head} to {now}")))
}
