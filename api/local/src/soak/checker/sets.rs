//! What the loop of sets writes, judged by what was stored at that very moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::application_set::{ApplicationSet, Child, HASH_ANNOTATION, SpreadNode, expand};
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry};

use super::past::Past;
use super::{Checker, Rule, SETS};

/// What a row did, where it broke nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// Nothing that a set is asked about.
    Nothing,
    Made,
    /// Changed a child that was available, within a budget.
    Disrupted,
}

/// A rule, and how it was broken.
type Broken = (Rule, String);

impl Checker {
    pub(super) fn check_child(&mut self, row: &LogRow) {
        if row.who.user != SETS {
            return;
        }
        match judge(&self.past, row) {
            Ok(Did::Nothing) => {}
            Ok(Did::Made) => self.counts.children += 1,
            Ok(Did::Disrupted) => self.counts.disruptions += 1,
            Err((rule, what)) => self.broken(row.change.revision, rule, what),
        }
    }
}

fn judge(past: &Past, row: &LogRow) -> Result<Did, Broken> {
    let (after, key) = (&row.change.entry, row.change.key());
    let before = past.get(key);
    let left = owner(after);
    let Some((name, uid)) = left.clone().or_else(|| before.and_then(owner)) else {
        return Err((Rule::Unwanted, format!("{key} belongs to no set")));
    };
    let set = past.get(&Key::namespaced(Kind::ApplicationSet, key.namespace.as_str(), name.as_str()));
    let Some(set) = set.filter(|set| set.uid.to_string() == uid) else {
        return Err((Rule::SetGone, format!("{key} was written for set {name}, which is not there")));
    };
    let unreadable = |error: &dyn std::fmt::Display| (Rule::Unreadable, format!("{}: {error}", set.key));
    let typed = set.typed::<ApplicationSet>().map_err(|error| unreadable(&error))?;
    let object = set.object().map_err(|error| unreadable(&error))?;
    let nodes: Vec<SpreadNode> = past
        .of_kind(Kind::Node)
        .filter_map(|entry| entry.typed::<Node>().ok().map(|node| SpreadNode::from(&*node)))
        .collect();
    let children = expand(&object, &nodes).map_err(|error| unreadable(&error))?.children;
    let wanted = children.iter().find(|child| child.name() == key.name);
    let closed = set.deleting || typed.spec.frozen;
    match row.change.kind {
        ChangeKind::Added if closed => {
            Err((Rule::SetGone, format!("{key} was made for a set that takes nothing")))
        }
        ChangeKind::Added => {
            let Some(wanted) = wanted else { return Err((Rule::Unwanted, format!("{key} was made"))) };
            check_order(past, wanted, &children, key)?;
            Ok(Did::Made)
        }
        ChangeKind::Deleted => check_end(set, wanted, key),
        ChangeKind::Modified => {
            let Some(before) = before else { return Ok(Did::Nothing) };
            if after.deleting != before.deleting {
                return check_end(set, wanted, key);
            }
            // One that is let go of, or whose labels were put right, goes on as it was.
            if left.is_none() || after.generation == before.generation {
                return Ok(Did::Nothing);
            }
            if closed || typed.spec.rollout().paused {
                return Err((Rule::SetGone, format!("{key} was changed for a set that changes nothing")));
            }
            let Some(wanted) = wanted else { return Err((Rule::Unwanted, format!("{key} was changed"))) };
            check_order(past, wanted, &children, key)?;
            check_budget(past, &typed, &children, before)
        }
    }
}

/// Whatever goes is not wanted.
fn check_end(set: &Entry, wanted: Option<&Child>, key: &Key) -> Result<Did, Broken> {
    if set.deleting || wanted.is_none() {
        return Ok(Did::Nothing);
    }
    Err((Rule::Wanted, format!("{key} was deleted")))
}

/// Every step before it has come to the end of what the set says now.
fn check_order(past: &Past, wanted: &Child, children: &[Child], key: &Key) -> Result<(), Broken> {
    let first = |child: &&Child| child.init && (!wanted.init || child.component < wanted.component);
    for step in children.iter().filter(first) {
        let stored = past.get(&beside(key, step.name())).and_then(|entry| entry.typed::<Application>().ok());
        let done = stored.is_some_and(|app| {
            app.is_finished()
                && app.status.phase == "Succeeded"
                && app.metadata.annotations.get(HASH_ANNOTATION) == Some(&step.hash)
        });
        if !done {
            return Err((Rule::OutOfOrder, format!("{key} came before {} was done", step.name())));
        }
    }
    Ok(())
}

/// So many stay available as the budget says.
fn check_budget(
    past: &Past,
    set: &ApplicationSet,
    children: &[Child],
    changed: &Entry,
) -> Result<Did, Broken> {
    let kept: BTreeSet<&str> =
        children.iter().filter(|child| !child.init).map(|child| child.name()).collect();
    let Some(most) = set.spec.max_unavailable() else { return Ok(Did::Nothing) };
    if !kept.contains(changed.key.name.as_str()) || !is_available(past, changed) {
        return Ok(Did::Nothing);
    }
    let available =
        |name: &&&str| past.get(&beside(&changed.key, name)).is_some_and(|entry| is_available(past, entry));
    let left = kept.iter().filter(available).count() - 1;
    if left + most < kept.len() {
        let (key, all) = (&changed.key, kept.len());
        let what = format!("{key} was changed, which leaves {left} of {all} with a budget of {most}");
        return Err((Rule::Budget, what));
    }
    Ok(Did::Disrupted)
}

fn is_available(past: &Past, entry: &Entry) -> bool {
    let Ok(app) = entry.typed::<Application>() else { return false };
    let ready = past.node(app.node_name()).is_some_and(|node| node.ready() == Some(ConditionStatus::True));
    let current = app.status.observed_generation == app.metadata.generation;
    ready && !entry.deleting && app.status.phase == "Running" && current
}

fn beside(key: &Key, name: &str) -> Key {
    Key::namespaced(Kind::Application, key.namespace.as_str(), name)
}

/// Name and uid of the set that runs an Application.
fn owner(entry: &Arc<Entry>) -> Option<(String, String)> {
    let app = entry.typed::<Application>().ok()?;
    let owner = app.metadata.controller().filter(|owner| owner.kind == Kind::ApplicationSet.name())?;
    Some((owner.name.clone(), owner.uid.clone()))
}
