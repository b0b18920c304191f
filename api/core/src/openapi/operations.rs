//! The operations on a kind, as OpenAPI describes them.

use serde_json::{Map, Value, json};

use super::schemas::{self, Named};
use crate::doors::Door;
use crate::registry::KindSpec;
use crate::reviews::ReviewSpec;

/// A parameter in the query of a request.
struct Parameter {
    name: &'static str,
    kind: &'static str,
    description: &'static str,
}

const fn text(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: "string", description }
}

const fn flag(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: "boolean", description }
}

const fn number(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind: "integer", description }
}

const DRY_RUN: Parameter =
    text("dryRun", "The request is judged in full, but nothing is stored. The only value is All.");
const FIELD_MANAGER: Parameter =
    text("fieldManager", "Name of whoever makes the change, at most 128 printable characters.");
const APPLYING_MANAGER: Parameter = text(
    "fieldManager",
    "Name of whoever makes the change, at most 128 printable characters. Required for an apply.",
);
const FIELD_VALIDATION: Parameter = text(
    "fieldValidation",
    "What happens to unknown and duplicate fields. Strict (the default) refuses the request, naming all of \
     them. Warn drops them, with a warning for each. Ignore drops them silently.",
);
const EXACT: Parameter = flag(
    "exactResourceVersion",
    "A resourceVersion in the body must be that of the very last change, a change of the status included.",
);
const RESOURCE_VERSION: Parameter = text(
    "resourceVersion",
    "Revision that the answer must not be older than, or from which a watch goes on.",
);

const CREATE: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const WRITE: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, EXACT];
const PATCH: &[Parameter] = &[
    DRY_RUN,
    APPLYING_MANAGER,
    FIELD_VALIDATION,
    flag("force", "An apply takes over fields that belong to other managers. Not for other patches."),
    EXACT,
];
const GET: &[Parameter] = &[RESOURCE_VERSION];
const ACT: &[Parameter] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, EXACT];
const GRACE: Parameter =
    number("gracePeriodSeconds", "Seconds that the object is given to end. Zero means at once.");
const PROPAGATION: Parameter =
    text("propagationPolicy", "What becomes of dependents: Background, Foreground or Orphan.");
const ORPHANS: Parameter =
    flag("orphanDependents", "Superseded by propagationPolicy: true is Orphan, false is Background.");
const DELETE: &[Parameter] = &[DRY_RUN, GRACE, PROPAGATION, ORPHANS];
const LABELS: Parameter = text("labelSelector", "Only objects whose labels match.");
const FIELDS: Parameter = text("fieldSelector", "Only objects whose fields match.");
const LIMIT: Parameter = number("limit", "Most objects in one answer; more can be had with continue.");
const DELETE_LISTED: &[Parameter] = &[DRY_RUN, GRACE, PROPAGATION, ORPHANS, LABELS, FIELDS, LIMIT];
const LIST: &[Parameter] = &[
    LABELS,
    FIELDS,
    LIMIT,
    text("continue", "Token from the answer before, with which the listing goes on."),
    RESOURCE_VERSION,
    text("resourceVersionMatch", "How resourceVersion is meant: Exact or NotOlderThan."),
    flag("watch", "Changes are sent as they happen, one JSON object a line, instead of a list."),
    number("timeoutSeconds", "Seconds after which a watch ends."),
    flag("allowWatchBookmarks", "A watch may send events of type BOOKMARK that only tell the revision."),
    flag("sendInitialEvents", "A watch begins with the objects that there are, then sends a bookmark."),
];

/// One operation, apart from how a version of OpenAPI writes it.
struct Operation {
    method: &'static str,
    /// `x-kubernetes-action`.
    action: &'static str,
    id: String,
    description: String,
    parameters: &'static [Parameter],
    /// Media types of the body; none for requests without one.
    consumes: &'static [&'static str],
    /// What the body is.
    takes: Takes,
    answers: Answers,
}

/// What the body of a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// An object of the kind.
    Object,
    /// A patch, of whichever sort.
    Patch,
    /// What a door is told; it can do without, unless a member is required.
    Order(Door),
}

/// What the answer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// Nothing that has a schema here.
    Something,
    /// One object of the kind.
    Object,
    Revisions,
}

impl Takes {
    fn schema(self, object: &Value) -> Value {
        match self {
            Takes::Object => object.clone(),
            Takes::Patch => json!({}),
            Takes::Order(door) => door.order_schema(),
        }
    }

    fn required(self) -> bool {
        match self {
            Takes::Object | Takes::Patch => true,
            Takes::Order(door) => door.order_schema().get("required").is_some(),
        }
    }
}

impl Answers {
    /// The schema, by reference; `place` is where the document keeps its schemas.
    fn schema(self, place: &str, object: &Value) -> Option<Value> {
        match self {
            Answers::Something => None,
            Answers::Object => Some(object.clone()),
            Answers::Revisions => Some(reference(place, schemas::REVISION_LIST)),
        }
    }
}

fn reference(place: &str, name: &str) -> Value {
    json!({"$ref": format!("{place}{name}")})
}

const BODY: &[&str] = &["application/json", "application/yaml"];
const REVIEWS: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const CHANGES: &[&str] = &["application/json-patch+json", "application/merge-patch+json"];

struct Item {
    path: String,
    path_parameters: Vec<(&'static str, String)>,
    operations: Vec<Operation>,
}

fn items(spec: &KindSpec) -> Vec<Item> {
    let base = if spec.group().is_empty() {
        format!("/api/{}", spec.version())
    } else {
        format!("/apis/{}/{}", spec.group(), spec.version())
    };
    let scope = if spec.namespaced() { "Namespaced" } else { "" };
    let suffix = format!("{}{scope}{}", camel_group(spec.into()), spec.kind.name());
    let what = spec.kind.name();
    let operation = |method, action, description: String, parameters, consumes, object: bool| Operation {
        method,
        action,
        id: format!("{action}{suffix}"),
        description,
        parameters,
        consumes,
        takes: if method == "patch" { Takes::Patch } else { Takes::Object },
        answers: if object { Answers::Object } else { Answers::Something },
    };
    let collection = if spec.namespaced() {
        format!("{base}/namespaces/{{namespace}}/{}", spec.plural())
    } else {
        format!("{base}/{}", spec.plural())
    };
    let mut of_collection = Vec::new();
    if spec.namespaced() {
        of_collection.push(("namespace", "Name of the namespace.".to_owned()));
    }
    let mut of_item = of_collection.clone();
    of_item.push(("name", format!("Name of the {what}.")));

    // Managers of fields are kept in the words of the stored shape alone.
    let patches = if spec.form.is_some() { CHANGES } else { PATCHES };

    let mut items = vec![
        Item {
            path: collection.clone(),
            path_parameters: of_collection,
            operations: vec![
                operation("get", "list", format!("Lists or watches {what} objects."), LIST, &[], false),
                operation("post", "create", format!("Creates a {what}."), CREATE, BODY, true),
                operation(
                    "delete",
                    "deletecollection",
                    format!("Deletes the {what} objects that are selected."),
                    DELETE_LISTED,
                    &[],
                    false,
                ),
            ],
        },
        Item {
            path: format!("{collection}/{{name}}"),
            path_parameters: of_item.clone(),
            operations: vec![
                operation("get", "get", format!("Reads a {what}."), GET, &[], true),
                operation("put", "replace", format!("Replaces a {what}."), WRITE, BODY, true),
                operation("patch", "patch", format!("Changes parts of a {what}."), PATCH, patches, true),
                operation("delete", "delete", format!("Deletes a {what}."), DELETE, &[], false),
            ],
        },
    ];
    if spec.namespaced() {
        let everywhere = Operation {
            id: format!("list{}{what}ForAllNamespaces", camel_group(spec.into())),
            ..operation(
                "get",
                "list",
                format!("Lists or watches {what} objects of all namespaces."),
                LIST,
                &[],
                false,
            )
        };
        items.push(Item {
            path: format!("{base}/{}", spec.plural()),
            path_parameters: Vec::new(),
            operations: vec![everywhere],
        });
    }
    if spec.has_status() {
        let status = |method, action: &'static str, description: String, parameters, consumes| Operation {
            id: format!("{action}{suffix}Status"),
            ..operation(method, action, description, parameters, consumes, true)
        };
        let mut operations = vec![status("get", "get", format!("Reads the status of a {what}."), GET, &[])];
        if spec.kind.takes_status_writes() {
            operations.extend([
                status("put", "replace", format!("Replaces the status of a {what}."), WRITE, BODY),
                status("patch", "patch", format!("Changes parts of the status of a {what}."), PATCH, PATCHES),
            ]);
        }
        items.push(Item {
            path: format!("{collection}/{{name}}/status"),
            path_parameters: of_item.clone(),
            operations,
        });
    }
    for door in Door::of(spec.kind) {
        let action = |method: &'static str, action: &'static str| Operation {
            id: format!("{action}{suffix}{}", capitalized(door.name())),
            takes: Takes::Order(door),
            ..operation(method, action, door.description(what), ACT, BODY, true)
        };
        let operations = if door.verbs() == ["get"] {
            vec![Operation {
                parameters: &[],
                consumes: &[],
                answers: Answers::Revisions,
                ..action("get", "get")
            }]
        } else {
            vec![action("post", "post"), action("put", "put")]
        };
        items.push(Item {
            path: format!("{collection}/{{name}}/{}", door.name()),
            path_parameters: of_item.clone(),
            operations,
        });
    }
    items
}

/// What clients send with every creation; to a review it makes no difference.
const REVIEW: &[Parameter] = &[
    text("dryRun", "Taken and without effect: a review stores nothing either way."),
    text("fieldManager", "Taken and without effect: nothing is stored that could have a manager."),
    text("fieldValidation", "Taken and without effect: members that a review does not know are passed over."),
];

/// A review can be created, and that is all.
fn review_items(spec: &ReviewSpec) -> Vec<Item> {
    let ReviewSpec { group, version, plural, kind, namespaced, .. } = spec;
    let (scope, place) = if *namespaced { ("Namespaced", "/namespaces/{namespace}") } else { ("", "") };
    let namespace = namespaced.then(|| ("namespace", "Name of the namespace.".to_owned()));
    vec![Item {
        path: format!("/apis/{group}/{version}{place}/{plural}"),
        path_parameters: namespace.into_iter().collect(),
        operations: vec![Operation {
            method: "post",
            action: "create",
            id: format!("create{}{scope}{kind}", camel_group(spec.into())),
            description: format!("Asks what a {kind} asks. Nothing is stored."),
            parameters: REVIEW,
            consumes: REVIEWS,
            takes: Takes::Object,
            answers: Answers::Object,
        }],
    }]
}

/// The group as people call it: the unnamed one is the core.
fn group_name(named: Named) -> &'static str {
    if named.group.is_empty() { "core" } else { named.group }
}

/// `horchestra.io`, `v1` → `HorchestraIoV1`.
fn camel_group(named: Named) -> String {
    group_name(named).split('.').chain([named.version]).map(capitalized).collect()
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// What both versions say of an operation.
fn common(named: Named, operation: &Operation) -> Value {
    json!({
        "operationId": operation.id,
        "description": operation.description,
        "tags": [format!("{}/{}", group_name(named), named.version)],
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": schemas::group_version_kind(named),
    })
}

/// Adds the paths of a kind to a version 3 document.
pub(super) fn add_v3(paths: &mut Map<String, Value>, spec: &KindSpec) {
    put_v3(paths, spec.into(), items(spec));
}

/// Adds the path of a review to a version 3 document.
pub(super) fn add_review_v3(paths: &mut Map<String, Value>, spec: &ReviewSpec) {
    put_v3(paths, spec.into(), review_items(spec));
}

fn put_v3(paths: &mut Map<String, Value>, named: Named, items: Vec<Item>) {
    const PLACE: &str = "#/components/schemas/";
    let object = reference(PLACE, &schemas::name(named));
    for item in items {
        let mut path = Map::new();
        let parameters: Vec<Value> = item
            .path_parameters
            .iter()
            .map(|(name, description)| {
                json!({"name": name, "in": "path", "required": true, "description": description,
                    "schema": {"type": "string"}})
            })
            .collect();
        if !parameters.is_empty() {
            path.insert("parameters".to_owned(), Value::Array(parameters));
        }
        for operation in &item.operations {
            let mut value = common(named, operation);
            value["parameters"] = operation
                .parameters
                .iter()
                .map(|parameter| {
                    json!({"name": parameter.name, "in": "query", "description": parameter.description,
                        "schema": {"type": parameter.kind}})
                })
                .collect();
            if !operation.consumes.is_empty() {
                let content: Map<String, Value> = operation
                    .consumes
                    .iter()
                    .map(|media| ((*media).to_owned(), json!({ "schema": operation.takes.schema(&object) })))
                    .collect();
                value["requestBody"] = json!({"required": operation.takes.required(), "content": content});
            }
            value["responses"] = responses(operation, |response| {
                if let Some(schema) = operation.answers.schema(PLACE, &object) {
                    response["content"] = json!({"application/json": {"schema": schema}});
                }
            });
            path.insert(operation.method.to_owned(), value);
        }
        paths.insert(item.path, Value::Object(path));
    }
}

/// Adds the paths of a kind to a version 2 document.
pub(super) fn add_v2(paths: &mut Map<String, Value>, spec: &KindSpec) {
    put_v2(paths, spec.into(), items(spec));
}

/// Adds the path of a review to the version 2 document.
pub(super) fn add_review_v2(paths: &mut Map<String, Value>, spec: &ReviewSpec) {
    put_v2(paths, spec.into(), review_items(spec));
}

fn put_v2(paths: &mut Map<String, Value>, named: Named, items: Vec<Item>) {
    const PLACE: &str = "#/definitions/";
    let object = reference(PLACE, &schemas::name(named));
    for item in items {
        let mut path = Map::new();
        let parameters: Vec<Value> = item
            .path_parameters
            .iter()
            .map(|(name, description)| {
                json!({"name": name, "in": "path", "required": true, "description": description,
                    "type": "string"})
            })
            .collect();
        if !parameters.is_empty() {
            path.insert("parameters".to_owned(), Value::Array(parameters));
        }
        for operation in &item.operations {
            let mut value = common(named, operation);
            let mut parameters: Vec<Value> = operation
                .parameters
                .iter()
                .map(|parameter| {
                    json!({"name": parameter.name, "in": "query", "description": parameter.description,
                        "type": parameter.kind})
                })
                .collect();
            if !operation.consumes.is_empty() {
                parameters.push(json!({"name": "body", "in": "body",
                    "required": operation.takes.required(), "schema": operation.takes.schema(&object)}));
                value["consumes"] = json!(operation.consumes);
            }
            value["parameters"] = Value::Array(parameters);
            value["produces"] = json!(["application/json", "application/yaml"]);
            value["responses"] = responses(operation, |response| {
                if let Some(schema) = operation.answers.schema(PLACE, &object) {
                    response["schema"] = schema;
                }
            });
            path.insert(operation.method.to_owned(), value);
        }
        paths.insert(item.path, Value::Object(path));
    }
}

fn responses(operation: &Operation, complete: impl Fn(&mut Value)) -> Value {
    let mut responses = json!({"200": {"description": "OK"}, "401": {"description": "Unauthorized"}});
    if operation.action == "create" {
        responses["201"] = json!({"description": "Created"});
    }
    for code in ["200", "201"] {
        if let Some(response) = responses.get_mut(code) {
            complete(response);
        }
    }
    responses
}
