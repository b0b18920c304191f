//! History: the versions of an object that are kept, and going back to one of them.
//!
//! A rollback is a new change that is written through the same rules as any update: a version that today's
//! rules refuse is not restored. What comes back is what the author wrote: everything but metadata and status,
//! and of the metadata labels and annotations. What the author did not write is carried over from the object
//! as it is now, because restoring it would be a change that nobody asked for:
//!
//! * system metadata: finalizers, owners, the deletion mark, and every label or annotation under
//!   `horchestra.io/`;
//! * a placement that the scheduler chose, or that was not chosen yet: going back to an older image must not
//!   move a workload. A node that the author had named in that version is restored;
//! * what allocators gave out (user and group ids, a Service's address), which others may hold by now;
//! * `spec.frozen`, which its own doors change.
//!
//! Who named the node follows from the history: the version in which the name appeared tells who wrote it.
//! Where that version is not kept any more, the placement stays as it is.
//!
//! Of kinds whose bodies are not kept (Secrets) there is the list of who changed them when, and no way back.

use horchestra_core::decode::Document;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Entry, HistoryOf, HistoryRow, Revision};
use jiff::Timestamp;
use serde_json::{Map, Value};
use std::sync::Arc;

use super::draft::spec_of;
use super::update::Replacement;
use super::{Attempt, stored_object};
use crate::caller::RequestContext;
use crate::doors::people::{meant, named};
use crate::errors;
use crate::request::{Order, Part, Revisions, Version, WriteOptions, Written};
use crate::service::Service;

/// Labels and annotations under this prefix are the system's.
const SYSTEM_PREFIX: &str = "horchestra.io/";

/// An object as it is, and its versions, newest first.
struct History {
    head: Arc<Entry>,
    rows: Vec<HistoryRow>,
}

impl Service {
    async fn history(&self, key: &Key) -> Result<History, Status> {
        let spec = spec_of(key.kind)?;
        let head = self.fresh().await?.get(key).ok_or_else(|| Status::not_found(key.kind, &key.name))?;
        let of = HistoryOf::Uid(head.uid);
        let mut rows = self.inner.store.history(of).await.map_err(|error| errors::read_status(&error))?;
        rows.retain(|row| !row.deleted);
        // Older ones are on their way out; whether upkeep has been here must not make a difference.
        rows.truncate(spec.history.map_or(usize::MAX, |kept| usize::try_from(kept).unwrap_or(usize::MAX)));
        Ok(History { head, rows })
    }

    pub(crate) async fn list_revisions(&self, key: &Key) -> Result<Revisions, Status> {
        let history = self.history(key).await?;
        let versions = history.rows.into_iter().map(|row| Version {
            revision: row.revision,
            generation: row.generation,
            time: Timestamp::from_microsecond(row.at)
                .and_then(|at| Timestamp::from_second(at.as_second()))
                .unwrap_or(Timestamp::UNIX_EPOCH),
            user: row.who.user,
            verb: row.who.verb,
            audit_id: row.who.audit_id,
        });
        Ok(Revisions { revision: history.head.revision, versions: versions.collect() })
    }

    pub(crate) async fn roll_back(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let spec = spec_of(key.kind)?;
        let revision = named(order)?;
        let wanted = order.revision.unwrap_or(0);
        if spec.history.is_none() {
            let why = format!(
                "earlier contents of {} are not kept, so there is nothing to roll back to",
                key.kind.plural()
            );
            return Err(Status::forbidden(key.kind, &key.name, why));
        }
        let history = self.history(key).await?;
        let at = history
            .rows
            .iter()
            .position(|row| row.revision == wanted)
            .ok_or_else(|| no_revision(key, wanted))?;
        let version = horchestra_core::object::decode(&history.rows[at].body, 0).map_err(|error| {
            tracing::error!(%key, wanted, %error, "a version in the history cannot be read");
            Status::internal("that version cannot be read")
        })?;
        let placed = placement_path(key.kind).is_some_and(|path| by_author(&history.rows[at..], path));
        self.run(context, "rollback", key, options.dry_run, |attempt: Attempt<'_>| {
            let old = meant(attempt.view, key, order)?;
            if old.uid != history.head.uid {
                return Err(no_revision(key, wanted));
            }
            let object = restored(key.kind, &stored_object(&old)?, &version, placed);
            let document = Document { object, ..Document::default() };
            let exact = options.exact_resource_version;
            let replacement = Replacement { document, revision, exact, applied: None };
            self.plan_replacement(context, &attempt, key, &old, Part::Main, replacement, options)
        })
        .await
    }
}

fn no_revision(key: &Key, revision: Revision) -> Status {
    let mut status = Status::not_found(key.kind, &key.name);
    status.message =
        format!("revision {revision} of {} \"{}\" not found", key.kind.group_resource(), key.name);
    status
}

/// Where the scheduler writes its choice.
fn placement_path(kind: Kind) -> Option<&'static [&'static str]> {
    match kind {
        Kind::Application => Some(&["spec", "placement", "nodeName"]),
        Kind::PersistentVolume => Some(&["spec", "node"]),
        _ => None,
    }
}

/// What is never restored.
fn carried_over(kind: Kind) -> &'static [&'static [&'static str]] {
    match kind {
        Kind::Application => &[
            &["spec", "securityContext", "runAsUser"],
            &["spec", "securityContext", "runAsGroup"],
            &["spec", "frozen"],
        ],
        Kind::ApplicationSet => &[&["spec", "frozen"]],
        Kind::Service => &[&["spec", "clusterIP"]],
        _ => &[],
    }
}

/// Whether the placement in the first of these versions (newest first) was written by an author.
fn by_author(rows: &[HistoryRow], path: &[&str]) -> bool {
    let place = |row: &HistoryRow| {
        horchestra_core::object::decode(&row.body, 0)
            .map(|object| object.str_at(path).to_owned())
            .unwrap_or_default()
    };
    let Some(place_then) = rows.first().map(place).filter(|place| !place.is_empty()) else { return false };
    let same = rows.iter().take_while(|row| place(row) == place_then).count();
    // The oldest version with this placement; it counts only if it is sure to be the first one.
    let first = &rows[same - 1];
    let known = same < rows.len() || first.who.verb == "create";
    known && !first.who.user.starts_with("system:loop:")
}

/// The object with what its author wrote in `version`.
fn restored(kind: Kind, head: &Object, version: &Object, placed_by_author: bool) -> Object {
    let kept = |member: &str| matches!(member, "apiVersion" | "kind" | "metadata" | "status");
    let mut object =
        Object(head.0.iter().filter(|(it, _)| kept(it)).map(|(k, v)| (k.clone(), v.clone())).collect());
    object.0.extend(version.0.iter().filter(|(it, _)| !kept(it)).map(|(k, v)| (k.clone(), v.clone())));
    for map in ["labels", "annotations"] {
        let of = |object: &Object, system: bool| -> Map<String, Value> {
            let entries = object.at(&["metadata", map]).and_then(Value::as_object);
            let entries = entries.into_iter().flatten();
            entries
                .filter(|(key, _)| key.starts_with(SYSTEM_PREFIX) == system)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let mut entries = of(version, false);
        entries.extend(of(head, true));
        if entries.is_empty() {
            object.metadata_mut().remove(map);
        } else {
            object.set_metadata(map, Value::Object(entries));
        }
    }
    for path in carried_over(kind) {
        carry(&mut object.0, &head.0, path);
    }
    if let Some(path) = placement_path(kind).filter(|_| !placed_by_author) {
        carry(&mut object.0, &head.0, path);
    }
    object
}

/// Makes the value below a chain of members that of another tree, absence included. An object that is left
/// empty goes too, where the other tree has none.
fn carry(to: &mut Map<String, Value>, from: &Map<String, Value>, path: &[&str]) {
    let Some((member, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        match from.get(*member) {
            Some(value) => to.insert((*member).to_owned(), value.clone()),
            None => to.remove(*member),
        };
        return;
    }
    let empty = Map::new();
    let inner = from.get(*member).and_then(Value::as_object);
    if inner.is_none() && !to.get(*member).is_some_and(Value::is_object) {
        return;
    }
    let slot = to.entry(*member).or_insert_with(|| Value::Object(Map::new()));
    if let Some(map) = slot.as_object_mut() {
        carry(map, inner.unwrap_or(&empty), rest);
        if map.is_empty() && inner.is_none() {
            to.remove(*member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use horchestra_store::Attribution;
    use serde_json::json;
    use uuid::Uuid;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn what_the_author_wrote_comes_back_and_nothing_else() {
        let head = object(json!({
            "metadata": {"name": "web", "finalizers": ["horchestra.io/node-teardown"], "generation": 7,
                "labels": {"now": "x", "horchestra.io/component": "c"}, "annotations": {"a": "now"}},
            "spec": {"image": "two", "placement": {"nodeName": "n1"}, "frozen": true, "args": ["x"],
                "securityContext": {"runAsUser": 70001}},
            "status": {"phase": "Running"},
        }));
        let version = object(json!({
            "metadata": {"name": "web", "finalizers": ["x.y/z"], "generation": 2, "deletionTimestamp": "t",
                "labels": {"then": "x", "horchestra.io/component": "old"}},
            "spec": {"image": "one", "placement": {"nodeName": "n9", "priority": 3}, "command": ["c"],
                "securityContext": {"runAsUser": 1, "runAsGroup": 2}},
            "status": {"phase": "Pending"},
        }));
        let expected = |node: &str| {
            object(json!({
                "metadata": {"name": "web", "finalizers": ["horchestra.io/node-teardown"], "generation": 7,
                    "labels": {"then": "x", "horchestra.io/component": "c"}},
                "spec": {"image": "one", "placement": {"nodeName": node, "priority": 3}, "command": ["c"],
                    "frozen": true, "securityContext": {"runAsUser": 70001}},
                "status": {"phase": "Running"},
            }))
        };
        assert_eq!(restored(Kind::Application, &head, &version, false), expected("n1"));
        assert_eq!(restored(Kind::Application, &head, &version, true), expected("n9"));
    }

    #[test]
    fn absence_is_carried_over_as_well() {
        for (to, from, expected) in [
            (json!({"a": {"b": {"c": 1}}}), json!({}), json!({})),
            (json!({"a": {"b": {"c": 1, "d": 2}}}), json!({}), json!({"a": {"b": {"d": 2}}})),
            (json!({}), json!({"a": {"b": {"c": 1}}}), json!({"a": {"b": {"c": 1}}})),
            (json!({}), json!({"a": {"b": {"d": 1}}}), json!({"a": {"b": {}}})),
            (json!({}), json!({}), json!({})),
            (json!({"a": 7}), json!({}), json!({"a": 7})),
        ] {
            let mut to = object(to).0;
            carry(&mut to, &object(from.clone()).0, &["a", "b", "c"]);
            assert_eq!(Value::Object(to), expected, "{from}");
        }
    }

    #[test]
    fn who_chose_the_node_follows_from_the_history() {
        let row = |user: &str, verb: &str, node: &str| {
            let mut object = Object::default();
            if !node.is_empty() {
                object.0.insert("spec".into(), json!({"placement": {"nodeName": node}}));
            }
            HistoryRow {
                key: Key::namespaced(Kind::Application, "default", "web"),
                uid: Uuid::nil(),
                revision: 1,
                generation: 1,
                deleted: false,
                body: horchestra_core::object::encode(Kind::Application, &object),
                who: Attribution { user: user.into(), verb: verb.into(), audit_id: Uuid::nil(), trace: None },
                at: 0,
            }
        };
        let (me, loops) = ("alice", "system:loop:scheduler");
        for (why, rows, author) in [
            ("named at creation", vec![row(me, "update", "n1"), row(me, "create", "n1")], true),
            ("named later", vec![row(me, "patch", "n1"), row(me, "create", "")], true),
            ("bound", vec![row(me, "patch", "n1"), row(loops, "bind", "n1"), row(me, "create", "")], false),
            ("moved by the author", vec![row(me, "patch", "n2"), row(loops, "bind", "n1")], true),
            ("not placed", vec![row(me, "create", "")], false),
            ("too long ago", vec![row(me, "patch", "n1"), row(me, "patch", "n1")], false),
        ] {
            let path = placement_path(Kind::Application).unwrap();
            assert_eq!(by_author(&rows, path), author, "{why}");
        }
    }
}
