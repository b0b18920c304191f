//! From a situation to steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application_set::{Child as Rendered, Expansion, HASH_ANNOTATION, expand};
use horchestra_core::kinds::service::ports_of;
use horchestra_core::object::Object;
use horchestra_store::{Entry, Guard};
use serde_json::{Map, Value};

use super::budget::Budget;
use super::gates::{self, Hold, InitGate};
use super::situation::{Child, Situation};
use super::teardown;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub action: Action,
    /// What it rests on.
    pub conditions: Vec<Guard>,
}

/// What a write does.
#[derive(Clone, Debug)]
pub enum Action {
    Create {
        kind: Kind,
        object: Object,
    },
    Update {
        entry: Arc<Entry>,
        object: Object,
    },
    /// `exact`: only in the revision that was looked at.
    Delete {
        entry: Arc<Entry>,
        exact: bool,
    },
    /// Lets go of the set itself.
    Finish {
        entry: Arc<Entry>,
        object: Object,
    },
}

impl PartialEq for Action {
    fn eq(&self, other: &Action) -> bool {
        let revision = |action: &Action| match action {
            Action::Create { .. } => 0,
            Action::Update { entry, .. } | Action::Delete { entry, .. } | Action::Finish { entry, .. } => {
                entry.revision
            }
        };
        (self.verb(), self.kind(), self.name(), revision(self))
            == (other.verb(), other.kind(), other.name(), revision(other))
    }
}

impl Action {
    pub fn kind(&self) -> Kind {
        match self {
            Action::Create { kind, .. } => *kind,
            Action::Update { entry, .. } | Action::Delete { entry, .. } | Action::Finish { entry, .. } => {
                entry.key.kind
            }
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Action::Create { object, .. } => object.name(),
            Action::Update { entry, .. } | Action::Delete { entry, .. } | Action::Finish { entry, .. } => {
                &entry.key.name
            }
        }
    }

    pub fn verb(&self) -> &'static str {
        match self {
            Action::Create { .. } => "create",
            Action::Update { .. } => "update",
            Action::Delete { .. } => "delete",
            Action::Finish { .. } => "finish",
        }
    }
}

/// What is to be done, and what there is to say.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// One stage after the other; the steps of a stage in any order.
    pub stages: Vec<Vec<Step>>,
    /// Whether a stage of which something was not done is the last.
    pub strict: bool,
    pub outlook: Outlook,
}

/// What a plan was made of, as far as the report needs it.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// Why the set cannot be expanded.
    pub render_error: Option<String>,
    /// How many children there should be that are kept running; `None`: nobody knows.
    pub desired: Option<usize>,
    /// How many of them are as the set says now.
    pub updated: usize,
    /// Why children are not as the set says.
    pub held: Option<Hold>,
    /// What the components that are kept running wait for.
    pub initializing: Option<Hold>,
    /// Services of others that children join.
    pub shared: Vec<String>,
}

/// A child that there should be.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub child: Rendered,
    /// The node that it is to be on; empty: the scheduler's choice.
    pub node: String,
}

/// What there is to do about a set.
pub fn plan(situation: &Situation) -> Plan {
    if situation.entry.deleting {
        return teardown::plan(situation);
    }
    match expand(&situation.object, &situation.nodes.spread) {
        Ok(expansion) => live(situation, expansion),
        Err(error) => Plan {
            outlook: Outlook { render_error: Some(error.to_string()), ..Outlook::default() },
            ..Plan::default()
        },
    }
}

/// That nothing about the set has changed since it was looked at.
pub fn set_unchanged(situation: &Situation) -> Guard {
    Guard::Unchanged(situation.entry.key.clone(), situation.entry.revision)
}

fn live(situation: &Situation, expansion: Expansion) -> Plan {
    let (services, shared) = services(situation, &expansion);
    let gate = gates::init(situation, &expansion);
    let every: BTreeSet<String> = expansion.children.iter().map(|child| child.name().to_owned()).collect();
    let kept: BTreeSet<&str> =
        expansion.children.iter().filter(|child| !child.init).map(Rendered::name).collect();
    let mut wanted: BTreeMap<String, Wanted> = expansion
        .children
        .iter()
        .filter(|child| gate.lets_through(child.component))
        .map(|child| {
            let node = child.node_name().to_owned();
            (child.name().to_owned(), Wanted { child: child.clone(), node })
        })
        .collect();
    let same_node = situation.set.spec.same_node();
    let awaited = if same_node { gates::same_node(situation, &mut wanted) } else { None };
    let budget = Budget::new(situation, &kept);
    let mut children = Children { situation, gate: &gate, budget, held: Vec::new() };
    let steps = children.converge(&wanted);
    let held = awaited.or_else(|| held(situation, &children.held));
    let updated = updated(situation, &expansion, &wanted);
    let mut stages = vec![services, steps];
    if situation.set.spec.prunes() {
        stages.push(prune_children(situation, &every));
        stages.push(prune_services(situation, &expansion));
    }
    let outlook = Outlook {
        render_error: None,
        desired: Some(kept.len()),
        updated,
        held: frozen(situation, &stages, held.is_some()).or(held),
        initializing: gate.hold.clone(),
        shared,
    };
    if situation.set.spec.frozen {
        stages.clear();
    }
    Plan { stages, strict: false, outlook }
}

/// What a frozen set leaves undone.
fn frozen(situation: &Situation, stages: &[Vec<Step>], held: bool) -> Option<Hold> {
    let open = held || stages.iter().any(|stage| !stage.is_empty());
    (situation.set.spec.frozen && open).then(|| Hold {
        reason: "Frozen",
        message: "the set is frozen: what it makes stays as it is".to_owned(),
    })
}

/// Children that are kept running and are as the set says now.
fn updated(situation: &Situation, expansion: &Expansion, wanted: &BTreeMap<String, Wanted>) -> usize {
    let is_current = |child: &&Rendered| {
        let node = wanted.get(child.name()).map_or(child.node_name(), |it| it.node.as_str());
        let stored = situation.children.get(child.name());
        stored.is_some_and(|stored| !stored.entry.deleting && !is_changed(stored, child, node))
    };
    expansion.children.iter().filter(|child| !child.init).filter(is_current).count()
}

/// Whether a child is not as it is to be. What others may add to it (annotations, ids, a node where the set
/// names none) is no difference.
pub fn is_changed(child: &Child, wanted: &Rendered, node: &str) -> bool {
    let metadata = &child.app.metadata;
    let labels = metadata.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    metadata.annotations.get(HASH_ANNOTATION) != Some(&wanted.hash)
        || !labels.eq(wanted.object.labels())
        || (!node.is_empty() && node != child.node())
}

/// Why a child is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    OverBudget,
    Paused,
    Frozen,
}

struct Children<'a> {
    situation: &'a Situation,
    gate: &'a InitGate,
    budget: Budget<'a>,
    held: Vec<Left>,
}

impl Children<'_> {
    /// Makes what is missing and changes what is different. Whoever has to wait holds nobody else up.
    fn converge(&mut self, wanted: &BTreeMap<String, Wanted>) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, it) in wanted {
            let Some(child) = self.situation.children.get(name) else {
                let object = placed(it.child.object.clone(), &it.node);
                let action = Action::Create { kind: Kind::Application, object };
                steps.push(Step { action, conditions: self.rests_on(&it.child) });
                continue;
            };
            // What is on its way out is made anew once it is gone.
            if child.entry.deleting || !is_changed(child, &it.child, &it.node) {
                continue;
            }
            match self.may_change(name, child, it) {
                Ok(conditions) => steps.extend(update(child, it, conditions)),
                Err(left) => self.held.push(left),
            }
        }
        steps
    }

    /// What making or changing a child rests on in any case.
    fn rests_on(&self, child: &Rendered) -> Vec<Guard> {
        let mut conditions = vec![set_unchanged(self.situation)];
        conditions.extend(self.gate.passed(child));
        conditions
    }

    fn may_change(&mut self, name: &str, child: &Child, it: &Wanted) -> Result<Vec<Guard>, Left> {
        if child.frozen() {
            return Err(Left::Frozen);
        }
        if self.situation.set.spec.rollout().paused {
            return Err(Left::Paused);
        }
        let mut conditions = self.rests_on(&it.child);
        if !it.child.init {
            conditions.extend(self.budget.spend(name).ok_or(Left::OverBudget)?);
        }
        Ok(conditions)
    }
}

fn held(situation: &Situation, left: &[Left]) -> Option<Hold> {
    let count = |what: Left| left.iter().filter(|it| **it == what).count();
    let (paused, over, frozen) = (count(Left::Paused), count(Left::OverBudget), count(Left::Frozen));
    let hold = |reason, message| Some(Hold { reason, message });
    if paused > 0 {
        return hold("RolloutPaused", format!("the rollout is paused, {} to be changed", children(paused)));
    }
    if over > 0 {
        let most = situation.set.spec.max_unavailable().unwrap_or_default();
        let message = format!("{} to be changed while at most {most} may be unavailable", children(over));
        return hold("RolloutHeld", message);
    }
    if frozen > 0 {
        return hold("RolloutHeld", format!("{} to be changed but frozen", children(frozen)));
    }
    None
}

fn children(count: usize) -> String {
    if count == 1 { "1 child is".to_owned() } else { format!("{count} children are") }
}

/// The object on a node, where one is named.
fn placed(mut object: Object, node: &str) -> Object {
    if node.is_empty() {
        return object;
    }
    let spec = object.0.entry("spec").or_insert_with(|| Value::Object(Map::new()));
    if let Some(spec) = spec.as_object_mut() {
        let placement = spec.entry("placement").or_insert_with(|| Value::Object(Map::new()));
        if let Some(placement) = placement.as_object_mut() {
            placement.insert("nodeName".to_owned(), node.into());
        }
    }
    object
}

/// The stored child with everything that is the set's to say as it says now. A node stays unless another one
/// is named.
fn update(child: &Child, it: &Wanted, conditions: Vec<Guard>) -> Option<Step> {
    let mut object = child.entry.object().ok()?;
    for member in ["labels", "annotations", "ownerReferences"] {
        if let Some(value) = it.child.object.at(&["metadata", member]) {
            object.set_metadata(member, value.clone());
        }
    }
    object.0.insert("spec".to_owned(), it.child.object.get("spec")?.clone());
    let node = if it.node.is_empty() { child.node() } else { &it.node };
    let object = placed(object, node);
    Some(Step { action: Action::Update { entry: Arc::clone(&child.entry), object }, conditions })
}

/// Steps about rendered Services, and the names of those that are somebody else's.
fn services(situation: &Situation, expansion: &Expansion) -> (Vec<Step>, Vec<String>) {
    let (mut steps, mut shared) = (Vec::new(), Vec::new());
    for rendered in &expansion.services {
        let conditions = vec![set_unchanged(situation)];
        match situation.services.get(rendered.name()) {
            None => {
                let action = Action::Create { kind: Kind::Service, object: rendered.object.clone() };
                steps.push(Step { action, conditions });
            }
            Some(stored) if !stored.owned => shared.push(rendered.name().to_owned()),
            // As they are read, defaults are filled in on both sides.
            Some(stored) if stored.service.spec.ports != ports_of(&rendered.object) => {
                let Ok(mut object) = stored.entry.object() else { continue };
                let ports = rendered.object.at(&["spec", "ports"]).cloned().unwrap_or_default();
                if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
                    spec.insert("ports".to_owned(), ports);
                }
                let action = Action::Update { entry: Arc::clone(&stored.entry), object };
                steps.push(Step { action, conditions });
            }
            Some(_) => {}
        }
    }
    (steps, shared)
}

/// Whatever the set does not say any more, gates or not, goes.
fn prune_children(situation: &Situation, every: &BTreeSet<String>) -> Vec<Step> {
    let superfluous = situation
        .children
        .iter()
        .filter(|(name, child)| !every.contains(*name) && !child.entry.deleting && !child.frozen());
    superfluous.map(|(_, child)| delete(situation, &child.entry)).collect()
}

/// A Service goes when nobody is a member of it any more.
fn prune_services(situation: &Situation, expansion: &Expansion) -> Vec<Step> {
    let rendered: BTreeSet<&str> = expansion.services.iter().map(|service| service.name()).collect();
    let joins = |name: &str| {
        situation.joined.contains(name)
            || expansion.children.iter().any(|child| child.object.str_at(&["spec", "serviceName"]) == name)
    };
    let superfluous = situation.own_services().filter(|(name, service)| {
        !rendered.contains(name.as_str()) && !service.entry.deleting && !joins(name)
    });
    superfluous.map(|(_, service)| delete(situation, &service.entry)).collect()
}

fn delete(situation: &Situation, entry: &Arc<Entry>) -> Step {
    let action = Action::Delete { entry: Arc::clone(entry), exact: true };
    Step { action, conditions: vec![set_unchanged(situation)] }
}
