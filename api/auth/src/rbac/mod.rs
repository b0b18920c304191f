//! Permissions from rule objects: Role, ClusterRole and the bindings of both.
//!
//! # From objects to a decision
//!
//! A [`Policy`] is the projection of all rule objects at one moment: who is granted which roles, and where. It
//! is built aside and replaces the one before in one step, so a decision is made on one state of the rules,
//! never on a mixture. For a caller, the policy is narrowed to a [`Profile`]: the rules that name the caller
//! or one of the caller's groups. For one question (namespace, verb) the profile is narrowed further, to
//! pairs of group and resource, and casbin matches the question against those ([`enforcer`]).
//!
//! casbin walks every line through a scripted matcher, so its time grows with the number of lines: a refusal
//! over 5,000 lines takes tens of milliseconds. Therefore subject, namespace, verb and object name are looked
//! up before, in maps, and there is not one enforcer but **one small enforcer per distinct set of lines**,
//! known by the digest of that set. Callers with the same rights share enforcers, whatever their names and
//! namespaces are, and an enforcer outlives changes of the policy that do not concern its lines.
//!
//! # What is guaranteed
//!
//! * Nothing is granted that no rule spells out. A binding whose namespace is gone, a role that does not
//!   exist, a role or subject of another kind, an object that cannot be read, grant nothing.
//! * `*` is special as a whole value only. Everything else (commas, quotes, line breaks, `app*`, regular
//!   expressions) is text that is compared to the letter: rules reach casbin as vectors of texts and are
//!   never written into a policy file or a script.
//! * Paths are granted by ClusterRoleBindings only, and so is whatever lies in no namespace.
//! * The policy is brought up to date by the first decision that is made after its source has moved on
//!   ([`PolicySource::version`]); there is no task that could fall behind or end unnoticed. A change that the
//!   source shows is in force for the very next decision.
//! * When the policy cannot be built, the one before stays and the failure is logged; before the first one
//!   stands, nothing is allowed beyond the built-in grants ([`AuthorizationError::NotLoaded`]).
//! * What is kept between decisions is bounded, and void as soon as the policy changes.
//!
//! # What is not
//!
//! A decision holds for the moment in which it was made: an open watch is not cut when its grant goes. A
//! rule that spells out more than [`COMBINATIONS_LIMIT`] combinations of group, resource and name grants
//! nothing.

mod enforcer;
mod paths;
mod policy;
mod profile;
mod rules;

use std::sync::Arc;

pub use policy::{Policy, PolicyBuilder, is_named};
pub use rules::{COMBINATIONS_LIMIT, grants_verb};

pub(crate) use enforcer::Enforcers;
pub(crate) use profile::Profile;

/// Which state of the rule objects a policy is of. Differs whenever the objects do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyVersion {
    /// Which history the revision counts in.
    pub history: u128,
    /// The last change of any rule object or Namespace.
    pub revision: i64,
}

/// Where the rule objects are read.
pub trait PolicySource: Send + Sync {
    /// The present state; `None`: nothing is loaded yet. Asked for every decision, so it has to be cheap.
    fn version(&self) -> Option<PolicyVersion>;

    /// The policy of the present state, and which state that is.
    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError>;
}

impl<S: PolicySource + ?Sized> PolicySource for Arc<S> {
    fn version(&self) -> Option<PolicyVersion> {
        (**self).version()
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        (**self).read()
    }
}

/// Why there is no policy of the present state.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("the rule objects are not loaded yet")]
    NotLoaded,
    #[error("the rule objects cannot be read")]
    Unreadable {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why there is no decision. Never a reason to allow anything.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error("the rules of this replica are not loaded yet")]
    NotLoaded,
    #[error("the policy engine failed")]
    Engine {
        #[source]
        source: casbin::Error,
    },
    #[error("the policy engine did not answer at once")]
    Waiting,
}

/// Rules that never change: for tools and tests, and for processes in which nobody asks.
#[derive(Debug, Default)]
pub struct FixedPolicy(Arc<Policy>);

impl FixedPolicy {
    pub fn new(policy: Policy) -> FixedPolicy {
        FixedPolicy(Arc::new(policy))
    }
}

impl PolicySource for FixedPolicy {
    fn version(&self) -> Option<PolicyVersion> {
        Some(PolicyVersion { history: 0, revision: 0 })
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        Ok((PolicyVersion { history: 0, revision: 0 }, Arc::clone(&self.0)))
    }
}
