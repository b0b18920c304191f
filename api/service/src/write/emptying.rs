//! The Events of a namespace go with it.
//!
//! The item that erases a Namespace also deletes every Event in it, under the guard that there are no more: so
//! no Event survives its namespace, not even for a moment, and none is left to show up in a later namespace of
//! the same name. What does not fit into one item is deleted before, in items that hold only as long as the
//! namespace is as it was judged, and empty but for Events.

use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_store::{CommitError, Entry, Guard, MAX_OPS, Op, Snapshot};

use crate::admission::Demand;
use crate::caller::RequestContext;
use crate::doors::deletion;
use crate::errors;
use crate::service::Service;

/// What goes with a Namespace, and what has to hold for that to be everything.
pub(super) struct Contents {
    pub ops: Vec<Op>,
    pub demand: Demand,
}

impl Service {
    /// The Events that go with this Namespace. `None`: there were more than go into one item; many of them are
    /// gone now, so the deletion has to be planned again.
    pub(super) async fn events_of(
        &self,
        context: &RequestContext,
        view: &Snapshot,
        namespace: &Entry,
    ) -> Result<Option<Contents>, Status> {
        let name = &namespace.key.name;
        let events: Vec<Arc<Entry>> = view.list(Kind::Event, Some(name)).cloned().collect();
        if events.len() < MAX_OPS {
            let limit = i64::try_from(events.len()).unwrap_or(i64::MAX);
            let guard = Guard::EventsAtMost { namespace: name.clone(), limit };
            let why = "Events are being written into it all the time, try again";
            let refusal = Status::conflict(Kind::Namespace, name, why);
            let ops = events.iter().map(|event| deletion(event)).collect();
            return Ok(Some(Contents { ops, demand: Demand { guard, refusal } }));
        }
        let guards = [
            Guard::NamespaceEmpty(name.clone()),
            Guard::Unchanged(namespace.key.clone(), namespace.revision),
        ];
        match self.drop_events(context, "delete", &events, &guards).await {
            Ok(_) | Err(CommitError::Refused(_)) => Ok(None),
            Err(error) => Err(errors::commit_status(&namespace.key, &error)),
        }
    }
}
