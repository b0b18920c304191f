//! The one place that turns what the store says into what a client is told.
//!
//! Texts are for people outside: no SQL, no addresses, no source chain. What can be tried again says so
//! (429 and 503 carry `Retry-After`); what cannot is a 500 with the audit id as the only lead.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::{Reason, Status};
use horchestra_store::store::{ReadError, WatchEnd};
use horchestra_store::{CommitError, Refusal, Revision};

use crate::request::DoorError;

/// Seconds after which a client should come back when the database is away.
const RETRY_UNAVAILABLE: u32 = 2;
/// Seconds after which a client should come back when somebody has to see to the database first.
const RETRY_UNWRITABLE: u32 = 10;
/// Seconds after which a client should come back when this process has too much to do.
const RETRY_BUSY: u32 = 1;

/// The answer to a read that the store could not serve.
pub(crate) fn read_status(error: &ReadError) -> Status {
    match error {
        ReadError::Unavailable => {
            Status::unavailable("the database is not available, try again later", RETRY_UNAVAILABLE)
        }
        ReadError::TooLarge { asked, current } => Status::too_large_resource_version(*asked, *current),
        ReadError::Expired { asked, oldest } => too_old(*asked, *oldest),
        ReadError::Rejected(why) => {
            tracing::error!(why, "the database rejected a read");
            Status::internal("the database rejected the request")
        }
        ReadError::NotCached(kind) => {
            tracing::error!(%kind, "a kind is asked for that this process does not cache");
            Status::internal(format!("{} are not served by this process", kind.plural()))
        }
    }
}

/// The answer to a write that was not committed.
///
/// Refusals that a verb knows better how to explain (a guard of one of its rules) do not get here.
pub(crate) fn commit_status(key: &Key, error: &CommitError) -> Status {
    match error {
        CommitError::Refused(refusal) => refusal_status(key, refusal),
        CommitError::Busy => Status::too_many_requests("too many writes are waiting, try again", RETRY_BUSY),
        CommitError::Unavailable => {
            Status::unavailable("the database is not available, nothing was written", RETRY_UNAVAILABLE)
        }
        CommitError::Unwritable(why) => Status::unavailable(
            format!("{why} and takes no writes, nothing was written; reading goes on"),
            RETRY_UNWRITABLE,
        ),
        CommitError::Unknown => {
            Status::timeout("the connection to the database was lost, the write may or may not have happened")
        }
        CommitError::Rejected(why) => {
            tracing::error!(%key, why, "the database rejected a write");
            Status::internal("the database rejected the write")
        }
    }
}

fn refusal_status(key: &Key, refusal: &Refusal) -> Status {
    match refusal {
        Refusal::AlreadyExists(key) => Status::already_exists(key.kind, &key.name),
        Refusal::NotFound(key) => Status::not_found(key.kind, &key.name),
        Refusal::Conflict { key, .. } => modified(key),
        Refusal::ClaimTaken { space, value } => {
            Status::forbidden(key.kind, &key.name, format!("{value} of {space} is taken"))
        }
        Refusal::Guard { guard, .. } => {
            tracing::warn!(%key, ?guard, "a write was refused by a guard that no rule explains");
            Status::conflict(key.kind, &key.name, "what it depends on has changed, try again")
        }
    }
}

/// The 409 that every Kubernetes client recognises.
pub(crate) fn modified(key: &Key) -> Status {
    Status::conflict(
        key.kind,
        &key.name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

const TERM_OVER: &str = "the writer's term has ended";

/// The answer to a loop or gateway that writes after its term.
pub(crate) fn term_over(key: &Key) -> Status {
    Status::conflict(key.kind, &key.name, TERM_OVER)
}

/// The 410 for a revision below the log.
pub(crate) fn too_old(asked: Revision, oldest: Revision) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The event that ends a watch which the store ended.
pub(crate) fn watch_status(end: &WatchEnd) -> Status {
    match end {
        WatchEnd::Expired { asked, oldest } => too_old(*asked, *oldest),
        WatchEnd::Closed => Status::unavailable("the server is shutting down", RETRY_BUSY),
    }
}

/// What an internal door says when the store did not take its item.
pub(crate) fn door_error(key: &Key, error: &CommitError) -> DoorError {
    match error {
        CommitError::Refused(Refusal::NotFound(_)) => DoorError::Gone,
        CommitError::Refused(Refusal::Conflict { .. } | Refusal::AlreadyExists(_)) => DoorError::Changed,
        CommitError::Refused(Refusal::Guard { guard, .. }) => guard_error(guard),
        CommitError::Refused(Refusal::ClaimTaken { .. }) | CommitError::Rejected(_) => {
            DoorError::Refused(commit_status(key, error))
        }
        CommitError::Busy | CommitError::Unavailable | CommitError::Unwritable(_) | CommitError::Unknown => {
            DoorError::Unavailable(commit_status(key, error))
        }
    }
}

/// What an internal door says when a guard does not hold.
pub(crate) fn guard_error(guard: &horchestra_store::Guard) -> DoorError {
    use horchestra_store::Guard;
    match guard {
        Guard::SessionIs { .. } | Guard::LeaseIs { .. } => DoorError::Fenced,
        Guard::Capacity { .. } => DoorError::NoCapacity,
        Guard::Exists(key) if key.kind == Kind::Node => DoorError::NoNode,
        Guard::Exists(_) => DoorError::Gone,
        _ => DoorError::Changed,
    }
}

/// A door's error for a Status that a verb gave it.
pub(crate) fn door_status(status: Status) -> DoorError {
    match status.reason {
        Reason::NotFound => DoorError::Gone,
        Reason::Conflict if status.message.ends_with(TERM_OVER) => DoorError::Fenced,
        Reason::TooManyRequests | Reason::ServiceUnavailable | Reason::Timeout => {
            DoorError::Unavailable(status)
        }
        _ => DoorError::Refused(status),
    }
}
