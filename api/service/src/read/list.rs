//! Listings, page by page.
//!
//! All pages of a listing are of the revision of the first one, whatever is written in between and whichever
//! replica answers. When that moment cannot be rebuilt any more, the answer is 410 with a token that goes on
//! behind the last page in the current state: nothing is listed twice, and clients that can live with a
//! listing of two moments save starting over.

use std::sync::Arc;

use horchestra_core::status::{Cause, Status};
use horchestra_store::store::ReadError;
use horchestra_store::{Entry, Revision, Snapshot};

use super::filter::Filter;
use super::token::{CURRENT, Token, now_ms};
use super::{bad_revision, parse_revision};
use crate::errors;
use crate::request::{At, Contents, ListRequest, Listing};
use crate::service::Service;
use crate::write::draft::spec_of;

/// Which moment a listing is of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Moment {
    At(At),
    Exactly(Revision),
    Continued(Token),
}

impl Service {
    pub(crate) async fn list_objects(&self, request: ListRequest) -> Result<Listing, Status> {
        let spec = spec_of(request.kind)?;
        let filter =
            Filter::parse(spec, request.namespace, &request.label_selector, &request.field_selector)?;
        let moment = moment(
            &request.kind,
            request.continue_token.as_deref(),
            request.resource_version.as_deref(),
            request.resource_version_match.as_deref(),
            request.send_initial_events,
        )?;
        let (view, after, start) = match moment {
            Moment::At(at) => (self.view_at(at).await?, None, now_ms()),
            Moment::Exactly(revision) => {
                let view = self.inner.store.exactly_at(request.kind, revision).await;
                (view.map_err(|error| errors::read_status(&error))?, None, now_ms())
            }
            Moment::Continued(token) => {
                let (view, start) = self.continued(&token).await?;
                (view, Some((token.ns, token.name)), start)
            }
        };
        let limit = usize::try_from(request.limit.unwrap_or(0)).unwrap_or(usize::MAX);
        let page = page(&view, &filter, after, limit);
        let continue_token = page.more.then(|| {
            self.inner.store.keep_for_pages(request.kind, &view);
            let last = page.entries.last().map(|entry| &entry.key);
            Token {
                rev: view.revision(),
                kind: request.kind.number(),
                ns: last.map(|key| key.namespace.clone()).unwrap_or_default(),
                name: last.map(|key| key.name.clone()).unwrap_or_default(),
                start,
            }
            .encode()
        });
        let mut entries = self.inner.heartbeats.show(&self.inner, page.entries).await;
        let mut warnings = Vec::new();
        if request.contents == Contents::Opened {
            (entries, warnings) = self.open_all(entries).await?;
        }
        Ok(Listing {
            entries,
            revision: view.revision(),
            continue_token,
            remaining: page.remaining,
            warnings,
        })
    }

    async fn continued(&self, token: &Token) -> Result<(Snapshot, i64), Status> {
        if token.rev == CURRENT {
            return Ok((self.fresh().await?, now_ms()));
        }
        let over = || {
            let mut status = Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can \
                 start a new list without the continue parameter, or use the continue token in this response \
                 to retrieve the remainder of the results, at the cost of consistency.",
            );
            status.continue_token = Some(Token { rev: CURRENT, ..token.clone() }.encode());
            status
        };
        if token.is_over(self.inner.config.continue_ttl) {
            return Err(over());
        }
        let Some(kind) = horchestra_core::kind::Kind::from_number(token.kind) else {
            return Err(Status::bad_request("continue key is not valid"));
        };
        match self.inner.store.exactly_at(kind, token.rev).await {
            Ok(view) => Ok((view, token.start)),
            Err(ReadError::Expired { .. } | ReadError::TooLarge { .. }) => Err(over()),
            Err(error) => Err(errors::read_status(&error)),
        }
    }
}

struct Found {
    entries: Vec<Arc<Entry>>,
    more: bool,
    remaining: Option<u64>,
}

/// The entries of a page; `limit` 0 is none.
fn page(view: &Snapshot, filter: &Filter, after: Option<(String, String)>, limit: usize) -> Found {
    if let (Some(key), None) = (filter.single(), &after) {
        let entries = view.get(&key).filter(|entry| filter.selects(entry)).into_iter().collect();
        return Found { entries, more: false, remaining: None };
    }
    let namespace = filter.namespace();
    let mut rest = match &after {
        Some((ns, name)) => view.list_after(filter.kind(), namespace, (ns, name)),
        None => view.list(filter.kind(), namespace),
    };
    let mut entries = Vec::new();
    while let Some(entry) = rest.next() {
        if !filter.selects(entry) {
            continue;
        }
        if limit > 0 && entries.len() == limit {
            let remaining = (!filter.is_selective()).then(|| 1 + rest.count() as u64);
            return Found { entries, more: true, remaining };
        }
        entries.push(Arc::clone(entry));
    }
    Found { entries, more: false, remaining: None }
}

fn options_fault(field: &str, why: &str) -> Status {
    let cause = Cause::new("FieldValueForbidden", field, format!("Forbidden: {why}"));
    Status::invalid_options("ListOptions", vec![cause])
}

/// The rules about which parameters go together.
fn moment(
    kind: &horchestra_core::kind::Kind,
    token: Option<&str>,
    revision: Option<&str>,
    matching: Option<&str>,
    send_initial_events: Option<bool>,
) -> Result<Moment, Status> {
    let token = token.filter(|text| !text.is_empty());
    let revision = revision.filter(|text| !text.is_empty());
    let matching = matching.filter(|text| !text.is_empty());
    if send_initial_events.is_some() {
        return Err(options_fault("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if matching.is_some() && token.is_some() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        return Err(options_fault("resourceVersionMatch", why));
    }
    if matching.is_some() && revision.is_none() {
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(options_fault("resourceVersionMatch", why));
    }
    check_match(matching)?;
    let number = match revision {
        Some(text) => Some(parse_revision(text).ok_or_else(|| bad_revision(text))?),
        None => None,
    };
    if let Some(token) = token {
        if number.is_some_and(|number| number != 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(Moment::Continued(Token::decode(token, *kind)?));
    }
    match (number, matching) {
        (Some(0), Some("Exact")) => {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            Err(options_fault("resourceVersionMatch", why))
        }
        (Some(number), Some("Exact")) => Ok(Moment::Exactly(number)),
        (None, _) => Ok(Moment::At(At::Fresh)),
        (Some(0), _) => Ok(Moment::At(At::Any)),
        (Some(number), _) => Ok(Moment::At(At::NotOlderThan(number))),
    }
}

/// 422 for a value that nobody knows.
pub(super) fn check_match(matching: Option<&str>) -> Result<(), Status> {
    match matching {
        None | Some("Exact" | "NotOlderThan") => Ok(()),
        Some(other) => {
            let text = format!("Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\"");
            let cause = Cause::new("FieldValueNotSupported", "resourceVersionMatch", text);
            Err(Status::invalid_options("ListOptions", vec![cause]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_core::kind::Kind;

    #[test]
    fn which_parameters_go_together() {
        let token =
            Token { rev: 3, kind: Kind::Node.number(), ns: String::new(), name: "a".into(), start: 0 };
        let text = token.encode();
        let text = text.as_str();
        let good = [
            (None, None, None, Moment::At(At::Fresh)),
            (None, Some(""), Some(""), Moment::At(At::Fresh)),
            (None, Some("0"), None, Moment::At(At::Any)),
            (None, Some("5"), None, Moment::At(At::NotOlderThan(5))),
            (None, Some("5"), Some("NotOlderThan"), Moment::At(At::NotOlderThan(5))),
            (None, Some("0"), Some("NotOlderThan"), Moment::At(At::Any)),
            (None, Some("5"), Some("Exact"), Moment::Exactly(5)),
            (Some(text), None, None, Moment::Continued(token.clone())),
            (Some(text), Some("0"), None, Moment::Continued(token.clone())),
        ];
        for (token, revision, matching, expected) in good {
            let found = moment(&Kind::Node, token, revision, matching, None).unwrap();
            assert_eq!(found, expected, "{token:?} {revision:?} {matching:?}");
        }
        let bad = [
            (None, None, Some("Exact"), None, 422),
            (None, Some("0"), Some("Exact"), None, 422),
            (None, Some("5"), Some("Newest"), None, 422),
            (Some(text), None, Some("NotOlderThan"), None, 422),
            (None, None, None, Some(true), 422),
            (None, None, None, Some(false), 422),
            (Some(text), Some("5"), None, None, 400),
            (None, Some("x"), None, None, 400),
            (None, Some("-1"), None, None, 400),
            (None, Some("+1"), None, None, 400),
            (None, Some("99999999999999999999"), None, None, 400),
            (Some("x"), None, None, None, 400),
        ];
        for (token, revision, matching, initial, code) in bad {
            let status = moment(&Kind::Node, token, revision, matching, initial).unwrap_err();
            assert_eq!(status.code(), code, "{token:?} {revision:?} {matching:?} {initial:?}");
        }
    }
}
