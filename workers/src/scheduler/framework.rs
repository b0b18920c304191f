//! The scheduling framework: the points at which a plugin can take part in finding a place, and the profile
//! that says which plugins do, in which order and with which weight.
//!
//! The points and their order are those of the Kubernetes scheduler: queue sort; then for each Application
//! PreFilter, Filter (per node), PostFilter (only when no node is left), PreScore, Score (per node), Reserve,
//! Permit, PreBind, Bind, PostBind. A plugin implements [`Plugin`] and answers with itself at every point it
//! takes part in, so it is filed under each of them by being enabled once.
//!
//! Other than there, a plugin is not asked node by node: it gets all nodes that are still in question ([`Candidates`])
//! and goes over them itself. Fleets have thousands of nodes, most plugins have nothing to say to most Applications,
//! and one that has looks its question up once.

use std::any::Any;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;

use super::cluster::{Cluster, Pending};

/// Why a plugin does not let an Application pass. Both keep it waiting and differ in text only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The cluster as it is has no place; the text says what is missing.
    Unschedulable(Cow<'static, str>),
    /// The plugin could not decide.
    Error(Cow<'static, str>),
}

impl Rejection {
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection::Unschedulable(reason.into())
    }

    pub fn error(reason: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection::Error(reason.into())
    }

    pub fn text(&self) -> &str {
        match self {
            Rejection::Unschedulable(text) | Rejection::Error(text) => text,
        }
    }
}

/// The answer of a plugin at a point: go on, or why not.
pub type Verdict = Result<(), Rejection>;

/// The nodes that are still in question for one Application, and why the others are not. Nodes are places in the
/// order of the [`Cluster`].
#[derive(Debug)]
pub struct Candidates {
    open: Vec<usize>,
    /// The node and the number of its reason.
    rejected: Vec<(usize, usize)>,
    reasons: Vec<Cow<'static, str>>,
}

impl Candidates {
    /// All nodes.
    pub fn of(cluster: &Cluster) -> Candidates {
        Candidates { open: (0..cluster.len()).collect(), rejected: Vec::new(), reasons: Vec::new() }
    }

    /// In ascending order.
    pub fn open(&self) -> &[usize] {
        &self.open
    }

    /// Asks about each node that is still open, in order. Its first rejection is a node's reason.
    pub fn retain(&mut self, mut judge: impl FnMut(usize) -> Verdict) {
        let Candidates { open, rejected, reasons } = self;
        open.retain(|node| match judge(*node) {
            Ok(()) => true,
            Err(Rejection::Unschedulable(reason) | Rejection::Error(reason)) => {
                // There are few reasons, and mostly it is the last one again.
                let known = reasons.iter().rposition(|known| *known == reason);
                let number = known.unwrap_or_else(|| {
                    reasons.push(reason);
                    reasons.len() - 1
                });
                rejected.push((*node, number));
                false
            }
        });
    }

    /// Each rejected node with its reason.
    pub fn rejected(&self) -> impl Iterator<Item = (usize, &str)> {
        self.rejected.iter().map(|(node, number)| (*node, self.reasons[*number].as_ref()))
    }

    /// Every reason with the number of nodes that have it.
    pub fn reasons(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut counts = vec![0; self.reasons.len()];
        for (_, number) in &self.rejected {
            counts[*number] += 1;
        }
        self.reasons.iter().map(AsRef::as_ref).zip(counts)
    }
}

/// Scratch space of one Application's cycle, by plugin-chosen name.
#[derive(Default)]
pub struct CycleState {
    values: HashMap<&'static str, Box<dyn Any + Send>>,
}

impl CycleState {
    pub fn put<T: Send + 'static>(&mut self, name: &'static str, value: T) {
        self.values.insert(name, Box::new(value));
    }

    pub fn get<T: 'static>(&self, name: &str) -> Option<&T> {
        self.values.get(name)?.downcast_ref()
    }
}

/// A score of one node, from 0 (worst) to [`MAX_SCORE`].
pub type Score = i64;

pub const MAX_SCORE: Score = 100;

pub trait QueueSort: Send + Sync {
    /// Which of two Applications is tried first.
    fn compare(&self, a: &Pending, b: &Pending) -> Ordering;
}

pub trait PreFilter: Send + Sync {
    /// Called once, before any node is looked at. May write down in the cluster what it will ask of it.
    fn pre_filter(&self, state: &mut CycleState, app: &Pending, cluster: &mut Cluster) -> Verdict;
}

pub trait Filter: Send + Sync {
    /// Rejects those of the nodes that will not do.
    fn filter(&self, state: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates);
}

pub trait PostFilter: Send + Sync {
    /// Called when no node is left, with each node's reason. May nominate one all the same.
    fn post_filter(
        &self,
        state: &mut CycleState,
        app: &Pending,
        cluster: &Cluster,
        nodes: &Candidates,
    ) -> Result<usize, Rejection>;
}

pub trait PreScore: Send + Sync {
    /// Called with the nodes that will be scored.
    fn pre_score(&self, state: &mut CycleState, app: &Pending, cluster: &Cluster, nodes: &[usize])
    -> Verdict;
}

pub trait ScorePlugin: Send + Sync {
    /// Writes the score of each node into its place of `scores`, where 0 stands before.
    fn score(
        &self,
        state: &CycleState,
        app: &Pending,
        cluster: &Cluster,
        nodes: &[usize],
        scores: &mut [Score],
    ) -> Verdict;
}

pub trait Reserve: Send + Sync {
    fn reserve(&self, state: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster) -> Verdict;
    fn unreserve(&self, state: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster);
}

pub trait Permit: Send + Sync {
    fn permit(&self, state: &mut CycleState, app: &Pending, node: &str) -> Verdict;
}

pub trait PreBind: Send + Sync {
    fn pre_bind(&self, state: &mut CycleState, app: &Pending, node: &str) -> Verdict;
}

/// What a binder says to an Application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindDecision {
    /// Not this plugin's business; the next one decides.
    Skip,
    /// To be written.
    Bind,
}

pub trait Bind: Send + Sync {
    fn bind(&self, state: &CycleState, app: &Pending, node: &str) -> Result<BindDecision, Rejection>;
}

pub trait PostBind: Send + Sync {
    fn post_bind(&self, state: &CycleState, app: &Pending, node: &str);
}

/// A plugin: a name, and itself at each point where it takes part.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn queue_sort(&self) -> Option<&dyn QueueSort> {
        None
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        None
    }
    fn filter(&self) -> Option<&dyn Filter> {
        None
    }
    fn post_filter(&self) -> Option<&dyn PostFilter> {
        None
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        None
    }
    fn score(&self) -> Option<&dyn ScorePlugin> {
        None
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        None
    }
    fn permit(&self) -> Option<&dyn Permit> {
        None
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        None
    }
    fn bind(&self) -> Option<&dyn Bind> {
        None
    }
    fn post_bind(&self) -> Option<&dyn PostBind> {
        None
    }
}
