//! Tables: what `kubectl get` prints, made on the server.
//!
//! A kind (or an alias) has an ordered list of [`Column`]s, each with a function from an object to its cell.
//! The first one is the name, and one of them is the age, except of Events. Everything else about the answer (its
//! version, which object stands beside the cells) is the caller's choice; [`table`], [`partial_metadata`]
//! and friends build the documents from it.

mod duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub use duration::human_duration;

use crate::object::Object;

/// One column of a table.
#[derive(Clone, Copy)]
pub struct Column {
    /// Heading; kubectl prints it in capitals.
    pub name: &'static str,
    /// `string` for everything, as cells are formatted here.
    pub kind: &'static str,
    /// `name` for the column that names the object.
    pub format: &'static str,
    pub description: &'static str,
    /// 0: always shown; 1: with `-o wide`.
    pub priority: u8,
    pub cell: fn(&Object, Timestamp) -> Value,
}

impl Column {
    /// A column of texts that is always shown.
    pub const fn text(
        name: &'static str,
        description: &'static str,
        cell: fn(&Object, Timestamp) -> Value,
    ) -> Column {
        Column { name, kind: "string", format: "", description, priority: 0, cell }
    }

    /// A column of texts that is shown with `-o wide`.
    pub const fn wide(
        name: &'static str,
        description: &'static str,
        cell: fn(&Object, Timestamp) -> Value,
    ) -> Column {
        Column { priority: 1, ..Column::text(name, description, cell) }
    }
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column").field("name", &self.name).field("priority", &self.priority).finish()
    }
}

/// The name of the object.
pub const NAME: Column = Column {
    format: "name",
    ..Column::text("Name", "Name of the object, unique within its kind and namespace.", |object, _| {
        Value::from(object.name())
    })
};

/// How long ago the object was created.
pub const AGE: Column = Column::text("Age", "Time since the object was created.", |object, now| {
    Value::from(since(object.str_at(&["metadata", "creationTimestamp"]), now))
});

/// Columns of kinds that have nothing else to show.
pub const PLAIN: &[Column] = &[NAME, AGE];

/// A text member of the object as a cell; empty when there is none.
pub(crate) fn text_at(object: &Object, path: &[&str]) -> Value {
    Value::from(object.str_at(path))
}

/// How long ago a point in time was, as kubectl prints it.
pub(crate) fn since(moment: &str, now: Timestamp) -> String {
    match moment.parse::<Timestamp>() {
        Ok(moment) => human_duration(now.as_second() - moment.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Version of the `meta.k8s.io` documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaVersion {
    V1,
    V1Beta1,
}

impl MetaVersion {
    pub const fn api_version(self) -> &'static str {
        match self {
            MetaVersion::V1 => "meta.k8s.io/v1",
            MetaVersion::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// What stands beside the cells of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

/// `columnDefinitions` of a table.
pub fn definitions(columns: &[Column]) -> Value {
    columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect()
}

/// The cells of one object, in the order of the columns.
pub fn cells(columns: &[Column], object: &Object, now: Timestamp) -> Vec<Value> {
    columns.iter().map(|column| (column.cell)(object, now)).collect()
}

/// One row. `shown` is the object as its readers see it (for an alias, the alias).
pub fn row(version: MetaVersion, include: Include, cells: Vec<Value>, shown: &Object) -> Value {
    let object = match include {
        Include::None => Value::Null,
        Include::Metadata => partial_metadata(version, shown),
        Include::Object => Value::Object(shown.0.clone()),
    };
    json!({"cells": cells, "object": object})
}

/// A whole table. `metadata` is that of the list (or of the object, for a table of one).
pub fn table(version: MetaVersion, metadata: Value, columns: &[Column], rows: Vec<Value>) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": version.api_version(),
        "metadata": metadata,
        "columnDefinitions": definitions(columns),
        "rows": rows,
    })
}

/// The object with its metadata only.
pub fn partial_metadata(version: MetaVersion, object: &Object) -> Value {
    let metadata = object.metadata().cloned().unwrap_or_else(Map::new);
    json!({"kind": "PartialObjectMetadata", "apiVersion": version.api_version(), "metadata": metadata})
}

/// A list of objects with their metadata only. `metadata` is that of the list.
pub fn partial_metadata_list(version: MetaVersion, metadata: Value, items: Vec<Value>) -> Value {
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": version.api_version(),
        "metadata": metadata,
        "items": items,
    })
}
