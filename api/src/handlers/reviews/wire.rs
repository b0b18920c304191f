//! Review bodies in protobuf.
//!
//! Four bytes of magic, then an envelope that says what is in it and holds the object's own message. Encoders
//! write empty texts explicitly, so empty and absent are the same; members that are not known here are passed
//! over, whatever they are. Field numbers are those of the public definitions.

use horchestra_core::reviews::{Review, ReviewSpec};
use horchestra_core::status::Status;
use prost::Message;
use serde_json::{Value, json};

use super::check_type;

const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// The envelope.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
    #[prost(string, tag = "3")]
    content_encoding: String,
    #[prost(string, tag = "4")]
    content_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct NonResourceAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

/// Of SubjectAccessReviews; of those about oneself it is the beginning.
#[derive(Clone, PartialEq, Message)]
struct AccessSpec {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    path: Option<NonResourceAttributes>,
    #[prost(string, tag = "3")]
    user: String,
    #[prost(string, repeated, tag = "4")]
    groups: Vec<String>,
    #[prost(string, tag = "6")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct AccessReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<AccessSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct RulesSpec {
    #[prost(string, tag = "1")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct RulesReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<RulesSpec>,
}

/// What the review holds that is looked at: nothing.
#[derive(Clone, PartialEq, Message)]
struct SubjectReview {}

/// The `spec` of a review, as JSON has it.
pub(super) fn decode(spec: &ReviewSpec, body: &[u8]) -> Result<Value, Status> {
    let envelope = body.strip_prefix(MAGIC).filter(|rest| !rest.is_empty()).ok_or_else(unreadable)?;
    let unknown = read::<Unknown>(envelope)?;
    if !unknown.content_encoding.is_empty() || !unknown.content_type.is_empty() {
        return Err(Status::bad_request("the body of the request is encoded in a way that is not known"));
    }
    let said = unknown.type_meta.unwrap_or_default();
    check_type(spec, &said.api_version, &said.kind)?;
    Ok(match spec.review {
        Review::SelfSubjectAccess | Review::SubjectAccess | Review::LocalSubjectAccess => {
            access(read::<AccessReview>(&unknown.raw)?.spec.unwrap_or_default(), spec.review)
        }
        Review::SelfSubjectRules => {
            json!({"namespace": read::<RulesReview>(&unknown.raw)?.spec.unwrap_or_default().namespace})
        }
        Review::SelfSubject => {
            read::<SubjectReview>(&unknown.raw)?;
            json!({})
        }
    })
}

fn access(spec: AccessSpec, review: Review) -> Value {
    let mut out = json!({});
    if let Some(it) = spec.resource {
        let members = [
            ("namespace", it.namespace),
            ("verb", it.verb),
            ("group", it.group),
            ("version", it.version),
            ("resource", it.resource),
            ("subresource", it.subresource),
            ("name", it.name),
        ];
        out["resourceAttributes"] = texts(members);
    }
    if let Some(it) = spec.path {
        out["nonResourceAttributes"] = texts([("path", it.path), ("verb", it.verb)]);
    }
    if review != Review::SelfSubjectAccess {
        if !spec.user.is_empty() {
            out["user"] = json!(spec.user);
        }
        if !spec.groups.is_empty() {
            out["groups"] = json!(spec.groups);
        }
        if !spec.uid.is_empty() {
            out["uid"] = json!(spec.uid);
        }
    }
    out
}

fn texts<const N: usize>(members: [(&str, String); N]) -> Value {
    let said = members.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(said.map(|(name, text)| (name.to_owned(), Value::from(text))).collect())
}

fn read<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes).map_err(|_| unreadable())
}

fn unreadable() -> Status {
    Status::bad_request("the body of the request could not be read: it is no protobuf of Kubernetes")
}

#[cfg(test)]
mod tests {
    use horchestra_core::reviews::by_resource;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    }

    /// A body as clients send it: magic, then the envelope around the object's own message.
    fn enveloped(api_version: &str, kind: &str, raw: &str) -> Vec<u8> {
        let type_meta = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let unknown = Unknown { type_meta: Some(type_meta), raw: bytes(raw), ..Unknown::default() };
        [MAGIC, &unknown.encode_to_vec()].concat()
    }

    /// What kubectl 1.33 sends.
    const CAN_I: &str = "6b387300 0a32 0a17617574686f72697a6174696f6e2e6b38732e696f2f7631
        121753656c665375626a656374416363657373526576696577 1253 0a10 0a0012001a0022002a00320038004200
        1235 0a33 0a067465616d2d61 1206637265617465 1a0d686f72636865737472612e696f 2200
        2a0c6170706c69636174696f6e73 3200 3a00 1a08 0800 1200 1a00 2000 1a00 2200";
    const META: &str = "0a10 0a0012001a0022002a00320038004200";

    #[test]
    fn what_kubectl_sends_is_understood() {
        let authorization = "authorization.k8s.io";
        let access = by_resource(authorization, "v1", "selfsubjectaccessreviews").unwrap();
        let body = bytes(CAN_I);
        assert_eq!(body.len(), 145);
        let attributes = json!({"namespace": "team-a", "verb": "create", "group": "horchestra.io",
            "resource": "applications"});
        assert_eq!(decode(access, &body).unwrap(), json!({ "resourceAttributes": attributes }));

        let raw = format!("{META} 1211 120f 0a082f6d657472696373 1203676574 1a08 080012001a002000");
        let body = enveloped("authorization.k8s.io/v1", "SelfSubjectAccessReview", &raw);
        let asked = json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}});
        assert_eq!(decode(access, &body).unwrap(), asked);

        let rules = by_resource(authorization, "v1", "selfsubjectrulesreviews").unwrap();
        let raw = format!("{META} 1208 0a067465616d2d61 1a04 18002200");
        let body = enveloped("authorization.k8s.io/v1", "SelfSubjectRulesReview", &raw);
        assert_eq!(decode(rules, &body).unwrap(), json!({"namespace": "team-a"}));

        let oneself = by_resource("authentication.k8s.io", "v1", "selfsubjectreviews").unwrap();
        let body =
            enveloped("authentication.k8s.io/v1", "SelfSubjectReview", &format!("{META} 1206 0a04 0a001200"));
        assert_eq!(decode(oneself, &body).unwrap(), json!({}));
    }

    #[test]
    fn what_is_no_review_is_refused() {
        let access = by_resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews").unwrap();
        let mut encoded = Unknown { content_encoding: "gzip".to_owned(), ..Unknown::default() };
        let gzip = [MAGIC, &encoded.encode_to_vec()].concat();
        encoded.content_encoding.clear();
        encoded.content_type = "application/json".to_owned();
        let foreign = [MAGIC, &encoded.encode_to_vec()].concat();
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("nothing", Vec::new()),
            ("the magic alone", MAGIC.to_vec()),
            ("a part of the magic", b"k8".to_vec()),
            ("JSON", b"{}".to_vec()),
            ("another magic", b"k8t\0\x0a\x00".to_vec()),
            ("an envelope that is cut off", bytes(CAN_I)[..100].to_vec()),
            ("an object that is cut off", enveloped("", "", "0a10 0a00")),
            ("another kind", enveloped("authorization.k8s.io/v1", "SubjectAccessReview", META)),
            ("another version", enveloped("authorization.k8s.io/v2", "SelfSubjectAccessReview", META)),
            ("a text that is no UTF-8", enveloped("", "", "1205 0a03 0a01ff")),
            ("a compressed object", gzip),
            ("an object in another encoding", foreign),
        ];
        for (name, body) in cases {
            assert_eq!(decode(access, &body).unwrap_err().code(), 400, "{name}");
        }
        // Nesting without end is no way in.
        let mut nested = Vec::new();
        for _ in 0..10_000 {
            let mut next = vec![0x0b];
            next.append(&mut nested);
            nested = next;
        }
        let unknown = Unknown { raw: nested, ..Unknown::default() };
        assert_eq!(decode(access, &[MAGIC, &unknown.encode_to_vec()].concat()).unwrap_err().code(), 400);
    }
}
