//! What has to wait: for components that run to their end, and for the node of the first child.

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kinds::application_set::{Child as Rendered, Expansion};
use horchestra_store::Guard;

use super::plan::{Wanted, is_changed};
use super::situation::{Child, Situation};

/// Why something waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// As in a condition.
    pub reason: &'static str,
    pub message: String,
}

/// What the components that run to their end let through.
#[derive(Clone, Debug, Default)]
pub struct InitGate {
    /// Positions of the components whose children may be made and changed; `None` for all.
    pub open: Option<BTreeSet<usize>>,
    pub hold: Option<Hold>,
    /// That a child of a step is done, by the position of its component.
    done: Vec<(usize, Guard)>,
}

impl InitGate {
    pub fn lets_through(&self, component: usize) -> bool {
        self.open.as_ref().is_none_or(|open| open.contains(&component))
    }

    /// That every step before this child is still done.
    pub fn passed(&self, child: &Rendered) -> impl Iterator<Item = Guard> {
        let before = move |component: usize| !child.init || component < child.component;
        self.done.iter().filter(move |(component, _)| before(*component)).map(|(_, guard)| guard.clone())
    }
}

/// Steps go one after the other, in the order of the set; the first child that is not done decides.
pub fn init(situation: &Situation, expansion: &Expansion) -> InitGate {
    let mut open = BTreeSet::new();
    let mut done = Vec::new();
    for (at, component) in situation.set.spec.applications.iter().enumerate() {
        if !component.is_init() {
            continue;
        }
        open.insert(at);
        let mut children: Vec<&Rendered> =
            expansion.children.iter().filter(|child| child.component == at).collect();
        children.sort_by_key(|child| child.name());
        for child in children {
            let stored = situation.children.get(child.name());
            let hold = unfinished(&component.name, child, stored);
            if hold.is_some() {
                return InitGate { open: Some(open), hold, done };
            }
            let unchanged = stored.map(|it| Guard::Unchanged(it.entry.key.clone(), it.entry.revision));
            done.extend(unchanged.map(|guard| (at, guard)));
        }
    }
    InitGate { done, ..InitGate::default() }
}

fn unfinished(step: &str, wanted: &Rendered, child: Option<&Child>) -> Option<Hold> {
    let initializing = |message: String| {
        Some(Hold { reason: "Initializing", message: format!("step \"{step}\": {message}") })
    };
    let name = wanted.name();
    let Some(child) = child else {
        return initializing(format!("application \"{name}\" is yet to be made"));
    };
    if is_changed(child, wanted, wanted.node_name()) {
        return initializing(format!("application \"{name}\" is to run what the set says now"));
    }
    if child.app.status.phase == "Failed" {
        let code = child.app.status.exit_code;
        let code =
            code.map_or("no exit code was reported".to_owned(), |code| format!("the exit code was {code}"));
        let message = format!("step \"{step}\": application \"{name}\" has failed, {code}");
        return Some(Hold { reason: "InitFailed", message });
    }
    if !child.app.is_finished() {
        return initializing(format!("application \"{name}\" has not finished"));
    }
    None
}

/// Puts all children on the node of the first one. While that is nowhere, all others wait.
pub fn same_node(situation: &Situation, wanted: &mut BTreeMap<String, Wanted>) -> Option<Hold> {
    let first_step = wanted.values().filter(|it| it.child.init).map(|it| it.child.component).min();
    let anchor = match first_step {
        Some(step) => wanted.values().find(|it| it.child.component == step)?,
        None => wanted.values().next()?,
    };
    let anchor = anchor.child.name().to_owned();
    let node = situation.children.get(&anchor).map_or("", Child::node).to_owned();
    if node.is_empty() {
        wanted.retain(|name, _| *name == anchor);
        let message = format!("application \"{anchor}\" has no node yet, and all others go to the same one");
        return Some(Hold { reason: "AwaitingAnchor", message });
    }
    for (name, it) in wanted.iter_mut() {
        if *name != anchor && it.node.is_empty() {
            it.node.clone_from(&node);
        }
    }
    None
}
