//! What nodes were last sent, in the database: read before the first push of a session, written before anything new
//! is sent, and shortened after a push without something was taken.
//!
//! Many sessions, few statements: whoever comes while a statement is under way waits for the next one, which serves
//! all that wait. Changes are written in the order in which they were asked for, so what is taken off a record and
//! comes back is on it in the end.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use horchestra_store::{Holding, PushChange, PushRecord, Revision};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;
use crate::session::Session;

/// Nodes that one statement serves at most.
const TOGETHER: usize = 500;
/// Pause before what was to be taken off records, and could not be, is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRecorded {
    /// The session is another one's by now.
    Lost,
    /// The database does not answer.
    Unavailable,
}

type LoadReply = oneshot::Sender<Option<PushRecord>>;
type ChangeReply = oneshot::Sender<Result<(), NotRecorded>>;

struct Load {
    node: String,
    reply: LoadReply,
}

struct Change {
    change: PushChange,
    /// `None`: only things to take off, for which nobody waits.
    reply: Option<ChangeReply>,
}

struct Inbox {
    loads: mpsc::UnboundedReceiver<Load>,
    changes: mpsc::UnboundedReceiver<Change>,
}

/// The way to the records.
pub struct Records {
    loads: mpsc::UnboundedSender<Load>,
    changes: mpsc::UnboundedSender<Change>,
    inbox: Mutex<Option<Inbox>>,
}

impl Default for Records {
    fn default() -> Records {
        let (loads, loads_inbox) = mpsc::unbounded_channel();
        let (changes, changes_inbox) = mpsc::unbounded_channel();
        let inbox = Inbox { loads: loads_inbox, changes: changes_inbox };
        Records { loads, changes, inbox: Mutex::new(Some(inbox)) }
    }
}

impl Records {
    /// The record of a node as the database has it now; `None`: the database does not answer. The holds of that
    /// moment are known when this returns.
    pub async fn load(&self, node: &str) -> Option<PushRecord> {
        let (reply, answer) = oneshot::channel();
        self.loads.send(Load { node: node.to_owned(), reply }).ok()?;
        answer.await.ok().flatten()
    }

    /// Puts things on the record of a session's node.
    pub async fn add(
        &self,
        session: &Session,
        revision: Revision,
        add: Vec<Holding>,
    ) -> Result<(), NotRecorded> {
        let (reply, answer) = oneshot::channel();
        let change = change(session, revision, add, Vec::new());
        self.changes.send(Change { change, reply: Some(reply) }).map_err(|_| NotRecorded::Unavailable)?;
        answer.await.unwrap_or(Err(NotRecorded::Unavailable))
    }

    /// Takes things off the record of a session's node, some time.
    pub fn remove(&self, session: &Session, revision: Revision, remove: Vec<Holding>) {
        // Where nobody listens any more, the record goes on naming too much.
        let _ =
            self.changes.send(Change { change: change(session, revision, Vec::new(), remove), reply: None });
    }
}

fn change(session: &Session, revision: Revision, add: Vec<Holding>, remove: Vec<Holding>) -> PushChange {
    PushChange { node: session.node.clone(), grant: session.grant.clone(), revision, add, remove }
}

/// Serves the records until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    let Some(Inbox { loads, changes }) = gate.records.inbox.lock().take() else { return };
    tokio::select! {
        () = stop.cancelled() => {}
        () = serve_loads(&gate, loads) => {}
        () = serve_changes(&gate, changes) => {}
    }
}

async fn serve_loads(gate: &Gate, mut inbox: mpsc::UnboundedReceiver<Load>) {
    let mut waiting = Vec::new();
    while inbox.recv_many(&mut waiting, TOGETHER).await > 0 {
        let mut asked: HashMap<String, Vec<LoadReply>> = HashMap::new();
        for Load { node, reply } in waiting.drain(..) {
            asked.entry(node).or_default().push(reply);
        }
        let nodes: Vec<String> = asked.keys().cloned().collect();
        let reading = gate.holds.reading();
        let mut records = match gate.store.push_records(&nodes).await {
            Ok((records, holds)) => {
                gate.learn_holds(&reading, holds);
                records.into_iter().map(Some).collect()
            }
            Err(error) => {
                tracing::debug!(%error, "records of pushes could not be read");
                vec![None; nodes.len()]
            }
        };
        for node in nodes.iter().rev() {
            let record = records.pop().flatten();
            for reply in asked.remove(node).into_iter().flatten() {
                // Whoever has stopped waiting needs no answer.
                let _ = reply.send(record.clone());
            }
        }
    }
}

async fn serve_changes(gate: &Gate, mut inbox: mpsc::UnboundedReceiver<Change>) {
    let mut queue: VecDeque<Change> = VecDeque::new();
    let mut arrived = Vec::new();
    loop {
        if queue.is_empty() && inbox.recv_many(&mut arrived, TOGETHER).await == 0 {
            return;
        }
        while let Ok(more) = inbox.try_recv() {
            arrived.push(more);
        }
        queue.extend(arrived.drain(..));
        let batch = next_batch(&mut queue);
        let changes: Vec<PushChange> = batch.iter().map(|change| change.change.clone()).collect();
        match gate.store.record_pushes(&changes).await {
            Ok(lost) => {
                gate.metrics.push_records.inc_by(changes.len() as u64);
                for Change { change, reply } in batch {
                    let outcome = if lost.contains(&change.node) { Err(NotRecorded::Lost) } else { Ok(()) };
                    if let Some(reply) = reply {
                        let _ = reply.send(outcome);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, "records of pushes could not be written");
                let mut later = false;
                for change in batch.into_iter().rev() {
                    match change.reply {
                        Some(reply) => {
                            let _ = reply.send(Err(NotRecorded::Unavailable));
                        }
                        None if is_live(gate, &change.change) => {
                            queue.push_front(Change { change: change.change, reply: None });
                            later = true;
                        }
                        None => {}
                    }
                }
                if later {
                    sleep(AGAIN_AFTER).await;
                }
            }
        }
    }
}

/// What can be written together: each node once, so that the order of its changes stays.
fn next_batch(queue: &mut VecDeque<Change>) -> Vec<Change> {
    let mut nodes: HashSet<String> = HashSet::new();
    let mut batch = Vec::new();
    while batch.len() < TOGETHER
        && queue.front().is_some_and(|next| nodes.insert(next.change.node.clone()))
        && let Some(next) = queue.pop_front()
    {
        batch.push(next);
    }
    batch
}

fn is_live(gate: &Gate, change: &PushChange) -> bool {
    gate.sessions.get(&change.node).is_some_and(|session| session.grant == change.grant)
}

#[cfg(test)]
mod tests {
    use horchestra_store::SessionGrant;
    use uuid::Uuid;

    use super::*;

    fn change_of(node: &str) -> Change {
        let grant = SessionGrant { epoch: 1, session: Uuid::nil() };
        let change =
            PushChange { node: node.to_owned(), grant, revision: 1, add: Vec::new(), remove: Vec::new() };
        Change { change, reply: None }
    }

    #[test]
    fn changes_of_one_node_are_never_written_together() {
        let mut queue: VecDeque<Change> = ["a", "b", "a", "c", "c"].map(change_of).into();
        let mut batches = Vec::new();
        while !queue.is_empty() {
            let batch = next_batch(&mut queue);
            batches.push(batch.iter().map(|change| change.change.node.clone()).collect::<Vec<_>>().concat());
        }
        assert_eq!(batches, ["ab", "ac", "c"]);
    }
}
