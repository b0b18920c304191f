//! ClusterRole: rules that count wherever they are bound.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::meta::ObjectMeta;
use super::RoleSpec;
use super::rule::{Scope, role_violations};
use crate::kind::Kind;
use crate::registry::KindSpec;
use crate::schema::{self, Schema};

/// A ClusterRole is a list of permissions that belongs to no namespace. A ClusterRoleBinding grants all of
/// it everywhere: in every namespace, on objects outside of namespaces, and on paths that are no resources. A
/// RoleBinding grants what it says about resources within one namespace. Whoever writes a ClusterRole must
/// hold every permission in it, or the verb `escalate` on clusterroles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRole {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What the role grants.
    pub spec: RoleSpec,
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<ClusterRole>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["cr"],
    validate: |object| role_violations(object, Scope::Cluster),
    ..KindSpec::base(Kind::ClusterRole, "clusterrole", "ClusterRoleList", schema)
};
