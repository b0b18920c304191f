//! RoleBinding: who is granted a role in one namespace.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::meta::ObjectMeta;
use super::BindingSpec;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{KindSpec, Reference};
use crate::schema::{self, Schema};
use crate::table::{AGE, Column, NAME, text_at};

/// A RoleBinding grants a Role of its namespace, or a ClusterRole, to users and groups. What is granted
/// counts in this namespace only. Whoever writes a RoleBinding must hold every permission that it grants, or
/// the verb `bind` on the role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleBinding {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// Who is granted which role.
    pub spec: BindingSpec,
}

fn references(object: &Object) -> Vec<Reference> {
    let binding = object.read::<RoleBinding>().ok();
    binding.and_then(|binding| binding.spec.reference(true)).into_iter().collect()
}

const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Role", "Name of the role that is granted.", |object, _| {
        text_at(object, &["spec", "roleRef", "name"])
    }),
    AGE,
];

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<RoleBinding>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    columns: COLUMNS,
    references,
    ..KindSpec::base(Kind::RoleBinding, "rolebinding", "RoleBindingList", schema)
};
