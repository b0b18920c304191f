//! The door by which a lost node is given up.
//!
//! An Application that is being deleted waits until its node says that nothing of it runs any more. A node that
//! burnt down never says so. This door ends the wait for everything that is being deleted there, and removes the
//! Node.
//!
//! * **Never while the node may be alive.** It is refused while the node is heard of, and while a gateway holds
//!   a session of it. To make sure of the latter until the end, the door itself claims the node's one session, as
//!   a gateway would, and every write is fenced by it: a node that connects at the very same time either finds
//!   the session taken, and comes back a moment later, or has it, and then nothing is written any more.
//! * **What stays.** Applications that are placed there and nobody deletes are left alone: where else they
//!   could run is for their authors to say. When they are deleted later, the garbage collection does not wait for
//!   the node either: the tombstone of the Node says that it was forgotten.
//! * **A node that comes back** registers itself anew. It is not admitted then, so it is sent nothing that could
//!   tear down what it runs, until an operator has looked.
//!
//! A Node that somebody else holds with a finalizer is only marked, like by any deletion.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_store::store::SessionGrant;
use horchestra_store::{Class, CommitError, Entry, Guard, Op, Refusal, SessionClaim, Snapshot};
use uuid::Uuid;

use super::ATTEMPTS;
use super::people::{meant, named};
use crate::caller::RequestContext;
use crate::errors::{commit_status, modified, read_status};
use crate::request::{Order, WriteOptions, Written};
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{Stored, check_revision, clear_object, mark_deleted, release_teardown, tracking};

/// Shortest silence after which a session counts as dead; as for gateways that take one over.
const SHORTEST_SILENCE: Duration = Duration::from_secs(60);
/// Applications that are released in one item.
const TOGETHER: usize = 16;
/// How many names a warning lists.
const NAMES_SHOWN: usize = 3;

impl Service {
    pub(super) async fn forget(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let view = self.fresh().await?;
        let entry = self.forgettable(&view, key, order, options)?;
        self.check_silent(key).await?;
        let store = &self.inner.store;
        if options.dry_run {
            if store.session_of(&key.name).await.map_err(|e| read_status(&e))?.is_some() {
                return Err(alive(key));
            }
            let erased = clear_object(&entry)?.finalizers().is_empty();
            return Ok(Written { warnings: staying(&view, key), entry, created: false, erased });
        }
        let claim = SessionClaim {
            node: key.name.clone(),
            // No gateway, so whoever else wants the session can have it.
            gateway: Uuid::new_v4(),
            peer: Door::Forget.name().to_owned(),
            certificate: String::new(),
        };
        let silence = self.config().ready_timeout.max(SHORTEST_SILENCE);
        let grant = store.claim_session(claim, silence).await.map_err(|e| read_status(&e))?;
        let grant = grant.ok_or_else(|| alive(key))?;
        let done = self.forget_held(context, key, order, options, &grant).await;
        if let Err(error) = store.release_session(&key.name, &grant).await {
            tracing::debug!(node = key.name, %error, "a session that nobody holds stays until it is collected");
        }
        done
    }

    /// With the node's session in hand.
    async fn forget_held(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
        grant: &SessionGrant,
    ) -> Result<Written, Status> {
        let fence = || {
            let (node, SessionGrant { epoch, session }) = (key.name.clone(), grant.clone());
            vec![Guard::SessionIs { node, epoch, session }]
        };
        let verb = Door::Forget.name();
        let mut released = 0;
        for _ in 0..ATTEMPTS {
            let view = self.fresh().await?;
            let node = self.forgettable(&view, key, order, options)?;
            let leaving: Vec<Arc<Entry>> =
                placed(&view, key).filter(|entry| entry.deleting).cloned().collect();
            let written = async {
                for entries in leaving.chunks(TOGETHER) {
                    let ops = entries.iter().map(|entry| release(context, entry));
                    let ops = ops.collect::<Result<Vec<Op>, Status>>().map_err(Failure::Status)?;
                    self.commit_all(context, verb, key, ops, fence()).await.map_err(Failure::Commit)?;
                    released += entries.len();
                }
                let (op, stored) = remove(context, &node).map_err(Failure::Status)?;
                let Some(op) = op else { return Ok(stored.at(node.revision)) };
                let revision = self.commit_door(context, verb, key, op, fence()).await;
                Ok(stored.at(revision.map_err(Failure::Commit)?))
            };
            match written.await {
                Ok((entry, erased)) => {
                    tracing::info!(node = key.name, released, "a node was forgotten");
                    let mut warnings = staying(&view, key);
                    if released > 0 {
                        warnings.push(format!(
                            "{released} applications were being deleted there and were let go; whether anything \
                             of them still runs on the node was not asked"
                        ));
                    }
                    return Ok(Written { entry, created: false, erased, warnings });
                }
                // Something has changed: look again.
                Err(Failure::Commit(CommitError::Refused(
                    Refusal::Conflict { .. } | Refusal::NotFound(_),
                ))) => {}
                Err(Failure::Commit(CommitError::Refused(Refusal::Guard { .. }))) => return Err(alive(key)),
                Err(Failure::Commit(error)) => return Err(commit_status(key, &error)),
                Err(Failure::Status(status)) => return Err(status),
            }
        }
        Err(modified(key))
    }

    /// The Node, if it is the one that is meant.
    fn forgettable(
        &self,
        view: &Snapshot,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Arc<Entry>, Status> {
        let entry = meant(view, key, order)?;
        check_revision(&entry, named(order)?, options.exact_resource_version)?;
        Ok(entry)
    }

    /// A gateway that is just being replaced holds no session either, so the last sign of life counts too.
    async fn check_silent(&self, key: &Key) -> Result<(), Status> {
        let rows = self.inner.store.heartbeats().await.map_err(|e| read_status(&e))?;
        let heard = rows.iter().find(|row| row.heartbeat.node == key.name);
        match heard {
            Some(row) if row.age <= self.config().ready_timeout => {
                let why = format!(
                    "it was heard of {} s ago, so it is not lost; stop its agent first, or wait until it has \
                     been silent for {} s",
                    row.age.as_secs(),
                    self.config().ready_timeout.as_secs()
                );
                Err(Status::conflict(key.kind, &key.name, why))
            }
            _ => Ok(()),
        }
    }
}

enum Failure {
    Status(Status),
    Commit(CommitError),
}

fn alive(key: &Key) -> Status {
    Status::conflict(key.kind, &key.name, "it has a live session, so it is not lost; stop its agent first")
}

/// What is placed on the node.
fn placed<'a>(view: &'a Snapshot, node: &'a Key) -> impl Iterator<Item = &'a Arc<Entry>> {
    let on = |entry: &&Arc<Entry>| entry.columns.node.as_deref() == Some(node.name.as_str());
    view.list(Kind::Application, None).filter(on)
}

/// What is told of Applications that stay placed there.
fn staying(view: &Snapshot, node: &Key) -> Vec<String> {
    let names: Vec<String> = placed(view, node)
        .filter(|entry| !entry.deleting)
        .map(|entry| format!("{}/{}", entry.key.namespace, entry.key.name))
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let more = if names.len() > NAMES_SHOWN { ", …" } else { "" };
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    vec![format!(
        "{} applications are placed on it and stay so ({shown}{more}); delete them or place them elsewhere",
        names.len()
    )]
}

/// Lets a deleting Application go without its node.
fn release(context: &RequestContext, entry: &Entry) -> Result<Op, Status> {
    let stored = clear_object(entry)?;
    let mut object = stored.clone();
    release_teardown(&mut object);
    if object.finalizers().is_empty() {
        return Ok(super::deletion(entry));
    }
    let spec = spec_of(entry.key.kind)?;
    let managed = tracking::of_component(spec, context, Some((entry, &stored)), &object);
    let draft = draft(spec, &entry.key, &object, columns(spec, &object), managed)?;
    Ok(Op::Update { draft, expect: entry.revision, class: Class::Core })
}

/// What to commit about the Node itself; nothing when others hold it already marked.
fn remove(context: &RequestContext, node: &Arc<Entry>) -> Result<(Option<Op>, Stored), Status> {
    let stored = clear_object(node)?;
    if stored.finalizers().is_empty() {
        let (op, stored) = Stored::erase(Arc::clone(node));
        return Ok((Some(op), stored));
    }
    let mut object = stored.clone();
    mark_deleted(Kind::Node, &mut object);
    let spec = spec_of(Kind::Node)?;
    let managed = tracking::of_component(spec, context, Some((node, &stored)), &object);
    let draft = draft(spec, &node.key, &object, columns(spec, &object), managed)?;
    let (op, written) = Stored::update(draft, node, Class::Core);
    Ok(((object != stored).then_some(op), written))
}
