//! Role: rules that count in one namespace.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::meta::ObjectMeta;
use super::RoleSpec;
use super::rule::{Scope, role_violations};
use crate::kind::Kind;
use crate::registry::KindSpec;
use crate::schema::{self, Schema};

/// A Role is a list of permissions on the objects of its own namespace. RoleBindings of the namespace grant
/// it to users and groups. Whoever writes a Role must hold every permission in it, or the verb `escalate` on
/// roles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What the role grants.
    pub spec: RoleSpec,
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Role>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    validate: |object| role_violations(object, Scope::Namespace),
    ..KindSpec::base(Kind::Role, "role", "RoleList", schema)
};
