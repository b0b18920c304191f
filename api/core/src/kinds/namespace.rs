//! Namespace: a room for objects, and the block of user ids that its workloads run under.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::kind::Kind;
use crate::metadata::is_usable_namespace;
use crate::object::Object;
use crate::registry::KindSpec;
use crate::schema::{self, Schema};

/// Annotation with the block of user ids, `<first>/<count>`.
pub const UID_RANGE_ANNOTATION: &str = "horchestra.io/uid-range";

/// A Namespace is a room for objects: names are unique within it, roles are granted in it, and the
/// workloads in it share one block of user ids. It can be deleted only when it is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
}

/// A Namespace may be called what no object can say that it lives in.
fn oddities(object: &Object) -> Vec<String> {
    let usable = is_usable_namespace(object.name());
    let told = "metadata.name: nothing can be created in this namespace, since its name is no DNS label";
    if usable { Vec::new() } else { vec![told.to_owned()] }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Namespace>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["ns"],
    oddities,
    ..KindSpec::base(Kind::Namespace, "namespace", "NamespaceList", schema)
};
