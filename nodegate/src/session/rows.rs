//! The rows of sessions in the database: claimed and given up, many at a time.
//!
//! A fleet that comes back claims thousands of rows within seconds, and a gateway that is cut off gives up as
//! many. One by one each would be a commit of its own under the lock that orders all writes, and would wait in
//! line for the connections of this process with everything else it has to say, the renewal of its term included.
//! So they wait here: whatever has gathered while the statement before ran goes with the next one, and two
//! connections are enough for a fleet of any size.
//!
//! Nothing is lost by a failure: a claim is answered with it, since the node dials again anyway; what is to be
//! given up stays in line. A claim that was granted after its claimant had left is given up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use horchestra_store::ReadError;
use horchestra_store::store::{SessionClaim, SessionGrant};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::gate::Gate;

/// Most rows of one statement: some ten milliseconds under the lock.
const BATCH: usize = 128;
/// Pause after rows could not be given up.
const PAUSE: Duration = Duration::from_secs(1);

type Answer = Result<Option<SessionGrant>, ReadError>;

/// What waits to be told to the database.
#[derive(Default)]
pub struct Rows {
    claims: Mutex<VecDeque<(SessionClaim, oneshot::Sender<Answer>)>>,
    releases: Mutex<VecDeque<(String, SessionGrant)>>,
    claimed: Notify,
    released: Notify,
}

impl Rows {
    /// Claims a session. `None`: the node has another live one.
    pub async fn claim(&self, claim: SessionClaim) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.claims.lock().push_back((claim, answer));
        self.claimed.notify_one();
        answered.await.unwrap_or(Err(ReadError::Unavailable))
    }

    /// Gives a session up, soon.
    pub fn release(&self, node: &str, grant: &SessionGrant) {
        self.releases.lock().push_back((node.to_owned(), grant.clone()));
        self.released.notify_one();
    }

    fn some_claims(&self) -> Vec<(SessionClaim, oneshot::Sender<Answer>)> {
        let mut waiting = self.claims.lock();
        let count = waiting.len().min(BATCH);
        // Who has gone wants no session.
        waiting.drain(..count).filter(|(_, answer)| !answer.is_closed()).collect()
    }

    fn some_releases(&self) -> Vec<(String, SessionGrant)> {
        let mut waiting = self.releases.lock();
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }
}

/// Takes claims to the database until `stop`.
pub async fn claim(gate: Arc<Gate>, stop: CancellationToken) {
    loop {
        let batch = gate.rows.some_claims();
        if batch.is_empty() {
            let more = gate.rows.claimed.notified();
            if gate.rows.claims.lock().is_empty() && stop.run_until_cancelled(more).await.is_none() {
                return;
            }
            continue;
        }
        let (claims, answers): (Vec<SessionClaim>, Vec<_>) = batch.into_iter().unzip();
        let nodes: Vec<String> = claims.iter().map(|claim| claim.node.clone()).collect();
        let asked = gate.store.claim_sessions(claims, gate.settings.stale_after);
        let granted = match stop.run_until_cancelled(timeout(gate.settings.claim_timeout, asked)).await {
            None => return,
            Some(Err(_)) => Err(ReadError::Unavailable),
            Some(Ok(granted)) => granted,
        };
        for (at, (node, answer)) in nodes.into_iter().zip(answers).enumerate() {
            let own = match &granted {
                Ok(granted) => Ok(granted.get(at).cloned().flatten()),
                Err(error) => Err(error.clone()),
            };
            if let Err(Ok(Some(unwanted))) = answer.send(own) {
                gate.rows.release(&node, &unwanted);
            }
        }
    }
}

/// Gives rows up until `stop`. What is left then is free when the gateway's term ends.
pub async fn release(gate: Arc<Gate>, stop: CancellationToken) {
    loop {
        let batch = gate.rows.some_releases();
        if batch.is_empty() {
            let more = gate.rows.released.notified();
            if gate.rows.releases.lock().is_empty() && stop.run_until_cancelled(more).await.is_none() {
                return;
            }
            continue;
        }
        let asked = gate.store.release_sessions(&batch);
        match stop.run_until_cancelled(timeout(gate.settings.claim_timeout, asked)).await {
            None => return,
            Some(Ok(Ok(()))) => {}
            Some(_) => {
                tracing::debug!(sessions = batch.len(), "sessions are given up later");
                gate.rows.releases.lock().extend(batch);
                if stop.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                    return;
                }
            }
        }
    }
}
