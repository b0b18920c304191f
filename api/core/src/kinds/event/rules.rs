//! What an Event must satisfy beyond its schema.
//!
//! An Event lives where the object lives that it speaks of, or in `default` if that has no namespace. One that
//! says when it happened to the microsecond comes from a recorder of the newer kind, which also says who it is
//! and what it did; of the older kind nothing else is asked.

use super::{DEFAULT_NAMESPACE, MESSAGE_LIMIT};
use crate::metadata::qualified_name_fault;
use crate::object::Object;
use crate::status::Cause;

/// Longest action, reason and name of an instance, in bytes.
const WORD_LIMIT: usize = 128;

pub(super) fn validate(event: &Object) -> Vec<Cause> {
    let mut causes = Vec::new();
    let subject = event.str_at(&["involvedObject", "namespace"]);
    let fits = if subject.is_empty() {
        event.namespace() == DEFAULT_NAMESPACE
    } else {
        event.namespace() == subject
    };
    if !fits {
        let why = "does not match the namespace of the Event";
        causes.push(Cause::invalid("involvedObject.namespace", &format!("{subject:?}"), why));
    }
    if event.str_at(&["eventTime"]).is_empty() {
        return causes;
    }
    let component = event.str_at(&["reportingComponent"]);
    if component.is_empty() {
        causes.push(Cause::required("reportingComponent"));
    } else if let Some(fault) = qualified_name_fault(component) {
        causes.push(Cause::invalid("reportingComponent", &format!("{component:?}"), fault));
    }
    for member in ["reportingInstance", "action", "reason"] {
        let text = event.str_at(&[member]);
        if text.is_empty() {
            causes.push(Cause::required(member));
        }
        too_long(member, text, WORD_LIMIT, &mut causes);
    }
    too_long("message", event.str_at(&["message"]), MESSAGE_LIMIT, &mut causes);
    causes
}

fn too_long(member: &str, text: &str, limit: usize, causes: &mut Vec<Cause>) {
    if text.len() > limit {
        causes.push(Cause::invalid(member, "\"\"", format!("can have at most {limit} bytes")));
    }
}
