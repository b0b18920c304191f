use horchestra_core::admit::{self, FieldValidation, Media};
use horchestra_core::kind::Kind;
use horchestra_core::kinds::event::{EVENTS_K8S_IO, Observations, name_of};
use horchestra_core::names::subdomain_fault;
use horchestra_core::object::Object;
use horchestra_core::registry::{self, KindSpec};
use horchestra_core::{alias, table};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::{now, object};

fn core() -> &'static KindSpec {
    registry::spec(Kind::Event).unwrap()
}

fn older() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "team-a"},
        "involvedObject": {"kind": "Application", "namespace": "team-a", "name": "web", "uid": "u",
            "fieldPath": "spec.image"},
        "reason": "Failed", "message": " it broke\n", "type": "Warning", "count": 7,
        "source": {"component": "agent", "host": "n1"},
        "firstTimestamp": "2026-03-01T11:00:00Z", "lastTimestamp": "2026-03-01T11:58:00Z",
    })
}

fn newer() -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "web.2", "namespace": "team-a"},
        "regarding": {"kind": "Application", "namespace": "team-a", "name": "web", "uid": "u"},
        "reason": "Scheduled", "note": "bound", "type": "Normal", "action": "Binding",
        "reportingController": "example.com/scheduler", "reportingInstance": "s-1",
        "eventTime": "2026-03-01T11:59:00.5Z",
        "series": {"count": 3, "lastObservedTime": "2026-03-01T11:59:50Z"},
    })
}

fn read(spec: &KindSpec, document: &Value) -> Result<Object, u16> {
    let decoded = admit::decode(spec, Media::Json, document.to_string().as_bytes()).unwrap();
    let admitted = admit::complete(spec, decoded, None, FieldValidation::Strict);
    admitted.map(|admitted| spec.stored(admitted.object)).map_err(|status| status.code())
}

#[test]
fn what_is_written_in_one_shape_is_read_in_the_other() {
    let stored = read(&EVENTS_K8S_IO, &newer()).unwrap();
    assert_eq!(stored.str_at(&["apiVersion"]), "v1");
    assert_eq!(stored.str_at(&["involvedObject", "name"]), "web");
    assert_eq!(stored.str_at(&["message"]), "bound");
    assert_eq!(stored.str_at(&["reportingComponent"]), "example.com/scheduler");
    assert_eq!(stored.str_at(&["eventTime"]), "2026-03-01T11:59:00.500000Z", "six digits, always");
    let stored = read(core(), &older()).unwrap();
    let shown = EVENTS_K8S_IO.shown(&stored).into_owned();
    assert_eq!(
        shown.into_value(),
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "team-a"},
            "regarding": older()["involvedObject"], "reason": "Failed", "note": " it broke\n",
            "type": "Warning", "deprecatedCount": 7, "deprecatedSource": {"component": "agent", "host": "n1"},
            "deprecatedFirstTimestamp": "2026-03-01T11:00:00Z",
            "deprecatedLastTimestamp": "2026-03-01T11:58:00Z",
        })
    );
}

#[test]
fn each_shape_knows_its_own_words_only() {
    let mut mixed = newer();
    mixed["message"] = json!("x");
    assert_eq!(read(&EVENTS_K8S_IO, &mixed), Err(400));
    let mut mixed = older();
    mixed["note"] = json!("x");
    assert_eq!(read(core(), &mixed), Err(400));
    let mut wrong = newer();
    wrong["series"]["lastObservedTime"] = json!("yesterday");
    assert_eq!(read(&EVENTS_K8S_IO, &wrong), Err(422));
    assert_eq!(read(&EVENTS_K8S_IO, &older()), Err(400), "the body says that it is of the other group");
}

/// What typed clients send of members that they leave empty.
#[test]
fn nulls_are_absent_members() {
    let mut nulls = older();
    nulls["metadata"]["creationTimestamp"] = Value::Null;
    for member in ["eventTime", "series", "related", "lastTimestamp"] {
        nulls[member] = Value::Null;
    }
    nulls["source"] = json!({});
    nulls["reportingComponent"] = json!("");
    let stored = read(core(), &nulls).unwrap();
    assert!(stored.get("eventTime").is_none() && stored.get("series").is_none());
}

fn faults(event: Value) -> Vec<String> {
    (core().validate)(&object(event)).into_iter().map(|cause| cause.field).collect()
}

#[test]
fn rules() {
    assert!(faults(older()).is_empty());
    let newer = EVENTS_K8S_IO.stored(object(newer())).into_value();
    assert!(faults(newer.clone()).is_empty());
    let with = |base: &Value, member: &str, value: Value| {
        let mut changed = base.clone();
        changed[member] = value;
        faults(changed)
    };
    let node = json!({"kind": "Node", "name": "n1"});
    assert_eq!(with(&older(), "involvedObject", node.clone()), ["involvedObject.namespace"]);
    let mut in_default = older();
    in_default["metadata"]["namespace"] = json!("default");
    assert_eq!(with(&in_default, "involvedObject", node), [""; 0]);
    assert_eq!(faults(in_default), ["involvedObject.namespace"]);
    // Only who says when to the microsecond is asked for the rest.
    for member in ["reason", "reportingComponent", "message"] {
        assert_eq!(with(&older(), member, json!("")), [""; 0]);
    }
    let long = json!("x".repeat(1025));
    assert_eq!(with(&older(), "message", long.clone()), [""; 0]);
    for (member, value) in [
        ("reason", json!("")),
        ("action", json!("")),
        ("reportingInstance", json!("")),
        ("reportingComponent", json!("")),
        ("reportingComponent", json!("no good")),
        ("action", json!("x".repeat(129))),
        ("message", long),
    ] {
        assert_eq!(with(&newer, member, value.clone()), [member], "{value}");
    }
    let status = admit::validate(core(), &object(with_member(&newer, "message", "x".repeat(1025))), None);
    let reworded = EVENTS_K8S_IO.reworded(status.unwrap_err());
    assert_eq!(reworded.details.causes[0].field, "note");
    assert!(reworded.message.contains("note: "), "{}", reworded.message);
}

fn with_member(base: &Value, member: &str, text: String) -> Value {
    let mut changed = base.clone();
    changed[member] = Value::from(text);
    changed
}

#[test]
fn tables_show_what_kubectl_expects() {
    let headings: Vec<(&str, u8)> = core().columns.iter().map(|it| (it.name, it.priority)).collect();
    assert_eq!(
        headings,
        [
            ("Last Seen", 0),
            ("Type", 0),
            ("Reason", 0),
            ("Object", 0),
            ("Subobject", 1),
            ("Source", 1),
            ("Message", 0),
            ("First Seen", 1),
            ("Count", 1),
            ("Name", 1)
        ]
    );
    let cells = |event: Value| Value::Array(table::cells(core().columns, &object(event), now()));
    assert_eq!(
        cells(older()),
        json!([
            "2m",
            "Warning",
            "Failed",
            "application/web",
            "spec.image",
            "agent, n1",
            "it broke",
            "60m",
            7,
            "web.1"
        ])
    );
    let newer = EVENTS_K8S_IO.stored(object(newer())).into_value();
    assert_eq!(
        cells(newer),
        json!([
            "10s",
            "Normal",
            "Scheduled",
            "application/web",
            "",
            "example.com/scheduler, s-1",
            "bound",
            "60s",
            3,
            "web.2"
        ])
    );
    let bare = json!({"metadata": {"name": "x"}, "involvedObject": 3, "series": "odd", "eventTime": 4});
    assert_eq!(cells(bare), json!(["<unknown>", "", "", "", "", "", "", "<unknown>", 1, "x"]));
}

#[test]
fn when_an_event_was_last_observed() {
    let last = |event: Value| {
        let times: Observations = serde_json::from_value(event).unwrap();
        times.last(now()).to_string()
    };
    assert_eq!(last(older()), "2026-03-01T11:58:00Z");
    assert_eq!(last(EVENTS_K8S_IO.stored(object(newer())).into_value()), "2026-03-01T11:59:50Z");
    let mut created = older();
    created["metadata"]["creationTimestamp"] = json!("2026-03-01T11:59:00Z");
    assert_eq!(last(created.clone()), "2026-03-01T11:59:00Z");
    created["lastTimestamp"] = json!("2031-01-01T00:00:00Z");
    assert_eq!(last(created), "2026-03-01T11:59:00Z", "the future does not count");
    let ahead = json!({"metadata": {"creationTimestamp": "2026-03-01T13:00:00Z"}, "lastTimestamp": "2026-03-01T13:00:00Z"});
    assert_eq!(last(ahead), now().to_string(), "made by a clock that is ahead: just now");
    assert!(last(json!({})).starts_with('-'), "no time at all is long ago");
}

#[test]
fn names_follow_from_what_is_observed() {
    let name = name_of("web", &["a", "b"]);
    assert_eq!(name, name_of("web", &["a", "b"]));
    assert_ne!(name, name_of("web", &["ab", ""]));
    assert_ne!(name, name_of("web", &["a", "c"]));
    assert!(name.starts_with("web.") && name.len() == 4 + 16);
    for subject in [&*"a".repeat(253), &format!("{}.-.{}", "a".repeat(227), "b".repeat(20))] {
        assert_eq!(subdomain_fault(&name_of(subject, &["x"])), None);
    }
}

#[test]
fn every_field_of_one_shape_can_be_selected_in_the_other() {
    for (shown, stored) in alias::EVENTS.fields {
        assert_eq!(EVENTS_K8S_IO.form.unwrap().other_path(shown), *stored);
        assert!(core().is_selectable(stored), "{stored}");
    }
    let event = object(older());
    let fields = core().selectable_fields(&event);
    for (field, value) in [
        ("involvedObject.uid", "u"),
        ("involvedObject.apiVersion", ""),
        ("type", "Warning"),
        ("source", "agent"),
        ("metadata.namespace", "team-a"),
    ] {
        assert!(fields.contains(&(field.to_owned(), value.to_owned())), "{field}");
    }
}

fn any_member() -> impl Strategy<Value = String> {
    const KNOWN: [&str; 15] = [
        "involvedObject",
        "regarding",
        "message",
        "note",
        "source",
        "deprecatedSource",
        "count",
        "deprecatedCount",
        "reportingComponent",
        "reportingController",
        "firstTimestamp",
        "deprecatedFirstTimestamp",
        "metadata",
        "reason",
        "kind",
    ];
    prop_oneof![4 => proptest::sample::select(&KNOWN[..]).prop_map(str::to_owned), 1 => "[a-zA-Z]{1,12}"]
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i32>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(Value::Null),
        Just(json!({"name": "x", "count": 1})),
    ]
}

proptest! {
    #[test]
    fn going_over_and_back_gives_the_same_object(
        members in proptest::collection::btree_map(any_member(), any_value(), 0..12),
    ) {
        let mut stored = Object(members.into_iter().collect::<Map<_, _>>());
        stored.0.insert("apiVersion".to_owned(), json!("v1"));
        let shown = EVENTS_K8S_IO.shown(&stored).into_owned();
        prop_assert_eq!(shown.0.len(), stored.0.len());
        prop_assert_eq!(EVENTS_K8S_IO.stored(shown.clone()), stored.clone());
        prop_assert_eq!((alias::EVENTS.project)(&stored), shown);
    }
}
