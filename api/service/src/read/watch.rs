//! Watches.
//!
//! A watch is a cursor on the log behind a filter. What it guarantees: every change of a selected object
//! after the starting point, once and in order; an object that starts or ceases to be selected shows as
//! added or deleted at that very revision; a bookmark never runs ahead of an event that is still to come;
//! the stream ends with a reason (410: list again) and never goes silent. Where the state comes first, it is
//! of one moment, and the changes go on from exactly there.
//!
//! An object that ceases to be selected is shown as it was while it was selected, at the revision of the
//! change: whoever selects does not get to see what is not selected. That state is at hand for recent changes
//! and else read from the log; a watch for which the log does not reach back far enough ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::status::{Cause, Status};
use horchestra_store::store::ReadError;
use horchestra_store::{Change, ChangeKind, Entry, Revision, Snapshot, Store, WatchEnd, Watcher};
use tokio::time::Instant;

use super::filter::Filter;
use super::list::check_match;
use super::{bad_revision, parse_revision};
use crate::errors;
use crate::request::{At, Contents, WatchEvent, WatchRequest};
use crate::sealing::Unopened;
use crate::service::Service;
use crate::write::draft::spec_of;

/// An open watch.
pub struct Watch {
    filter: Filter,
    store: Store,
    /// What has been made of changes and is still to be handed out.
    pending: VecDeque<WatchEvent>,
    /// Changes that nothing has been made of yet: the first one waits for the state before it.
    incoming: VecDeque<Change>,
    /// `None`: the stream ends with what is pending.
    watcher: Option<Watcher>,
    bookmarks: Option<Bookmarks>,
    /// Opens what is sealed; `None`: it is handed out as it is.
    opener: Option<Service>,
}

struct Bookmarks {
    every: Duration,
    next: Instant,
}

impl Watch {
    /// The next event; `None` when the stream has ended. Cancelling the future loses nothing.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.ready() {
                return Some(event);
            }
            if let Some(change) = self.incoming.front() {
                match before(&self.store, change).await {
                    Ok(left) => {
                        self.pending.push_back(WatchEvent::Deleted(left));
                        self.incoming.pop_front();
                        self.take_in();
                    }
                    Err(status) => return Some(self.fail(status)),
                }
                continue;
            }
            let watcher = self.watcher.as_mut()?;
            let due = self.bookmarks.as_ref().map(|bookmarks| bookmarks.next);
            let batch = tokio::select! {
                biased;
                batch = watcher.next() => batch,
                () = until(due) => {
                    let revision = watcher.progress();
                    if let Some(bookmarks) = &mut self.bookmarks {
                        bookmarks.next = Instant::now() + bookmarks.every;
                    }
                    return Some(WatchEvent::Bookmark { revision, initial_events_end: false });
                }
            };
            match batch {
                Ok(changes) => {
                    self.incoming.extend(changes);
                    self.take_in();
                }
                Err(end) => return Some(self.fail(errors::watch_status(&end))),
            }
        }
    }

    /// Makes events of changes, up to one whose earlier state has to be fetched.
    fn take_in(&mut self) {
        while let Some(change) = self.incoming.front() {
            match translate(&self.filter, change) {
                Seen::Nothing => {}
                Seen::Event(event) => self.pending.push_back(event),
                Seen::Leaving => return,
            }
            self.incoming.pop_front();
        }
    }

    /// The stream ends with this.
    fn fail(&mut self, status: Status) -> WatchEvent {
        self.pending.clear();
        self.incoming.clear();
        self.watcher = None;
        WatchEvent::Failed(status)
    }

    /// An event that is there without waiting, so that several can share a flush.
    pub fn ready(&mut self) -> Option<WatchEvent> {
        let event = self.pending.pop_front()?;
        let Some(opener) = &self.opener else { return Some(event) };
        let open = |entry| opener.open_or_close(&entry, &mut Unopened::default());
        let opened = match event {
            WatchEvent::Added(entry) => open(entry).map(WatchEvent::Added),
            WatchEvent::Modified(entry) => open(entry).map(WatchEvent::Modified),
            WatchEvent::Deleted(entry) => open(entry).map(WatchEvent::Deleted),
            other => Ok(other),
        };
        // What cannot be shown yet must not be skipped: the stream ends before it.
        Some(opened.unwrap_or_else(|status| self.fail(status)))
    }

    /// The revision up to which everything has been handed out, for a last bookmark when a stream is ended
    /// from outside; `None` while events are still to be handed out (the initial ones above all).
    pub fn progress(&self) -> Option<Revision> {
        let watcher = self.watcher.as_ref()?;
        (self.pending.is_empty() && self.incoming.is_empty()).then(|| watcher.progress())
    }

    /// The events as a stream.
    pub fn into_stream(self) -> impl futures::Stream<Item = WatchEvent> + Send + 'static {
        futures::stream::unfold(self, |mut watch| async move {
            let event = watch.next().await?;
            Some((event, watch))
        })
    }

    fn failed(filter: Filter, store: Store, status: Status) -> Watch {
        let pending = VecDeque::from([WatchEvent::Failed(status)]);
        let incoming = VecDeque::new();
        Watch { filter, store, pending, incoming, watcher: None, bookmarks: None, opener: None }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What a watcher sees of a change.
enum Seen {
    Nothing,
    Event(WatchEvent),
    /// The object is no longer selected, and what it was before is not at hand.
    Leaving,
}

fn translate(filter: &Filter, change: &Change) -> Seen {
    let entry = &change.entry;
    if !filter.in_scope(&entry.key) {
        return Seen::Nothing;
    }
    let selected_now = change.kind != ChangeKind::Deleted && filter.matches(&entry.index);
    let selected_before = match (change.kind, &change.previous) {
        (ChangeKind::Added, _) => false,
        (_, Some(previous)) => filter.matches(previous),
        (_, None) => filter.matches(&entry.index),
    };
    match (selected_before, selected_now) {
        (true, true) => Seen::Event(WatchEvent::Modified(entry.clone())),
        (false, true) => Seen::Event(WatchEvent::Added(entry.clone())),
        (true, false) if change.kind == ChangeKind::Deleted => {
            Seen::Event(WatchEvent::Deleted(entry.clone()))
        }
        (true, false) => match &change.before {
            Some(before) => Seen::Event(WatchEvent::Deleted(Arc::new(before.deleted_at(change.revision)))),
            None => Seen::Leaving,
        },
        (false, false) => Seen::Nothing,
    }
}

/// The state before a change, as the last one that a watcher sees.
async fn before(store: &Store, change: &Change) -> Result<Arc<Entry>, Status> {
    match store.before(change).await {
        Ok(Some(before)) => Ok(Arc::new(before.deleted_at(change.revision))),
        Ok(None) => {
            let end = WatchEnd::Expired { asked: change.revision - 1, oldest: change.revision };
            Err(errors::watch_status(&end))
        }
        Err(error) => Err(errors::read_status(&error)),
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// With the state; `marked`: a bookmark says where it ends.
    State { at: At, marked: bool },
    /// With what comes after the view.
    Now(At),
    /// With what came after this revision.
    After(Revision),
}

impl Service {
    pub(crate) async fn open_watch(&self, request: WatchRequest) -> Result<Watch, Status> {
        let spec = spec_of(request.kind)?;
        let contents = request.contents;
        let filter =
            Filter::parse(spec, request.namespace, &request.label_selector, &request.field_selector)?;
        let beginning = beginning(
            request.resource_version.as_deref(),
            request.resource_version_match.as_deref(),
            request.send_initial_events,
        )?;
        let store = &self.inner.store;
        let mut pending = VecDeque::new();
        let from = match beginning {
            Beginning::State { at, marked } => {
                let view = self.view_at(at).await?;
                pending = state(&view, &filter);
                if marked && request.allow_bookmarks {
                    let revision = view.revision();
                    pending.push_back(WatchEvent::Bookmark { revision, initial_events_end: true });
                }
                view.revision()
            }
            Beginning::Now(at) => self.view_at(at).await?.revision(),
            Beginning::After(revision) => {
                // A revision that this replica has not seen yet may come from another that has.
                match store.not_older_than(revision).await {
                    Ok(_) => revision,
                    Err(ReadError::TooLarge { asked, current }) => {
                        return Ok(Watch::failed(filter, store.clone(), errors::too_old(asked, current)));
                    }
                    Err(error) => return Err(errors::read_status(&error)),
                }
            }
        };
        match store.watch(request.kind, from) {
            Ok(watcher) => {
                let every = self.inner.config.bookmark_interval;
                let bookmarks =
                    request.allow_bookmarks.then(|| Bookmarks { every, next: Instant::now() + every });
                let opener = (spec.kind.is_sealed() && contents == Contents::Opened).then(|| self.clone());
                let (store, incoming) = (store.clone(), VecDeque::new());
                Ok(Watch { filter, store, pending, incoming, watcher: Some(watcher), bookmarks, opener })
            }
            Err(end) => Ok(Watch::failed(filter, store.clone(), errors::watch_status(&end))),
        }
    }
}

/// The selected objects as they are, in list order.
fn state(view: &Snapshot, filter: &Filter) -> VecDeque<WatchEvent> {
    if let Some(key) = filter.single() {
        let entry = view.get(&key).filter(|entry| filter.selects(entry));
        return entry.map(WatchEvent::Added).into_iter().collect();
    }
    view.list(filter.kind(), filter.namespace())
        .filter(|entry| filter.selects(entry))
        .map(|entry| WatchEvent::Added(entry.clone()))
        .collect()
}

/// The rules about which parameters go together.
fn beginning(
    revision: Option<&str>,
    matching: Option<&str>,
    send_initial_events: Option<bool>,
) -> Result<Beginning, Status> {
    let revision = revision.filter(|text| !text.is_empty());
    let matching = matching.filter(|text| !text.is_empty());
    let fault = |field: &str, why: &str| {
        let cause = Cause::new("FieldValueForbidden", field, format!("Forbidden: {why}"));
        Err(Status::invalid_options("ListOptions", vec![cause]))
    };
    check_match(matching)?;
    match (send_initial_events, matching) {
        (Some(_), None | Some("Exact")) => {
            return fault(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            );
        }
        (None, Some(_)) => {
            return fault(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        _ => {}
    }
    let at = At::parse(revision)?;
    let number = match revision {
        Some(text) => parse_revision(text).ok_or_else(|| bad_revision(text))?,
        None => 0,
    };
    Ok(match send_initial_events {
        Some(true) => Beginning::State { at, marked: true },
        Some(false) if number == 0 => Beginning::Now(at),
        None if number == 0 => Beginning::State { at, marked: false },
        Some(false) | None => Beginning::After(number),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_watch_begins() {
        let state = |at, marked| Beginning::State { at, marked };
        for (revision, matching, initial, expected) in [
            (None, None, None, state(At::Fresh, false)),
            (Some("0"), None, None, state(At::Any, false)),
            (Some("7"), None, None, Beginning::After(7)),
            (None, Some("NotOlderThan"), Some(true), state(At::Fresh, true)),
            (Some("0"), Some("NotOlderThan"), Some(true), state(At::Any, true)),
            (Some("7"), Some("NotOlderThan"), Some(true), state(At::NotOlderThan(7), true)),
            (None, Some("NotOlderThan"), Some(false), Beginning::Now(At::Fresh)),
            (Some("7"), Some("NotOlderThan"), Some(false), Beginning::After(7)),
        ] {
            let found = beginning(revision, matching, initial).unwrap();
            assert_eq!(found, expected, "{revision:?} {matching:?} {initial:?}");
        }
        for (revision, matching, initial, code) in [
            (Some("x"), None, None, 400),
            (None, None, Some(true), 422),
            (None, None, Some(false), 422),
            (Some("7"), Some("Exact"), Some(true), 422),
            (Some("7"), Some("NotOlderThan"), None, 422),
            (Some("7"), Some("Newest"), Some(true), 422),
        ] {
            let status = beginning(revision, matching, initial).unwrap_err();
            assert_eq!(status.code(), code, "{revision:?} {matching:?} {initial:?}");
        }
    }
}
