//! What tables of Events show: the same as everywhere, since people sort and grep it.

use jiff::Timestamp;
use serde_json::Value;

use crate::object::Object;
use crate::table::{Column, since, text_at};

pub(crate) const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "Time since it was last observed.", |event, now| {
        let last = first_present(event, &[&["series", "lastObservedTime"], &["lastTimestamp"]]);
        Value::from(since(last.unwrap_or_else(|| first(event)), now))
    }),
    Column::text("Type", "Normal, or Warning when somebody should look at it.", |event, _| {
        text_at(event, &["type"])
    }),
    Column::text("Reason", "Why, as one word.", |event, _| text_at(event, &["reason"])),
    Column::text("Object", "The object that it is about.", |event, _| Value::from(subject(event))),
    Column::wide("Subobject", "The part of the object that it is about.", |event, _| {
        text_at(event, &["involvedObject", "fieldPath"])
    }),
    Column::wide("Source", "The component that reports it.", |event, _| Value::from(source(event))),
    Column::text("Message", "What happened.", |event, _| Value::from(event.str_at(&["message"]).trim())),
    Column::wide("First Seen", "Time since it was first observed.", |event, now| {
        Value::from(since(first(event), now))
    }),
    Column { kind: "integer", ..Column::wide("Count", "How often it was observed.", count) },
    Column {
        format: "name",
        ..Column::wide("Name", "Name of the Event, unique within its namespace.", |event, _| {
            Value::from(event.name())
        })
    },
];

/// The first of these times that the Event has.
fn first_present<'a>(event: &'a Object, paths: &[&[&str]]) -> Option<&'a str> {
    paths.iter().map(|path| event.str_at(path)).find(|text| !text.is_empty())
}

fn first(event: &Object) -> &str {
    first_present(event, &[&["firstTimestamp"], &["eventTime"]]).unwrap_or("")
}

fn subject(event: &Object) -> String {
    let kind = event.str_at(&["involvedObject", "kind"]).to_lowercase();
    match event.str_at(&["involvedObject", "name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn source(event: &Object) -> String {
    let parts = [
        first_present(event, &[&["source", "component"], &["reportingComponent"]]),
        first_present(event, &[&["source", "host"], &["reportingInstance"]]),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// An Event without any count was observed once.
fn count(event: &Object, _: Timestamp) -> Value {
    let number = |path: &[&str]| event.at(path).and_then(Value::as_i64);
    let count = number(&["series", "count"]).or_else(|| number(&["count"])).unwrap_or(0);
    Value::from(count.max(1))
}
