//! CertificateSigningRequest: a key that asks for a certificate.
//!
//! Judged here is the shape alone. Whether `spec.request` is a signed request that names somebody is judged
//! at the door of writes, since that takes cryptography.

use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bytes::ByteString;
use super::meta::{Condition, ConditionStatus, ObjectMeta, condition};
use super::null_as_default;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{Facts, KindSpec, Selectable};
use crate::schema::{self, Schema};
use crate::table::{AGE, Column, NAME, text_at};

/// Annotation with the name of whoever made the request. The server sets it.
pub const REQUESTER_ANNOTATION: &str = "certificates.horchestra.io/requester";
/// Annotation with the groups of whoever made the request, joined by commas. The server sets it.
pub const REQUESTER_GROUPS_ANNOTATION: &str = "certificates.horchestra.io/requester-groups";

/// Annotation with the SHA-256 of the client certificate that the request was made with, lower-case
/// hexadecimal. The server sets it.
pub const REQUESTER_CERTIFICATE_ANNOTATION: &str = "certificates.horchestra.io/requester-certificate";

/// Condition set when an operator approves, or the standing rules do.
pub const CONDITION_APPROVED: &str = "Approved";
/// Condition set when the request is turned down.
pub const CONDITION_DENIED: &str = "Denied";
/// Condition set together with the certificate.
pub const CONDITION_ISSUED: &str = "Issued";

/// Condition on a request that an operator approved, and that a node made to renew its own certificate: the next
/// such request, made with the same client certificate, is approved as well. `False` once that has happened.
pub const CONDITION_STANDING: &str = "StandingApproval";
/// For how long it is, in seconds.
pub const STANDING_SECONDS: i64 = 24 * 3600;

/// Phase of a request that nobody has decided.
pub const PHASE_PENDING: &str = "Pending";
/// Phase of a request whose certificate is there.
pub const PHASE_APPROVED: &str = "Approved";
/// Phase of a request that was turned down.
pub const PHASE_DENIED: &str = "Denied";

/// A CertificateSigningRequest asks for a client certificate for a node. Nodes make them to renew their own;
/// an operator approves or denies them with the `approve` and `deny` actions. Whatever the request asks for,
/// the certificate is for the name in it, in the group `system:nodes`. A node that makes a new request gives its
/// older ones up. Requests are cleaned up an hour after their decision, or a day after they were made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSigningRequest {
    /// Standard metadata of the object. The annotations `certificates.horchestra.io/requester`,
    /// `certificates.horchestra.io/requester-groups` and `certificates.horchestra.io/requester-certificate` tell
    /// who made the request; the server sets them.
    pub metadata: ObjectMeta,
    /// The request. It cannot be changed, apart from `groups`.
    pub spec: CertificateSigningRequestSpec,
    /// What has become of it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: CertificateSigningRequestStatus,
}

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateSigningRequestSpec {
    /// A PKCS #10 request in PEM form (`CERTIFICATE REQUEST`), as base64, signed with the key that it is
    /// about. Its common name is the name that the certificate will be for.
    pub request: ByteString,
    /// Groups that the requester had in mind. Nothing looks at them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub groups: Vec<String>,
    /// The node that the requester says it is. For people.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

/// What has become of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSigningRequestStatus {
    /// `Pending`, `Approved` (then the certificate is there) or `Denied`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// The certificate in PEM form, as base64: that of the node first, then those that lead to the
    /// authority.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "ByteString::is_empty")]
    pub certificate: ByteString,
    /// Why the request waits or was denied.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Verdicts about the request: `Approved`, `Denied` and `Issued`, and `StandingApproval` for the one after
    /// it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl CertificateSigningRequest {
    /// Whether the request is decided for good.
    pub fn is_decided(&self) -> bool {
        matches!(self.status.phase.as_str(), PHASE_APPROVED | PHASE_DENIED)
    }

    /// Whether the condition of this type holds.
    pub fn has(&self, type_: &str) -> bool {
        condition(&self.status.conditions, type_)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// Who made the request; empty for one that no client made.
    pub fn requester(&self) -> &str {
        self.metadata.annotations.get(REQUESTER_ANNOTATION).map_or("", String::as_str)
    }

    /// SHA-256 of the client certificate that the request was made with; empty when it was made without.
    pub fn requester_certificate(&self) -> &str {
        self.metadata.annotations.get(REQUESTER_CERTIFICATE_ANNOTATION).map_or("", String::as_str)
    }

    /// Until when a standing approval stands on this request that nobody has used.
    pub fn standing_until(&self) -> Option<Timestamp> {
        let condition = condition(&self.status.conditions, CONDITION_STANDING)?;
        let since = condition.last_transition_time?.timestamp();
        let until = since.checked_add(SignedDuration::from_secs(STANDING_SECONDS)).ok();
        until.filter(|_| condition.status == ConditionStatus::True)
    }

    /// The groups of whoever made the request.
    pub fn requester_groups(&self) -> impl Iterator<Item = &str> {
        let groups = self.metadata.annotations.get(REQUESTER_GROUPS_ANNOTATION);
        groups.into_iter().flat_map(|groups| groups.split(',')).filter(|group| !group.is_empty())
    }
}

/// What kubectl shows of Kubernetes' own requests. There are no signers to choose from here, and no lifetimes to ask for.
const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Requestor", "Who made the request.", |object, _| {
        match object.str_at(&["metadata", "annotations", REQUESTER_ANNOTATION]) {
            "" => Value::from("<none>"),
            requester => Value::from(requester),
        }
    }),
    Column::text("Condition", "What has been decided, and whether the certificate is there.", |object, _| {
        Value::from(decision(object))
    }),
    Column::wide("Node", "Node that the requester says it is.", |object, _| {
        text_at(object, &["spec", "nodeName"])
    }),
    Column::wide("Reason", "Why it waits or was denied.", |object, _| text_at(object, &["status", "reason"])),
    AGE,
];

/// In the words of kubectl.
fn decision(object: &Object) -> &'static str {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let holds = |type_: &str| {
        conditions.is_some_and(|all| all.iter().any(|it| it["type"] == type_ && it["status"] == "True"))
    };
    let issued = !object.str_at(&["status", "certificate"]).is_empty();
    match (holds(CONDITION_DENIED), holds(CONDITION_APPROVED), issued) {
        (true, _, _) => "Denied",
        (false, true, true) => "Approved,Issued",
        (false, true, false) => "Approved",
        (false, false, true) => "Issued",
        (false, false, false) => "Pending",
    }
}

fn facts(object: &Object) -> Facts {
    Facts { phase: object.str_at(&["status", "phase"]).to_owned(), ..Facts::default() }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<CertificateSigningRequest>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["csr"],
    selectable: &[Selectable { field: "status.phase", path: &["status", "phase"], absent: PHASE_PENDING }],
    facts,
    columns: COLUMNS,
    ..KindSpec::base(
        Kind::CertificateSigningRequest,
        "certificatesigningrequest",
        "CertificateSigningRequestList",
        schema,
    )
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_made_a_request() {
        let request: CertificateSigningRequest = Object::from_value(json!({
            "metadata": {"annotations": {REQUESTER_ANNOTATION: "node-1", REQUESTER_GROUPS_ANNOTATION: "a,system:nodes"}},
            "spec": {"request": ""},
        }))
        .unwrap()
        .read()
        .unwrap();
        assert_eq!(request.requester(), "node-1");
        assert_eq!(request.requester_groups().collect::<Vec<_>>(), ["a", "system:nodes"]);
        let nobody = CertificateSigningRequest::default();
        assert_eq!((nobody.requester(), nobody.requester_groups().count()), ("", 0));
        assert!(!nobody.is_decided() && !nobody.has(CONDITION_APPROVED));
    }
}
