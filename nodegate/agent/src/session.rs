//! One session with the control plane, from its opening to its end.
//!
//! Guarantees. A heartbeat goes out as soon as the stream opens and then at a fixed
//! rhythm, whatever else happens: it waits for no push and no pass. Until the first push
//! of this session it carries the uids of the units that are held here, which deployed
//! agents do not say: a control plane that knows nothing of them can then hold back.
//! Nothing else about applications is said before that push; after it each push
//! and each beat of the rhythm brings one pass, never two at a time, and a pass is
//! always about the newest push. Everything goes up through one queue of eight, so a
//! gateway that stops reading silences this node completely, as it does with
//! deployed agents. Requests for logs are served at any time, each by itself.
//!
//! A session leaves nothing behind: its end cancels and awaits all of its tasks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{AppMetrics, NodeMessage, NodeStatus};
use rand::seq::SliceRandom;
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::converge::Converger;
use crate::desired::Desired;
use crate::dial::Connection;
use crate::logs;
use crate::machine::{self, Machine};
use crate::units::{Units, now_unix_nano};

/// Messages that may wait on their way up.
const QUEUE: usize = 8;

/// How long the gateway may take to answer the end of our half.
const PARTING: Duration = Duration::from_millis(300);

/// What a session works with; it outlives sessions.
pub struct Parts {
    /// Name of the node.
    pub name: String,
    /// What the node has.
    pub machine: Machine,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// The agent's own log, if there is one.
    pub own_log: Option<PathBuf>,
    /// What runs here.
    pub units: Arc<Units>,
    /// Makes it run.
    pub converger: Converger,
}

/// Runs a session over this connection until it ends or is to stop. Returns the
/// status that it ended with, if it had one.
pub async fn run(parts: &Arc<Parts>, connection: Connection, stop: &CancellationToken) -> Option<Status> {
    let (out, outgoing) = mpsc::channel(QUEUE);
    let ended = CancellationToken::new();
    let tasks = TaskTracker::new();
    let (pushed, pushes) = watch::channel(None);

    let ip = connection.local_ip.to_string();
    parts.converger.datapath().locate(&ip);
    tasks.spawn(beat(parts.clone(), ip, pushes.clone(), out.clone(), ended.clone()));
    tasks.spawn(converge(parts.clone(), pushes, out.clone(), ended.clone()));

    let mut client = connection.client.clone();
    // The stream upwards ends when nobody can send any more, so this end only borrows.
    let sender = out.downgrade();
    let talk = async {
        // The answer may come as late as the gateway likes; heartbeats flow before.
        let mut incoming = client.session(ReceiverStream::new(outgoing)).await?.into_inner();
        let mut cancels: HashMap<String, CancellationToken> = HashMap::new();
        while let Some(message) = incoming.message().await? {
            cancels.retain(|_, cancel| !cancel.is_cancelled());
            match message.body {
                Some(Down::Desired(state)) => {
                    let at = now_unix_nano();
                    let desired = Desired::read(&state, &parts.name);
                    parts.converger.journal().received(at, &desired);
                    pushed.send_replace(Some(Arc::new(desired)));
                }
                Some(Down::LogRequest(request)) => {
                    // A second request under the same id takes the handle over; the
                    // first can then not be cancelled any more.
                    let cancel = CancellationToken::new();
                    cancels.insert(request.id.clone(), cancel.clone());
                    let Some(out) = sender.upgrade() else { continue };
                    let (parts, ended) = (parts.clone(), ended.clone());
                    tasks.spawn(async move {
                        let own_log = parts.own_log.as_deref();
                        let served = logs::serve(request, &parts.units, own_log, &out, &cancel);
                        ended.run_until_cancelled(served).await;
                        cancel.cancel();
                    });
                }
                Some(Down::LogCancel(cancel)) => {
                    if let Some(cancel) = cancels.remove(&cancel.id) {
                        cancel.cancel();
                    }
                }
                None => {}
            }
        }
        Ok(())
    };
    let mut talk = pin!(talk);
    let mut end: Option<Result<(), Status>> = stop.run_until_cancelled(&mut talk).await;

    ended.cancel();
    drop(out);
    tasks.close();
    tasks.wait().await;
    if end.is_none() {
        // Our half has ended; a gateway that notices frees the node's place at once.
        end = timeout(PARTING, talk).await.ok();
    }
    connection.close().await;
    end.and_then(Result::err)
}

/// A rhythm that counts from now and forgets beats that nobody waited for.
fn rhythm(period: Duration) -> Interval {
    let mut rhythm = interval(period.max(Duration::from_millis(1)));
    rhythm.set_missed_tick_behavior(MissedTickBehavior::Skip);
    rhythm
}

async fn beat(
    parts: Arc<Parts>,
    ip: String,
    pushes: watch::Receiver<Option<Arc<Desired>>>,
    out: mpsc::Sender<NodeMessage>,
    ended: CancellationToken,
) {
    let mut rhythm = rhythm(parts.heartbeat);
    let beating = async {
        loop {
            rhythm.tick().await;
            let mut node = parts.machine.node(&parts.name, &ip, &parts.converger.allocated());
            if pushes.borrow().is_none() {
                machine::tell_units(&mut node, parts.units.list());
            }
            let status = NodeStatus { node: node.to_string().into() };
            parts.converger.journal().beat();
            if out.send(Up::Status(status).into()).await.is_err() {
                return;
            }
        }
    };
    ended.run_until_cancelled(beating).await;
}

async fn converge(
    parts: Arc<Parts>,
    mut pushes: watch::Receiver<Option<Arc<Desired>>>,
    out: mpsc::Sender<NodeMessage>,
    ended: CancellationToken,
) {
    let mut rhythm = rhythm(parts.heartbeat);
    rhythm.tick().await;
    loop {
        let next = async {
            tokio::select! {
                changed = pushes.changed() => changed.is_ok(),
                _ = rhythm.tick() => true,
            }
        };
        if ended.run_until_cancelled(next).await != Some(true) {
            return;
        }
        let Some(desired) = pushes.borrow_and_update().clone() else { continue };
        // Only the pass itself is told of the end and returns by itself: cutting it
        // off anywhere would leave units half made.
        parts.converger.pass(&desired, &ended).await;
        if ended.run_until_cancelled(report(&parts, &desired, &out)).await.is_none() {
            return;
        }
    }
}

async fn report(parts: &Parts, desired: &Desired, out: &mpsc::Sender<NodeMessage>) {
    let mut apps = desired.apps.clone();
    apps.shuffle(&mut rand::rng());
    for app in &apps {
        let status = parts.converger.status(app, desired);
        parts.converger.journal().reported(app.uid, &status);
        let _ = out.send(Up::AppStatus(status).into()).await;
    }
    apps.shuffle(&mut rand::rng());
    for app in &apps {
        let Some(usage) = parts.units.usage(app.uid) else { continue };
        let metrics = AppMetrics {
            namespace: app.namespace.clone(),
            name: app.name.clone(),
            cpu_usec: usage.cpu_usec,
            cpu_throttled_usec: 0,
            memory_bytes: usage.memory_bytes,
            memory_peak_bytes: usage.memory_peak_bytes,
            pids: usage.pids,
            oom_kills: 0,
            timestamp_unix_nano: now_unix_nano(),
        };
        let _ = out.send(Up::AppMetrics(metrics).into()).await;
    }
    let _ = out.send(Up::NodeUsage(machine::usage()).into()).await;
}
