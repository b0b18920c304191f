//! Moving in: the objects of another control plane of this API, as they are.
//!
//! A fleet changes its control plane without anything on a node being restarted if the new one says the very same:
//! what a node runs is told apart by uid and generation, a job that ended must not be sent again, an address must not
//! change while its workload lives. So objects are stored as they were read, with uid, generation, times,
//! finalizers and status, and not as a client would create them; what the server would have chosen (ids, addresses)
//! is claimed as the objects have it.
//!
//! * **What is refused** is what could not be kept apart or would lose something: an object without a uid, two of
//!   one name, a kind that is not served, a namespace that is missing, a second holder of an address. All of it is found
//!   ([`Dump::read`], `plan`) before anything is written. What merely breaks a rule of today is stored and named.
//! * **Into what.** A database that holds nothing else. What is there already with the same uid is left as it is, so
//!   an import that was interrupted is simply run again. The Namespace `default` that a new database comes with
//!   makes way for the imported one.
//! * **Revisions** go on above the highest one that the other control plane gave out, so nobody who remembers one
//!   of those can take it for one of ours.
//! * **Nobody acts meanwhile.** A loop that saw a set and not yet its children would make them again. The import
//!   holds the leases of all loops while it writes, and does not begin where it cannot have them. Every object is
//!   stored on condition that it still does: an import that stood still for longer than its term, so that a loop
//!   began, stores nothing more.
//! * **Nodes are held.** They are sent nothing until an operator has looked at what came in, and releases them.
//!
//! Events are left out (they are about the past, and expire), and so are the managers of fields.

mod dump;
mod plan;

use std::time::Duration;

use horchestra_auth::KeyRing;
use horchestra_core::kind::{Key, Kind};
use horchestra_store::{
    Attribution, Backend, BackendError, Guard, Item, Lease, MOST_LEASES, Op, Refusal, Revision,
};
use uuid::Uuid;

pub use dump::{Dump, DumpError};
pub use plan::Fault;

use crate::sealing::{Unusable, sealed};

/// Names of the leases under which loops act.
pub const LOOPS: [&str; 7] = [
    "applicationset",
    "compaction",
    "garbage-collection",
    "node-csr",
    "node-lifecycle",
    "push-holds",
    "scheduler",
];

/// How long the leases last; they are renewed with every batch.
const TERM: Duration = Duration::from_secs(60);

/// Items that are committed together.
const BATCH: usize = 64;

/// Why nothing, or not everything, was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("the database could not be used")]
    Store(#[from] BackendError),
    /// Each with what is wrong with it. Nothing was written.
    #[error("{} objects cannot be imported; nothing was written", .0.len())]
    Faults(Vec<Fault>),
    #[error("the loop {0:?} is led by a running process: stop the workers of this database first")]
    Running(&'static str),
    #[error("nodes have sessions with a gateway of this database ({0} of them): stop the gateways first")]
    Sessions(usize),
    #[error("{0} cannot be sealed: {1}")]
    Seal(Key, Unusable),
    #[error("somebody else writes to this database: {0}; stop that, and run the import again")]
    Refused(Refusal),
    #[error("the loops could no longer be kept out; run the import again")]
    LeaseLost,
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    pub written: usize,
    /// Objects that were there already, from an earlier run.
    pub present: usize,
    /// Workloads that keep an address of their own.
    pub addresses: usize,
    /// The revision after it.
    pub revision: Revision,
}

/// Stores what `dump` holds; see the module's essay. Secrets are sealed with `ring`.
pub async fn import(
    backend: &dyn Backend,
    ring: Option<&KeyRing>,
    dump: &Dump,
) -> Result<Imported, ImportError> {
    import_telling(backend, ring, dump, &|_, _| {}).await
}

/// As [`import`], telling how many items of how many are stored.
pub async fn import_telling(
    backend: &dyn Backend,
    ring: Option<&KeyRing>,
    dump: &Dump,
    tell: &(dyn Fn(u64, u64) + Sync),
) -> Result<Imported, ImportError> {
    let sessions = backend.sessions().await?;
    if !sessions.is_empty() {
        return Err(ImportError::Sessions(sessions.len()));
    }
    let mut leases = Vec::with_capacity(LOOPS.len());
    let outcome = match hold(backend, &mut leases).await {
        Ok(()) => write(backend, ring, dump, &leases, tell).await,
        Err(error) => Err(error),
    };
    for lease in &leases {
        if let Err(error) = backend.release_lease(lease).await {
            tracing::warn!(%error, lease = lease.name, "a lease of the import runs out by itself");
        }
    }
    outcome
}

/// Keeps the loops out.
async fn hold(backend: &dyn Backend, leases: &mut Vec<Lease>) -> Result<(), ImportError> {
    let holder = Uuid::new_v4();
    for name in LOOPS {
        match backend.acquire_lease(name, holder, TERM).await? {
            Some(lease) => leases.push(lease),
            None => return Err(ImportError::Running(name)),
        }
    }
    Ok(())
}

async fn write(
    backend: &dyn Backend,
    ring: Option<&KeyRing>,
    dump: &Dump,
    leases: &[Lease],
    tell: &(dyn Fn(u64, u64) + Sync),
) -> Result<Imported, ImportError> {
    let stored = backend.load(&Kind::ALL).await?;
    let plan = plan::plan(dump, &stored.entries).map_err(ImportError::Faults)?;
    let guards: Vec<Guard> =
        leases.iter().map(|lease| Guard::LeaseIs { name: lease.name.clone(), epoch: lease.epoch }).collect();
    // Before anything is written: a key may be missing.
    let mut items = Vec::with_capacity(plan.items.len());
    for mut ops in plan.items {
        for op in &mut ops {
            if let Op::Create(draft) = op
                && draft.key.kind.is_sealed()
            {
                let sealing = sealed(ring, draft);
                *draft = sealing.map_err(|why| ImportError::Seal(draft.key.clone(), why))?;
            }
        }
        items.push(Item { ops, guards: guards.clone(), who: attribution() });
    }
    let mut head = stored.head;
    if head.revision <= dump.highest() {
        head = backend.begin_epoch(&head.identity, dump.highest()).await?;
    }
    if !items.is_empty() {
        backend.engage_hold(None, "Imported", "the objects of another control plane were imported").await?;
    }
    let mut done = Imported { present: plan.present, revision: head.revision, ..Imported::default() };
    let mut stored = 0;
    for batch in items.chunks(BATCH) {
        tell(stored, items.len() as u64);
        stored += batch.len() as u64;
        for lease in leases {
            if !backend.renew_lease(lease, TERM).await? {
                return Err(ImportError::LeaseLost);
            }
        }
        for (item, outcome) in batch.iter().zip(backend.commit(batch, Uuid::new_v4()).await?.items) {
            let committed = outcome.map_err(refused)?;
            done.written += item.ops.iter().filter(|op| matches!(op, Op::Create(_))).count();
            done.revision = committed.revisions.last().copied().unwrap_or(done.revision);
        }
    }
    for known in plan.addresses.chunks(MOST_LEASES) {
        done.addresses += known.len();
        for without in backend.adopt_addresses(known).await? {
            let named = known.iter().find(|known| known.uid == without).map(|known| &known.key);
            tracing::warn!(application = ?named, "its address is another one's: it gets another when it is sent again");
            done.addresses -= 1;
        }
    }
    Ok(done)
}

fn refused(refusal: Refusal) -> ImportError {
    match refusal {
        Refusal::Guard { guard: Guard::LeaseIs { .. }, .. } => ImportError::LeaseLost,
        other => ImportError::Refused(other),
    }
}

fn attribution() -> Attribution {
    Attribution {
        user: "system:import".to_owned(),
        verb: "import".to_owned(),
        audit_id: Uuid::new_v4(),
        trace: None,
    }
}
