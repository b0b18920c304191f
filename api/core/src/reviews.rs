//! Reviews: questions about rights and identity that are asked by creating an object. Nothing is stored.
//!
//! The shapes are those of Kubernetes, where clients know them from; members that this server does not know
//! are not refused, since a review of a newer client asks for nothing more than an answer.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::meta::ObjectMeta;
use crate::kinds::null_as_default;
use crate::schema::{self, Schema};

const AUTHORIZATION: &str = "authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Review {
    /// May I do this?
    SelfSubjectAccess,
    /// What may I do?
    SelfSubjectRules,
    /// May they do this?
    SubjectAccess,
    /// May they do this in this namespace?
    LocalSubjectAccess,
    /// Who am I?
    SelfSubject,
}

/// A review as it is served.
pub struct ReviewSpec {
    pub review: Review,
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    schema: fn() -> &'static Schema,
}

impl ReviewSpec {
    /// `group/version`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// What documents of the review look like.
    pub fn schema(&self) -> &'static Schema {
        (self.schema)()
    }
}

impl std::fmt::Debug for ReviewSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReviewSpec").field("kind", &self.kind).field("version", &self.version).finish()
    }
}

impl PartialEq for ReviewSpec {
    fn eq(&self, other: &ReviewSpec) -> bool {
        (self.group, self.version, self.plural) == (other.group, other.version, other.plural)
    }
}

impl Eq for ReviewSpec {}

/// What can be done with a review.
pub const VERBS: [&str; 1] = ["create"];

const fn access(
    review: Review,
    names: [&'static str; 3],
    namespaced: bool,
    schema: fn() -> &'static Schema,
) -> ReviewSpec {
    let [plural, singular, kind] = names;
    ReviewSpec { review, group: AUTHORIZATION, version: "v1", plural, singular, kind, namespaced, schema }
}

const fn oneself(version: &'static str) -> ReviewSpec {
    ReviewSpec {
        review: Review::SelfSubject,
        group: AUTHENTICATION,
        version,
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        namespaced: false,
        schema: || {
            static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<SelfSubjectReview>);
            &SCHEMA
        },
    }
}

/// Every review, by group, version and plural.
pub static REVIEWS: [ReviewSpec; 6] = [
    oneself("v1"),
    // What kubectl 1.27 asks for.
    oneself("v1beta1"),
    access(
        Review::LocalSubjectAccess,
        ["localsubjectaccessreviews", "localsubjectaccessreview", "LocalSubjectAccessReview"],
        true,
        || {
            static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<LocalSubjectAccessReview>);
            &SCHEMA
        },
    ),
    access(
        Review::SelfSubjectAccess,
        ["selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview"],
        false,
        || {
            static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<SelfSubjectAccessReview>);
            &SCHEMA
        },
    ),
    access(
        Review::SelfSubjectRules,
        ["selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"],
        false,
        || {
            static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<SelfSubjectRulesReview>);
            &SCHEMA
        },
    ),
    access(
        Review::SubjectAccess,
        ["subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview"],
        false,
        || {
            static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<SubjectAccessReview>);
            &SCHEMA
        },
    ),
];

/// The review that URLs name this way.
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static ReviewSpec> {
    REVIEWS.iter().find(|spec| spec.group == group && spec.version == version && spec.plural == plural)
}

/// The reviews of one group version.
pub fn of(group: &str, version: &str) -> impl Iterator<Item = &'static ReviewSpec> {
    REVIEWS.iter().filter(move |spec| spec.group == group && spec.version == version)
}

/// A SelfSubjectAccessReview asks whether its author may do something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelfSubjectAccessReview {
    /// Not used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What is asked.
    pub spec: SelfSubjectAccessReviewSpec,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: SubjectAccessReviewStatus,
}

/// What is asked: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSubjectAccessReviewSpec {
    /// A verb on a resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_attributes: Option<ReviewedResource>,
    /// A method on a path that is no resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_resource_attributes: Option<ReviewedPath>,
}

/// A SubjectAccessReview asks whether somebody may do something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubjectAccessReview {
    /// Not used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What is asked, and about whom.
    pub spec: SubjectAccessReviewSpec,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: SubjectAccessReviewStatus,
}

/// A LocalSubjectAccessReview asks whether somebody may do something in the namespace that it is created in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalSubjectAccessReview {
    /// Not used, apart from the namespace.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What is asked, and about whom. Only resources of the namespace can be asked about.
    pub spec: SubjectAccessReviewSpec,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: SubjectAccessReviewStatus,
}

/// What is asked, and about whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectAccessReviewSpec {
    /// A verb on a resource. This, or `nonResourceAttributes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_attributes: Option<ReviewedResource>,
    /// A method on a path that is no resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_resource_attributes: Option<ReviewedPath>,
    /// Name of the user. Needed where no groups are named.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Groups of the user, all that count.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub groups: Vec<String>,
    /// Not used.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// A verb on a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReviewedResource {
    /// Namespace; empty for all of them, and for what lies in none.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// As in rules; `*` asks for all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub verb: String,
    /// Group of the resource; `*` asks for all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Not used: rights do not depend on it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The plural; `*` asks for all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Subresource; empty for the object itself.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub subresource: String,
    /// Name of the object; empty for all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// A method on a path that is no resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReviewedPath {
    /// The path.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The method in lower case.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub verb: String,
}

/// Whether it may be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectAccessReviewStatus {
    /// Whether it may be done.
    pub allowed: bool,
    /// Why it is allowed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A SelfSubjectRulesReview asks for everything that its author may do in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelfSubjectRulesReview {
    /// Not used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// What is asked.
    pub spec: SelfSubjectRulesReviewSpec,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: SubjectRulesReviewStatus,
}

/// Where rights are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSubjectRulesReviewSpec {
    /// The namespace.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// What may be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubjectRulesReviewStatus {
    /// Verbs on resources.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_rules: Vec<ResourceRule>,
    /// Methods on paths that are no resources.
    #[serde(deserialize_with = "null_as_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_rules: Vec<NonResourceRule>,
    /// Whether there may be more than what is listed.
    pub incomplete: bool,
}

/// Verbs on resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// Verbs; `*` stands for all.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Groups; `*` stands for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Resources; `*` stands for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Names of the only objects that are meant; empty for all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_names: Vec<String>,
}

/// Methods on paths that are no resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NonResourceRule {
    /// Methods in lower case; `*` stands for all.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Paths; a `*` at the end stands for any rest.
    #[serde(rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_urls: Vec<String>,
}

/// A SelfSubjectReview asks who its author is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelfSubjectReview {
    /// Not used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub metadata: ObjectMeta,
    /// The answer.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: SelfSubjectReviewStatus,
}

/// Who the author is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelfSubjectReviewStatus {
    /// The author.
    pub user_info: UserInfo,
}

/// Somebody, as rules name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    /// Name of the user.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// Groups of the user.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub groups: Vec<String>,
}
