//! Reading: single objects, listings, watches.
//!
//! How fresh an answer is follows from what was asked: nothing said means "everything acknowledged before
//! I asked, by whichever process"; 0 means "whatever you have"; a number means "not older", or with
//! `Exact` "exactly then". Reads never touch objects in SQL: a fresh view costs one shared question for
//! the current revision, and the rest comes from this process's cache.

mod filter;
mod heartbeats;
mod list;
mod token;
mod watch;

use std::sync::Arc;

use horchestra_core::kind::Key;
use horchestra_core::status::Status;
use horchestra_store::{Entry, Revision, Snapshot};

pub(crate) use heartbeats::Heartbeats;
pub use watch::Watch;

use crate::errors;
use crate::request::At;
use crate::service::Service;
use crate::write::draft::spec_of;

/// A revision as clients write it: decimal, no sign, no white space.
pub(crate) fn parse_revision(text: &str) -> Option<Revision> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

impl At {
    /// From the query parameter `resourceVersion` of a single read.
    pub fn parse(parameter: Option<&str>) -> Result<At, Status> {
        match parameter {
            None | Some("") => Ok(At::Fresh),
            Some("0") => Ok(At::Any),
            Some(text) => parse_revision(text).map(At::NotOlderThan).ok_or_else(|| bad_revision(text)),
        }
    }
}

fn bad_revision(text: &str) -> Status {
    Status::bad_request(format!(
        "resourceVersion: invalid resource version {text:?}: it must be a decimal number"
    ))
}

impl Service {
    pub(crate) async fn view_at(&self, at: At) -> Result<Snapshot, Status> {
        let store = &self.inner.store;
        match at {
            At::Any => match store.snapshot() {
                // Nothing was ever written, or nothing has been read yet.
                view if view.revision() == 0 => self.fresh().await,
                view => Ok(view),
            },
            At::Fresh => self.fresh().await,
            At::NotOlderThan(revision) => {
                store.not_older_than(revision).await.map_err(|error| errors::read_status(&error))
            }
        }
    }

    pub(crate) async fn get_object(&self, key: &Key, at: At) -> Result<Arc<Entry>, Status> {
        spec_of(key.kind)?;
        let view = self.view_at(at).await?;
        let entry = view.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
        Ok(self.inner.heartbeats.show(&self.inner, vec![entry]).await.remove(0))
    }
}
