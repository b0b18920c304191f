//! Errors as clients see them: the Kubernetes `Status` object.
//!
//! A [`Status`] can only be built by the constructors here, so reason and code always belong together and
//! there is no code outside the set that Kubernetes clients know.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::kind::Kind;

/// The machine-readable reasons, each with its one HTTP code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    AlreadyExists,
    Conflict,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    ServiceUnavailable,
    Timeout,
}

impl Reason {
    pub const fn code(self) -> u16 {
        match self {
            Reason::BadRequest => 400,
            Reason::Unauthorized => 401,
            Reason::Forbidden => 403,
            Reason::NotFound => 404,
            Reason::MethodNotAllowed => 405,
            Reason::NotAcceptable => 406,
            Reason::AlreadyExists | Reason::Conflict => 409,
            Reason::Expired => 410,
            Reason::RequestEntityTooLarge => 413,
            Reason::UnsupportedMediaType => 415,
            Reason::Invalid => 422,
            Reason::TooManyRequests => 429,
            Reason::InternalError => 500,
            Reason::ServiceUnavailable => 503,
            Reason::Timeout => 504,
        }
    }
}

/// One violation: `reason` is a Kubernetes cause type such as `FieldValueInvalid`, `field` a dotted path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub field: String,
}

impl Cause {
    /// `message` is the part after the field: the cause reads `<message>`, the Status `<field>: <message>`.
    pub fn new(reason: &str, field: impl Into<String>, message: impl Into<String>) -> Cause {
        Cause { reason: reason.to_owned(), field: field.into(), message: message.into() }
    }

    pub fn required(field: impl Into<String>) -> Cause {
        Cause::new("FieldValueRequired", field, "Required value")
    }

    /// A list with more items than it may have.
    pub fn too_many(field: impl Into<String>, got: usize, most: usize) -> Cause {
        Cause::new("FieldValueTooMany", field, format!("Too many: {got}: must have at most {most} items"))
    }

    /// `shown` is how the bad value may be shown to the reader (`null` where it must not be echoed).
    pub fn invalid(field: impl Into<String>, shown: &str, why: impl std::fmt::Display) -> Cause {
        Cause::new("FieldValueInvalid", field, format!("Invalid value: {shown}: {why}"))
    }
}

/// Which object an error speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub causes: Vec<Cause>,
    /// Seconds; also sent as `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry_after_seconds: Option<u32>,
}

/// A failure in its wire form. `Display` gives the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub reason: Reason,
    pub message: String,
    pub details: Box<Details>,
    /// Set on 410 answers to lists: the token with which the listing can go on, inconsistently.
    pub continue_token: Option<String>,
}

impl Status {
    fn new(reason: Reason, message: impl Into<String>, details: Details) -> Status {
        Status { reason, message: message.into(), details: Box::new(details), continue_token: None }
    }

    fn of(kind: Kind, name: &str) -> Details {
        Details {
            name: name.to_owned(),
            group: kind.group().to_owned(),
            kind: kind.plural().to_owned(),
            ..Details::default()
        }
    }

    pub fn code(&self) -> u16 {
        self.reason.code()
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(Reason::BadRequest, message, Details::default())
    }

    /// A 400 that pins problems to fields (unknown and duplicate fields under strict validation).
    pub fn bad_fields(message: impl Into<String>, causes: Vec<Cause>) -> Status {
        Status::new(Reason::BadRequest, message, Details { causes, ..Details::default() })
    }

    pub fn unauthorized(message: impl Into<String>) -> Status {
        Status::new(Reason::Unauthorized, message, Details::default())
    }

    /// 403 about a resource; `name` may be empty.
    pub fn forbidden(kind: Kind, name: &str, why: impl std::fmt::Display) -> Status {
        Status::forbidden_resource(kind.group(), kind.plural(), name, why)
    }

    /// 403 about a resource that need not be a stored kind.
    pub fn forbidden_resource(
        group: &str,
        resource: &str,
        name: &str,
        why: impl std::fmt::Display,
    ) -> Status {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let message = if name.is_empty() {
            format!("{qualified} is forbidden: {why}")
        } else {
            format!("{qualified} \"{name}\" is forbidden: {why}")
        };
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..Details::default()
        };
        Status::new(Reason::Forbidden, message, details)
    }

    /// 403 about a path that is no resource.
    pub fn forbidden_path(path: &str, why: impl std::fmt::Display) -> Status {
        Status::new(Reason::Forbidden, format!("forbidden: path \"{path}\": {why}"), Details::default())
    }

    pub fn not_found(kind: Kind, name: &str) -> Status {
        Status::new(
            Reason::NotFound,
            format!("{} \"{name}\" not found", kind.group_resource()),
            Status::of(kind, name),
        )
    }

    /// 404 about something that is no stored kind (an alias, a sample, …).
    pub fn not_found_resource(group: &str, resource: &str, name: &str) -> Status {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..Details::default()
        };
        Status::new(Reason::NotFound, format!("{qualified} \"{name}\" not found"), details)
    }

    pub fn no_such_route() -> Status {
        Status::new(Reason::NotFound, "the server could not find the requested resource", Details::default())
    }

    pub fn method_not_allowed(method: &str) -> Status {
        Status::new(
            Reason::MethodNotAllowed,
            format!("the server does not allow the method {method} on the requested resource"),
            Details::default(),
        )
    }

    pub fn not_acceptable(offered: &str) -> Status {
        Status::new(
            Reason::NotAcceptable,
            format!("only the following media types are accepted: {offered}"),
            Details::default(),
        )
    }

    pub fn already_exists(kind: Kind, name: &str) -> Status {
        Status::new(
            Reason::AlreadyExists,
            format!("{} \"{name}\" already exists", kind.group_resource()),
            Status::of(kind, name),
        )
    }

    pub fn conflict(kind: Kind, name: &str, why: impl std::fmt::Display) -> Status {
        Status::new(
            Reason::Conflict,
            format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.group_resource()),
            Status::of(kind, name),
        )
    }

    /// 409 of an apply: others own fields that it would change. `causes` name them.
    pub fn apply_conflict(kind: Kind, name: &str, message: impl Into<String>, causes: Vec<Cause>) -> Status {
        Status::new(Reason::Conflict, message, Details { causes, ..Status::of(kind, name) })
    }

    /// 410: the revision asked for is no longer (or not) in the log.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(Reason::Expired, message, Details::default())
    }

    pub fn too_large(message: impl std::fmt::Display) -> Status {
        Status::new(
            Reason::RequestEntityTooLarge,
            format!("Request entity too large: {message}"),
            Details::default(),
        )
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Status {
        Status::new(Reason::UnsupportedMediaType, message, Details::default())
    }

    /// 422 with every violation.
    pub fn invalid(kind: Kind, name: &str, causes: Vec<Cause>) -> Status {
        let mut parts: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let listed = if parts.len() == 1 { parts.remove(0) } else { format!("[{}]", parts.join(", ")) };
        let of = if kind.group().is_empty() {
            kind.name().to_owned()
        } else {
            format!("{}.{}", kind.name(), kind.group())
        };
        let details = Details {
            name: name.to_owned(),
            group: kind.group().to_owned(),
            kind: kind.name().to_owned(),
            causes,
            ..Details::default()
        };
        Status::new(Reason::Invalid, format!("{of} \"{name}\" is invalid: {listed}"), details)
    }

    /// 422 of a rule that speaks of the object as a whole; the text carries the real path.
    pub fn refused(kind: Kind, name: &str, why: impl std::fmt::Display) -> Status {
        Status::invalid(kind, name, vec![Cause::invalid("metadata", &format!("\"{name}\""), why)])
    }

    /// 422 about request parameters rather than an object.
    pub fn invalid_options(kind: &str, causes: Vec<Cause>) -> Status {
        let listed: Vec<String> =
            causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let details = Details { kind: kind.to_owned(), causes, ..Details::default() };
        Status::new(Reason::Invalid, format!("{kind} is invalid: {}", listed.join(", ")), details)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        let details = Details { retry_after_seconds: Some(retry_after_seconds), ..Details::default() };
        Status::new(Reason::TooManyRequests, message, details)
    }

    /// 500. The text is for the client: no SQL, no secrets, no source chain.
    pub fn internal(message: impl std::fmt::Display) -> Status {
        let causes =
            vec![Cause { reason: String::new(), message: message.to_string(), field: String::new() }];
        Status::new(
            Reason::InternalError,
            format!("Internal error occurred: {message}"),
            Details { causes, ..Details::default() },
        )
    }

    pub fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        let details = Details { retry_after_seconds: Some(retry_after_seconds), ..Details::default() };
        Status::new(Reason::ServiceUnavailable, message, details)
    }

    pub fn timeout(message: impl Into<String>) -> Status {
        Status::new(Reason::Timeout, message, Details::default())
    }

    /// The answer to a read at a revision that has not happened: clients wait and retry on this cause.
    pub fn too_large_resource_version(asked: i64, current: i64) -> Status {
        let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version");
        let details = Details { causes: vec![cause], retry_after_seconds: Some(1), ..Details::default() };
        Status::new(
            Reason::Timeout,
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
            details,
        )
    }

    /// The JSON document.
    pub fn to_value(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut value = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code(),
        });
        if *self.details != Details::default() || matches!(self.reason, Reason::Forbidden | Reason::NotFound)
        {
            value["details"] = serde_json::to_value(&*self.details).expect("details are plain data");
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_lists_every_cause_with_its_path() {
        let status = Status::invalid(
            Kind::Application,
            "web",
            vec![Cause::required("spec"), Cause::invalid("spec.ports[0].port", "0", "must be at least 1")],
        );
        assert_eq!(
            status.message,
            "Application.horchestra.io \"web\" is invalid: [spec: Required value, \
             spec.ports[0].port: Invalid value: 0: must be at least 1]"
        );
        let value = status.to_value();
        assert_eq!(value["code"], 422);
        assert_eq!(value["details"]["causes"][1]["field"], "spec.ports[0].port");
        assert_eq!(value["details"]["kind"], "Application");
    }
}
