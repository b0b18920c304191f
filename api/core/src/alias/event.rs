//! Events in the shape of the group `events.k8s.io`.

use super::Alias;
use crate::kind::Kind;
use crate::kinds::event::{COLUMNS, EVENTS_K8S_IO};
use crate::object::Object;

pub static EVENTS: Alias = Alias {
    kind: Kind::Event,
    group: "events.k8s.io",
    api_version: "events.k8s.io/v1",
    written: Some(&EVENTS_K8S_IO),
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    name: "Event",
    list_kind: "EventList",
    // Listed as the other shape of its kind, with everything that can be done to it.
    advertised: false,
    columns: COLUMNS,
    fields: &[
        ("metadata.name", "metadata.name"),
        ("metadata.namespace", "metadata.namespace"),
        ("reason", "reason"),
        ("regarding.apiVersion", "involvedObject.apiVersion"),
        ("regarding.fieldPath", "involvedObject.fieldPath"),
        ("regarding.kind", "involvedObject.kind"),
        ("regarding.name", "involvedObject.name"),
        ("regarding.namespace", "involvedObject.namespace"),
        ("regarding.resourceVersion", "involvedObject.resourceVersion"),
        ("regarding.uid", "involvedObject.uid"),
        ("reportingController", "reportingComponent"),
        ("type", "type"),
    ],
    phases: &[],
    project,
};

fn project(stored: &Object) -> Object {
    EVENTS_K8S_IO.shown(stored).into_owned()
}
