//! Doors: the actions on one object that are subresources of their own.
//!
//! This table is the only place that says which doors there are, on which kinds, and with which verbs. Routes,
//! discovery, the attributes that permissions are judged on (`applications/freeze`, never `applications`) and
//! OpenAPI all walk it, so what is listed is what is served and what is judged.
//!
//! A door changes one thing that ordinary writes do not, or not alone: that is what makes it worth a
//! permission of its own. What a door does is for the service to say; here stands only that it exists.

use serde_json::{Value, json};

use crate::kind::{CORE_GROUP, Kind};
use crate::registry::KindSpec;

/// An action on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// Lets a node that registered itself take part.
    Admit,
    /// The certificate that is asked for is to be signed.
    Approve,
    /// Nothing new is placed on the node.
    Cordon,
    /// The certificate that is asked for is not to be signed.
    Deny,
    /// Takes finalizers off an object that is being deleted.
    Finalize,
    /// The node is lost: nothing waits for it any more.
    Forget,
    /// The control plane leaves the object as it is.
    Freeze,
    /// Lists the versions of the object that are kept.
    Revisions,
    /// Makes an earlier version the current one.
    Rollback,
    /// Ends a freeze.
    Thaw,
    /// Ends a cordon.
    Uncordon,
}

/// The kind of the answer of [`Door::Revisions`].
pub const REVISION_LIST: &str = "RevisionList";

impl Door {
    /// In byte order of their names.
    pub const ALL: [Door; 11] = [
        Door::Admit,
        Door::Approve,
        Door::Cordon,
        Door::Deny,
        Door::Finalize,
        Door::Forget,
        Door::Freeze,
        Door::Revisions,
        Door::Rollback,
        Door::Thaw,
        Door::Uncordon,
    ];

    /// The last segment of the path, which is also the subresource that permissions name.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Admit => "admit",
            Door::Approve => "approve",
            Door::Cordon => "cordon",
            Door::Deny => "deny",
            Door::Finalize => "finalize",
            Door::Forget => "forget",
            Door::Freeze => "freeze",
            Door::Revisions => "revisions",
            Door::Rollback => "rollback",
            Door::Thaw => "thaw",
            Door::Uncordon => "uncordon",
        }
    }

    /// What can be asked of it: `get` by GET; `create` by POST and `update` by PUT, which do the same.
    pub const fn verbs(self) -> &'static [&'static str] {
        match self {
            Door::Revisions => &["get"],
            _ => &["create", "update"],
        }
    }

    /// Whether objects of the kind have it.
    pub fn opens(self, kind: Kind) -> bool {
        match self {
            Door::Admit | Door::Cordon | Door::Forget | Door::Uncordon => kind == Kind::Node,
            Door::Approve | Door::Deny => kind == Kind::CertificateSigningRequest,
            Door::Freeze | Door::Thaw => matches!(kind, Kind::Application | Kind::ApplicationSet),
            // Events expire whatever holds them.
            Door::Finalize => kind != Kind::Event,
            // Every write of these leaves a row behind. Where bodies are not kept, a rollback says so.
            Door::Revisions | Door::Rollback => kind != Kind::Event,
        }
    }

    /// Whether people may say why they go through it.
    pub const fn takes_message(self) -> bool {
        matches!(self, Door::Approve | Door::Deny)
    }

    /// The doors of a kind, in byte order of their names.
    pub fn of(kind: Kind) -> impl Iterator<Item = Door> {
        Door::ALL.into_iter().filter(move |door| door.opens(kind))
    }

    /// The door of a kind that has this name.
    pub fn named(kind: Kind, name: &str) -> Option<Door> {
        Door::of(kind).find(|door| door.name() == name)
    }

    /// Group, version and kind of the answer.
    pub fn answer(self, spec: &KindSpec) -> (&'static str, &'static str, &'static str) {
        match self {
            Door::Revisions => (CORE_GROUP, "v1", REVISION_LIST),
            _ => (spec.kind.group(), spec.kind.version(), spec.kind.name()),
        }
    }

    /// One sentence for people who read the API's description.
    pub(crate) fn description(self, what: &str) -> String {
        match self {
            Door::Admit => format!("Lets the {what} take part: it will be sent desired state."),
            Door::Approve => format!("Has the certificate signed that the {what} asks for."),
            Door::Cordon => format!("Keeps new workloads off the {what}."),
            Door::Deny => format!("Turns the {what} down."),
            Door::Finalize => format!(
                "Takes finalizers off the {what} that is being deleted, without asking who put them there. \
                 For members of system:masters."
            ),
            Door::Forget => format!(
                "Removes the {what} that is lost, and what is being deleted on it without waiting any longer. \
                 Refused while it is heard of."
            ),
            Door::Freeze => format!("Makes the control plane leave the {what} as it is."),
            Door::Revisions => format!("Lists the versions of the {what} that are kept, newest first."),
            Door::Rollback => format!("Makes an earlier version of the {what} the current one."),
            Door::Thaw => format!("Ends a freeze of the {what}."),
            Door::Uncordon => format!("Lets new workloads onto the {what} again, and admits it."),
        }
    }

    /// What may be sent to it, as a schema.
    pub(crate) fn order_schema(self) -> Value {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "resourceVersion": {
                    "type": "string",
                    "description": "The version of the object that the caller has seen; 409 when it has changed since.",
                },
                "uid": {
                    "type": "string",
                    "description": "The uid of the object that is meant; 409 when another one has its name.",
                },
            },
        });
        if self == Door::Finalize {
            schema["properties"]["finalizers"] = json!({
                "type": "array",
                "items": {"type": "string"},
                "description": "The finalizers to take off. Without it all but those of the system.",
            });
        }
        if self.takes_message() {
            schema["properties"]["message"] = json!({
                "type": "string",
                "description": "Why, for whoever reads the request later.",
            });
        }
        if self == Door::Rollback {
            schema["properties"]["revision"] = json!({
                "type": "integer",
                "format": "int64",
                "description": "The version to go back to: one of those that `revisions` lists.",
            });
            schema["required"] = json!(["revision"]);
        }
        schema
    }
}

/// The schema of a [`REVISION_LIST`].
pub(crate) fn revision_list_schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let number =
        |description: &str| json!({"type": "integer", "format": "int64", "description": description});
    json!({
        "type": "object",
        "description": "The versions of an object that are kept.",
        "properties": {
            "apiVersion": text("Group and version of the list."),
            "kind": text("RevisionList."),
            "metadata": {
                "type": "object",
                "description": "Metadata of the list.",
                "properties": {
                    "resourceVersion": text("Revision of the object's last change of any kind."),
                },
            },
            "items": {
                "type": "array",
                "description": "The versions, newest first.",
                "items": {
                    "type": "object",
                    "properties": {
                        "revision": number("What a rollback names the version by."),
                        "generation": number("Generation of the object in that version."),
                        "time": text("When the version was written."),
                        "user": text("Who wrote it."),
                        "verb": text("What was asked for: create, update, patch, bind, …"),
                        "auditID": text("Audit id of the request."),
                        "current": {"type": "boolean", "description": "Whether it is the current version."},
                    },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_lead_back() {
        let names = Door::ALL.map(Door::name);
        assert!(names.is_sorted(), "{names:?}");
        for kind in Kind::ALL {
            for door in Door::ALL {
                assert_eq!(
                    Door::named(kind, door.name()),
                    door.opens(kind).then_some(door),
                    "{kind} {door:?}"
                );
            }
        }
    }
}
