//! What a token says.

use serde::{Deserialize, Serialize};

/// The claims, in the order in which they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The issuer.
    pub iss: String,
    /// `system:serviceaccount:<namespace>:<application>`
    pub sub: String,
    /// Whom the token is meant for; of ours exactly one.
    pub aud: Vec<String>,
    /// When it expires; seconds since 1970, as the other times.
    pub exp: i64,
    /// When it begins to be valid.
    #[serde(default)]
    pub nbf: i64,
    /// When it was made.
    #[serde(default)]
    pub iat: i64,
    #[serde(rename = "kubernetes.io", default)]
    pub kubernetes: Kubernetes,
}

/// The workload, in the form in which Kubernetes puts a pod's service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kubernetes {
    pub namespace: String,
    pub serviceaccount: ServiceAccount,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    /// Name of the Application.
    pub name: String,
    /// Uid of the Application.
    pub uid: String,
}

/// The header; of those that are read only the algorithm and the key count.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header<'a> {
    pub alg: std::borrow::Cow<'a, str>,
    #[serde(default)]
    pub typ: std::borrow::Cow<'a, str>,
    #[serde(default)]
    pub kid: std::borrow::Cow<'a, str>,
}
