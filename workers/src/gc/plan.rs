//! What is to be done, from what is there: a pure function.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::metadata::{FOREGROUND, ORPHAN};
use horchestra_core::owners::Owner;
use horchestra_service::Propagation;
use horchestra_store::{Entry, Snapshot};
use uuid::Uuid;

use super::absent::Absent;
use super::graph::{Graph, Linked, present, waits_for_node};

/// One write.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Deletes an object that nobody owns any more.
    Collect { of: Arc<Entry>, propagation: Propagation },
    /// Takes references off an object.
    Disown { of: Arc<Entry>, owners: Vec<String> },
    /// Ends what an owner waits for; after these others have gone.
    LetGo { of: Arc<Entry>, policy: Propagation, after: Vec<Uuid> },
    /// Ends the wait for a node that was forgotten.
    GiveUpNode { of: Arc<Entry> },
}

impl Step {
    /// The object that is written.
    pub fn of(&self) -> &Arc<Entry> {
        match self {
            Step::Collect { of, .. }
            | Step::Disown { of, .. }
            | Step::LetGo { of, .. }
            | Step::GiveUpNode { of } => of,
        }
    }

    pub fn after(&self) -> &[Uuid] {
        match self {
            Step::LetGo { after, .. } => after,
            _ => &[],
        }
    }

    /// Label of the metric.
    pub fn what(&self) -> &'static str {
        match self {
            Step::Collect { .. } => "collected",
            Step::Disown { .. } => "disowned",
            Step::LetGo { .. } => "owner_let_go",
            Step::GiveUpNode { .. } => "node_given_up",
        }
    }
}

/// All that is to be done, in an order in which nothing comes before what it waits for.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// Owners that wait for dependents.
    pub waiting: usize,
}

/// What one reference comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The owner keeps the object; or nothing is known of it.
    Solid,
    /// The owner is an ApplicationSet that sees to the object itself.
    OfSet,
    /// The owner leaves the object behind.
    Leaves,
    /// The owner waits for the object to go.
    Waits,
    /// The owner was deleted.
    Gone,
}

/// What is to be done.
pub(super) fn plan(
    graph: &Graph,
    view: &Snapshot,
    absent: &Absent,
    forgotten_nodes: &HashSet<String>,
) -> Plan {
    let mut plan = Plan::default();
    for linked in &graph.linked {
        plan.steps.extend(of_dependent(graph, view, absent, linked));
        if waits_for_node(linked).is_some_and(|node| forgotten_nodes.contains(node)) {
            plan.steps.push(Step::GiveUpNode { of: Arc::clone(&linked.entry) });
        }
    }
    of_owners(graph, &mut plan);
    plan
}

/// What is to be done about an object for the sake of its owners.
fn of_dependent(graph: &Graph, view: &Snapshot, absent: &Absent, linked: &Linked) -> Option<Step> {
    let standings: Vec<(Standing, &str)> = linked
        .owners
        .iter()
        .map(|owner| match owner {
            Some(owner) => (standing(graph, view, absent, linked, owner), owner.uid.as_str()),
            None => (Standing::Solid, ""),
        })
        .collect();
    let all = |wanted: &[Standing]| -> Vec<String> {
        let found = standings.iter().filter(|(standing, _)| wanted.contains(standing));
        found.map(|(_, uid)| (*uid).to_owned()).collect()
    };
    let some = |wanted: Standing| standings.iter().any(|(standing, _)| *standing == wanted);
    let of = Arc::clone(&linked.entry);
    let disown =
        |owners: Vec<String>| (!owners.is_empty()).then_some(Step::Disown { of: of.clone(), owners });
    if some(Standing::OfSet) {
        return None;
    }
    if some(Standing::Solid) {
        return disown(all(&[Standing::Leaves, Standing::Waits, Standing::Gone]));
    }
    if some(Standing::Leaves) {
        return disown(all(&[Standing::Leaves]));
    }
    if linked.owners.is_empty() || linked.entry.deleting {
        return None;
    }
    // Whoever waits for it waits for its dependents as well.
    let foreground = some(Standing::Waits) && graph.has_dependents(&linked.entry);
    let propagation = if foreground { Propagation::Foreground } else { Propagation::Background };
    Some(Step::Collect { of, propagation })
}

fn standing(graph: &Graph, view: &Snapshot, absent: &Absent, dependent: &Linked, owner: &Owner) -> Standing {
    let Some(entry) = present(view, owner) else {
        return match absent.deleted(owner) {
            None => Standing::Solid,
            Some(true) => Standing::Leaves,
            Some(false) => Standing::Gone,
        };
    };
    if is_child(dependent, owner) {
        return if entry.deleting { Standing::OfSet } else { Standing::Solid };
    }
    match graph.get(&entry.uid) {
        Some(owner) if owner.waits(ORPHAN) => Standing::Leaves,
        Some(owner) if owner.waits(FOREGROUND) => Standing::Waits,
        _ => Standing::Solid,
    }
}

/// The object is one that the controller of ApplicationSets sees to.
fn is_child(dependent: &Linked, owner: &Owner) -> bool {
    owner.key.kind == Kind::ApplicationSet
        && owner.controller
        && matches!(dependent.entry.key.kind, Kind::Application | Kind::Service)
}

/// Owners that have nothing to wait for any more, dependents before their owners.
fn of_owners(graph: &Graph, plan: &mut Plan) {
    let waiting: Vec<&Arc<Linked>> =
        graph.linked.iter().filter(|linked| linked.waits(FOREGROUND) || linked.waits(ORPHAN)).collect();
    plan.waiting = waiting.len();
    for linked in waiting.iter().filter(|linked| linked.waits(ORPHAN)) {
        // The controller of a set does this itself, once it has freed the children.
        if linked.entry.key.kind != Kind::ApplicationSet && !graph.has_dependents(&linked.entry) {
            let of = Arc::clone(&linked.entry);
            plan.steps.push(Step::LetGo { of, policy: Propagation::Orphan, after: Vec::new() });
        }
    }
    let mut owners = Owners { graph, held: held(graph, &waiting), done: HashMap::new(), steps: Vec::new() };
    for linked in waiting.iter().filter(|linked| linked.waits(FOREGROUND)) {
        owners.visit(linked);
    }
    plan.steps.append(&mut owners.steps);
}

/// Dependents that their owner waits for. A set waits for its children whatever they say.
fn blockers<'a>(graph: &'a Graph, owner: &'a Linked) -> impl Iterator<Item = &'a Arc<Linked>> {
    graph
        .dependents(&owner.entry)
        .filter(|(dependent, reference)| reference.blocks || is_child(dependent, reference))
        .map(|(dependent, _)| dependent)
}

/// Nothing keeps it but that it waits for dependents itself.
fn only_waits(linked: &Linked) -> bool {
    linked.entry.deleting && linked.finalizers.len() == 1 && linked.holds(FOREGROUND)
}

/// Owners that wait for something that is not itself only waiting, directly or through others.
fn held(graph: &Graph, waiting: &[&Arc<Linked>]) -> HashSet<Uuid> {
    let mut held = HashSet::new();
    loop {
        let before = held.len();
        for owner in waiting.iter().filter(|owner| owner.waits(FOREGROUND)) {
            let blocked = blockers(graph, owner)
                .any(|dependent| !only_waits(dependent) || held.contains(&dependent.entry.uid));
            if blocked {
                held.insert(owner.entry.uid);
            }
        }
        if held.len() == before {
            return held;
        }
    }
}

/// Goes through the owners that can be let go, depth first.
struct Owners<'a> {
    graph: &'a Graph,
    held: HashSet<Uuid>,
    /// Visited; false: not yet left. Coming back to such a one closes a circle, which counts as no reason to wait.
    done: HashMap<Uuid, bool>,
    steps: Vec<Step>,
}

impl Owners<'_> {
    fn visit(&mut self, first: &Arc<Linked>) {
        // A stack of our own: chains of owners may be long.
        let mut stack: Vec<(Arc<Linked>, Vec<Arc<Linked>>)> = Vec::new();
        self.enter(first, &mut stack);
        while let Some((_, ahead)) = stack.last_mut() {
            match ahead.pop() {
                Some(next) => self.enter(&next, &mut stack),
                None => {
                    let Some((linked, _)) = stack.pop() else { return };
                    let left = |dependent: &&Arc<Linked>| self.done.get(&dependent.entry.uid) == Some(&true);
                    let after =
                        blockers(self.graph, &linked).filter(left).map(|dependent| dependent.entry.uid);
                    let after = after.collect();
                    self.done.insert(linked.entry.uid, true);
                    let of = Arc::clone(&linked.entry);
                    self.steps.push(Step::LetGo { of, policy: Propagation::Foreground, after });
                }
            }
        }
    }

    fn enter(&mut self, linked: &Arc<Linked>, stack: &mut Vec<(Arc<Linked>, Vec<Arc<Linked>>)>) {
        let uid = linked.entry.uid;
        if self.held.contains(&uid) || self.done.contains_key(&uid) {
            return;
        }
        self.done.insert(uid, false);
        let ahead = blockers(self.graph, linked).cloned().collect();
        stack.push((Arc::clone(linked), ahead));
    }
}
