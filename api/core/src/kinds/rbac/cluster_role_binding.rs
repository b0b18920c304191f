//! ClusterRoleBinding: who is granted a role everywhere.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::meta::ObjectMeta;
use super::BindingSpec;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{KindSpec, Reference};
use crate::schema::{self, Schema};

/// A ClusterRoleBinding grants a ClusterRole to users and groups, everywhere. Whoever writes one must hold
/// every permission that it grants, everywhere, or the verb `bind` on the role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRoleBinding {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// Who is granted which role.
    pub spec: BindingSpec,
}

fn references(object: &Object) -> Vec<Reference> {
    let binding = object.read::<ClusterRoleBinding>().ok();
    binding.and_then(|binding| binding.spec.reference(false)).into_iter().collect()
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<ClusterRoleBinding>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["crb"],
    references,
    ..KindSpec::base(Kind::ClusterRoleBinding, "clusterrolebinding", "ClusterRoleBindingList", schema)
};
