//! The scheduling framework: the points at which a plugin can take part in finding a place, and the profile
//! that says which plugins do, in which order and with which weight.
//!
//! The points and their order are those of the Kubernetes scheduler: queue sort; then for each Application
//! PreFilter, Filter (per node), PostFilter (only when no node is left), PreScore, Score (per node), Reserve,
//! Permit, PreBind, Bind, PostBind. A plugin implements [`Plugin`] and answers with itself at every point it
//! takes part in, so it is filed under each of them by being enabled once.

use std::any::Any;
use std::cmp::Ordering;
use std::collections::HashMap;

use super::cluster::{Cluster, NodeInfo, Pending};

/// Why a plugin does not let an Application pass. Both keep it waiting and differ in text only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The cluster as it is has no place; the text says what is missing.
    Unschedulable(String),
    /// The plugin could not decide.
    Error(String),
}

impl Rejection {
    pub fn unschedulable(reason: impl Into<String>) -> Rejection {
        Rejection::Unschedulable(reason.into())
    }

    pub fn text(&self) -> &str {
        match self {
            Rejection::Unschedulable(text) | Rejection::Error(text) => text,
        }
    }
}

/// The answer of a plugin at a point: go on, or why not.
pub type Verdict = Result<(), Rejection>;

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
    fn pre_filter(&self, state: &mut CycleState, app: &Pending, cluster: &Cluster) -> Verdict;
}

pub trait Filter: Send + Sync {
    fn filter(&self, state: &CycleState, app: &Pending, node: &NodeInfo, cluster: &Cluster) -> Verdict;
}

pub trait PostFilter: Send + Sync {
    /// Called when no node is left, with each node's reason. May nominate one all the same.
    fn post_filter(
        &self,
        state: &mut CycleState,
        app: &Pending,
        cluster: &Cluster,
        reasons: &[(String, String)],
    ) -> Result<String, Rejection>;
}

pub trait PreScore: Send + Sync {
    fn pre_score(
        &self,
        state: &mut CycleState,
        app: &Pending,
        feasible: &[&NodeInfo],
        cluster: &Cluster,
    ) -> Verdict;
}

pub trait ScorePlugin: Send + Sync {
    fn score(&self, state: &CycleState, app: &Pending, node: &NodeInfo) -> Result<Score, Rejection>;
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
