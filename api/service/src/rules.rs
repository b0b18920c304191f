//! The rule objects as the watch cache has them: where an [`Authorizer`](horchestra_auth::Authorizer) of this
//! process reads its policy.
//!
//! The cache follows the change log, so every replica comes to the same policy by itself. A replica that
//! acknowledged a change of a rule object has it in its cache by then ([`crate::Service`] waits for that), and
//! judges by it from there on; the others see it as soon as their tail does, usually within milliseconds.

use std::sync::Arc;

use horchestra_auth::rbac::{Policy, PolicyBuilder, PolicyError, PolicySource, PolicyVersion};
use horchestra_core::kind::Kind;
use horchestra_core::kinds::rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use horchestra_store::{Entry, Snapshot, Store};
use serde::de::DeserializeOwned;

/// What a policy is made of. Namespaces are in it because a binding counts only while its Namespace exists.
const KINDS: [Kind; 5] =
    [Kind::Namespace, Kind::Role, Kind::RoleBinding, Kind::ClusterRole, Kind::ClusterRoleBinding];

/// Whether objects of this kind have a part in the policy.
pub(crate) fn has_part(kind: Kind) -> bool {
    KINDS.contains(&kind)
}

/// The rule objects in the watch cache of this process.
#[derive(Clone)]
pub struct CachedRules(Store);

impl CachedRules {
    /// The store has to cache the four kinds of rule objects, and Namespaces.
    pub fn new(store: Store) -> CachedRules {
        CachedRules(store)
    }
}

impl PolicySource for CachedRules {
    fn version(&self) -> Option<PolicyVersion> {
        version(&self.0.snapshot())
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        let view = self.0.snapshot();
        let version = version(&view).ok_or(PolicyError::NotLoaded)?;
        Ok((version, Arc::new(policy(&view))))
    }
}

/// The rule objects of one view, which stay as they are.
pub(crate) struct ViewedRules(Snapshot);

impl ViewedRules {
    pub(crate) fn new(view: Snapshot) -> ViewedRules {
        ViewedRules(view)
    }
}

impl PolicySource for ViewedRules {
    fn version(&self) -> Option<PolicyVersion> {
        version(&self.0)
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        let version = version(&self.0).ok_or(PolicyError::NotLoaded)?;
        Ok((version, Arc::new(policy(&self.0))))
    }
}

/// The state of the rules in a view.
pub(crate) fn version(view: &Snapshot) -> Option<PolicyVersion> {
    let (epoch, revision) = view.last_change(&KINDS)?;
    Some(PolicyVersion { history: epoch.as_u128(), revision })
}

fn policy(view: &Snapshot) -> Policy {
    let mut policy = PolicyBuilder::default();
    for kind in KINDS {
        for entry in view.list(kind, None) {
            let (namespace, name) = (&entry.key.namespace, &entry.key.name);
            match kind {
                Kind::Namespace => policy.namespace(name),
                Kind::Role => read::<Role>(entry, |role| policy.role(namespace, name, role)),
                Kind::ClusterRole => read::<ClusterRole>(entry, |role| policy.cluster_role(name, role)),
                Kind::RoleBinding => {
                    read::<RoleBinding>(entry, |binding| policy.role_binding(namespace, binding));
                }
                _ => read::<ClusterRoleBinding>(entry, |binding| policy.cluster_role_binding(binding)),
            }
        }
    }
    policy.build()
}

/// One object that cannot be read takes its own grants away and nobody else's.
fn read<T: DeserializeOwned + Send + Sync + 'static>(entry: &Entry, put: impl FnOnce(Arc<T>)) {
    match entry.typed::<T>() {
        Ok(object) => put(object),
        Err(error) => {
            tracing::error!(key = %entry.key, %error, "a rule object cannot be read: it grants nothing");
        }
    }
}
