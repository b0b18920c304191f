//! What lists and watches show of an object whose contents will not open.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::sealing::SealError;
use horchestra_core::object;
use horchestra_core::sealed::{self, UNREADABLE};
use horchestra_core::status::Status;
use horchestra_store::Entry;

use super::Unusable;
use crate::service::Service;

/// Objects that a warning names.
const NAMED: usize = 5;

/// The objects of a page that did not open, for the warning that goes with it.
#[derive(Debug, Default)]
pub(crate) struct Unopened {
    names: Vec<String>,
    more: usize,
}

impl Unopened {
    fn note(&mut self, entry: &Entry, why: &Unusable) {
        if self.names.len() < NAMED {
            self.names.push(format!("{}/{} ({why})", entry.key.namespace, entry.key.name));
        } else {
            self.more += 1;
        }
    }

    /// What the reader of the page is told.
    pub(crate) fn warnings(self) -> Vec<String> {
        let told = |name: String| format!("shown without its contents: {name}");
        let mut warnings: Vec<String> = self.names.into_iter().map(told).collect();
        if self.more > 0 {
            warnings.push(format!("shown without their contents: {} more", self.more));
        }
        warnings
    }
}

impl Unusable {
    /// Whether neither time nor another replica will make it open.
    fn is_final(&self, given_up: impl Fn(&str) -> bool) -> bool {
        match self {
            Unusable::Seal(SealError::Broken | SealError::Form) | Unusable::Shape => true,
            Unusable::Seal(SealError::UnknownKey { id }) => given_up(id),
            Unusable::NoKeys | Unusable::Seal(SealError::Library) => false,
        }
    }
}

/// The clear part of an entry, marked as no more than that.
fn closed(entry: &Entry, why: &Unusable) -> Result<Entry, Status> {
    let unreadable = |_| Status::internal("a stored object could not be read");
    let mut clear = object::decode(&entry.body, 0).map_err(unreadable)?;
    clear.0.remove(sealed::MEMBER);
    let annotations = clear.metadata_mut().entry("annotations").or_insert_with(|| serde_json::json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(UNREADABLE.to_owned(), why.to_string().into());
    }
    let body: Bytes = object::encode(entry.key.kind, &clear);
    Ok(entry.with_body(body, None))
}

impl Service {
    /// As [`Service::open`] for one of many: what will not open is shown closed.
    pub(crate) fn open_or_close(
        &self,
        entry: &Arc<Entry>,
        unopened: &mut Unopened,
    ) -> Result<Arc<Entry>, Status> {
        let why = match self.try_open(entry) {
            Ok(opened) => return Ok(opened),
            Err(why) => why,
        };
        let given_up = |id: &str| self.keys().is_some_and(|keys| keys.has_given_up(id));
        if !why.is_final(given_up) {
            return Err(why.into_status(&entry.key));
        }
        tracing::error!(key = %entry.key, error = %why, "the contents of an object do not open");
        unopened.note(entry, &why);
        closed(entry, &why).map(Arc::new)
    }

    /// A page as clients see it, and what there is to say about it.
    pub(crate) async fn open_all(
        &self,
        entries: Vec<Arc<Entry>>,
    ) -> Result<(Vec<Arc<Entry>>, Vec<String>), Status> {
        /// Pages longer than this are opened on a thread of their own.
        const LARGE: usize = 128;
        if entries.first().is_none_or(|first| !first.key.kind.is_sealed()) {
            return Ok((entries, Vec::new()));
        }
        let large = entries.len() > LARGE;
        let service = self.clone();
        let open = move || {
            let mut unopened = Unopened::default();
            let open = |entry: &Arc<Entry>| service.open_or_close(entry, &mut unopened);
            let opened: Vec<_> = entries.iter().map(open).collect::<Result<_, _>>()?;
            Ok((opened, unopened.warnings()))
        };
        if !large {
            return open();
        }
        let opened = tokio::task::spawn_blocking(open).await;
        opened.unwrap_or_else(|_| Err(Status::internal("the contents of a page could not be opened")))
    }
}
