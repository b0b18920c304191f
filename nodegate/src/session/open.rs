//! Opening a session, and its course from there to its end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use horchestra_proto::node::v1::NodeMessage;
use horchestra_store::ReadError;
use horchestra_store::store::{SessionClaim, SessionGrant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::outbound::Downstream;
use super::{Session, receive, write};
use crate::desired::push;
use crate::gate::Gate;
use crate::transport::peer::Peer;

/// Opens a session for `peer` and serves it in the background.
///
/// Refused early and cheaply while this gateway cannot serve (`Unavailable`), and with `AlreadyExists` while
/// the node has another live session.
pub async fn open(
    gate: &Arc<Gate>,
    peer: Peer,
    inbound: Streaming<NodeMessage>,
) -> Result<Downstream, Status> {
    if !gate.term.open_to_newcomers() {
        return Err(Status::unavailable("this gateway takes no sessions now"));
    }
    if !gate.claims.try_take() {
        return Err(Status::unavailable("too many sessions are being opened"));
    }
    // In a task of its own: a caller that goes away half-way must not leave a claim behind that nobody
    // releases. Dropping the downstream half that nobody took ends the session.
    let (opened, opening) = oneshot::channel();
    let gate_in_task = Arc::clone(gate);
    gate.tasks.spawn("open-session", async move {
        let _ = opened.send(claim_and_serve(gate_in_task, peer, inbound).await);
    });
    opening.await.map_err(|_| Status::internal("opening the session failed"))?
}

async fn claim_and_serve(
    gate: Arc<Gate>,
    peer: Peer,
    inbound: Streaming<NodeMessage>,
) -> Result<Downstream, Status> {
    let claimed = tokio::time::timeout(gate.settings.claim_patience, claim(&gate, &peer)).await;
    let grant = match claimed {
        Ok(Ok(Some(grant))) => grant,
        Ok(Ok(None)) => {
            gate.metrics.sessions_refused.inc();
            tracing::warn!(node = %peer.name, peer = %peer.connection.address, certificate = %peer.fingerprint,
                "refused: the node has a live session");
            return Err(Status::already_exists(format!("node {:?} has a live session already", peer.name)));
        }
        Ok(Err(error)) => {
            tracing::warn!(node = %peer.name, %error, "a session could not be claimed");
            return Err(Status::unavailable("the session could not be claimed"));
        }
        Err(_) => return Err(Status::unavailable("the session could not be claimed in time")),
    };
    let session = Session::new(peer.name.clone(), grant, peer.connection.address);
    let valid_since = peer.valid_since.map(jiff::Timestamp::as_microsecond);
    let valid_until = jiff::Timestamp::try_from(peer.not_after).ok().map(jiff::Timestamp::as_microsecond);
    let session = Arc::new(Session { valid_since, valid_until, ..session });
    if let Some(superseded) = gate.sessions.insert(Arc::clone(&session)) {
        superseded.lost();
    }
    // Looked at again, now that whoever sends the sessions away would find this one: it may have looked
    // before.
    if !gate.term.open_to_newcomers() {
        session.end(Err(Status::unavailable("this gateway takes no sessions now")));
    }
    gate.metrics.sessions_opened.inc();
    tracing::info!(node = %session.node, peer = %peer.connection.address, epoch = session.grant.epoch, "session opened");
    let down = {
        let session = Arc::clone(&session);
        Downstream::new(Arc::clone(&session.outbound), move || session.end(Ok(())))
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(receive::run(Arc::clone(&gate), Arc::clone(&session), inbound));
    tasks.spawn(write::run(Arc::clone(&gate), Arc::clone(&session)));
    tasks.spawn(push::run(Arc::clone(&gate), Arc::clone(&session)));
    let valid_for = peer.not_after.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    let course = serve(Arc::clone(&gate), session, tasks, valid_for, peer.connection.cut);
    gate.tasks.spawn("session", course);
    Ok(down)
}

/// Claims the session; a row of ours that no session stands behind is given up first.
async fn claim(gate: &Gate, peer: &Peer) -> Result<Option<SessionGrant>, ReadError> {
    let claim = SessionClaim {
        node: peer.name.clone(),
        gateway: gate.id,
        peer: peer.connection.address.to_string(),
        certificate: peer.fingerprint.clone(),
    };
    let granted = gate.rows.claim(claim.clone()).await?;
    if granted.is_some() || gate.sessions.get(&peer.name).is_some() {
        return Ok(granted);
    }
    match gate.store.session_of(&peer.name).await? {
        Some(row) if row.gateway == gate.id && gate.sessions.get(&peer.name).is_none() => {
            gate.store.release_session(&peer.name, &row.grant).await?;
            gate.rows.claim(claim).await
        }
        _ => Ok(None),
    }
}

/// Runs the tasks of a session until it ends, then cleans up. It is given no more than it needs, since it keeps room for
/// all of it as long as the session lasts.
async fn serve(
    gate: Arc<Gate>,
    session: Arc<Session>,
    mut tasks: JoinSet<()>,
    valid_for: Duration,
    cut: CancellationToken,
) {
    tokio::select! {
        () = session.ended() => {}
        () = tokio::time::sleep(valid_for) => {
            session.end(Err(Status::unauthenticated("the client certificate has expired")));
        }
        finished = tasks.join_next() => {
            // A task returns by itself only after it has ended the session; else it panicked.
            if let Some(Err(error)) = finished && error.is_panic() {
                tracing::error!(node = %session.node, "a session's task panicked");
            }
            session.end(Err(Status::internal("the session failed")));
        }
    }
    tasks.shutdown().await;
    gate.sessions.remove(&session);
    gate.close_logs(&session);
    gate.metrics.sessions_ended.inc();
    tracing::info!(node = %session.node, epoch = session.grant.epoch, "session ended");
    gate.rows.release(&session.node, &session.grant);
    // The end goes out as trailers; a peer that does not read them is cut off.
    tokio::select! {
        () = cut.cancelled() => {}
        () = session.outbound.gone() => {}
        () = tokio::time::sleep(gate.settings.end_grace) => cut.cancel(),
    }
}
