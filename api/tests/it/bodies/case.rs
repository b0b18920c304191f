//! One request, made from a number: what is asked, of what, and with which body.
//!
//! A body speaks of its object as `@name`, `@uid` and `@revision`, so that the same case can be asked of another
//! object, which is how a failure is made smaller.

use std::fmt::Write as _;

use horchestra_core::doors::Door;
use horchestra_core::registry::KindSpec;
use horchestra_core::yaml;
use http::Method;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::base;
use super::grow::Grow;
use super::spoil::{self, Spoil};
use super::tree::{Tree, quoted};

/// What is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Collection,
    Item,
    Status,
    Door(Door),
}

/// An object that requests are about.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    /// As last read; null when there is none yet.
    pub object: Value,
}

#[derive(Clone, Debug)]
pub enum Body {
    Tree(Tree),
    Bytes(Vec<u8>),
}

#[derive(Clone)]
pub struct Case {
    pub spec: &'static KindSpec,
    pub method: Method,
    pub place: Place,
    pub query: String,
    pub headers: Vec<(&'static str, &'static str)>,
    pub body: Body,
    /// Whether the object that it names is not there yet.
    pub fresh: bool,
}

pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";
pub const MERGE: &str = "application/merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// The namespace of all that is namespaced.
pub const NAMESPACE: &str = "shop";

pub fn collection(spec: &KindSpec) -> String {
    let prefix = if spec.group().is_empty() { "/api" } else { "/apis" };
    let place = if spec.namespaced() { format!("/namespaces/{NAMESPACE}") } else { String::new() };
    format!("{prefix}/{}{place}/{}", spec.api_version(), spec.plural())
}

impl Case {
    pub fn path(&self, target: &Target) -> String {
        let collection = collection(self.spec);
        let path = match self.place {
            Place::Collection => collection,
            Place::Item => format!("{collection}/{}", target.name),
            Place::Status => format!("{collection}/{}/status", target.name),
            Place::Door(door) => format!("{collection}/{}/{}", target.name, door.name()),
        };
        if self.query.is_empty() { path } else { format!("{path}?{}", self.query) }
    }

    /// The body as it goes out.
    pub fn bytes(&self, target: &Target) -> Vec<u8> {
        let mut bytes = match &self.body {
            Body::Tree(tree) => {
                let mut text = String::new();
                tree.write(&mut text);
                text.into_bytes()
            }
            Body::Bytes(bytes) => bytes.clone(),
        };
        let metadata = &target.object["metadata"];
        for (mark, value) in [
            ("@name", target.name.as_str()),
            ("@uid", metadata["uid"].as_str().unwrap_or("")),
            ("@revision", metadata["resourceVersion"].as_str().unwrap_or("")),
        ] {
            bytes = replaced(bytes, mark.as_bytes(), value.as_bytes());
        }
        bytes
    }

    pub fn is_dry(&self) -> bool {
        self.query.contains("dryRun=All")
    }

    /// What people need to ask it again.
    pub fn shown(&self, target: &Target) -> String {
        let bytes = self.bytes(target);
        let text = String::from_utf8_lossy(&bytes);
        let shown: String = text.chars().take(4000).collect();
        let mut out = format!("{} {} {:?}\n{shown:?}", self.method, self.path(target), self.headers);
        if shown.len() < text.len() {
            let _ = write!(out, " and so on, {} bytes", bytes.len());
        }
        out
    }
}

fn replaced(text: Vec<u8>, mark: &[u8], value: &[u8]) -> Vec<u8> {
    if !text.contains(&mark[0]) {
        return text;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(mark) {
            out.extend_from_slice(value);
            rest = after;
        } else {
            out.push(rest[0]);
            rest = &rest[1..];
        }
    }
    out
}

/// The case of these random numbers.
pub fn case(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let mut case = match random.random_range(0..100) {
        0..28 => create(random, spec),
        28..48 => replace(random, spec),
        48..60 => merge(random, spec),
        60..74 => json_patch(random, spec),
        74..86 => apply(random, spec),
        86..90 => act(random, spec),
        90..93 => delete_many(random, spec),
        _ => delete(random, spec),
    };
    if random.random_bool(0.12) {
        let mut bytes = text(random, &case);
        spoil::bytes(random, &mut bytes);
        case.body = Body::Bytes(bytes);
    }
    if random.random_bool(0.03) {
        case.body = Body::Bytes(bomb(random));
    }
    if random.random_bool(0.04) {
        let types =
            [JSON, YAML, MERGE, JSON_PATCH, APPLY, "application/strategic-merge-patch+json", "a", "/;"];
        case.headers.retain(|(name, _)| *name != "content-type");
        if let Some(media) = types.choose(random).filter(|_| random.random_bool(0.8)) {
            case.headers.push(("content-type", media));
        }
    }
    if random.random_bool(0.02) {
        let encoding = ["gzip", "deflate", "br", "identity", "x"].choose(random).unwrap();
        case.headers.push(("content-encoding", encoding));
    }
    if random.random_bool(0.2) {
        let accept = [
            YAML,
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "application/vnd.kubernetes.protobuf",
            "*/*;q=0.1",
        ];
        case.headers.push(("accept", accept.choose(random).unwrap()));
    }
    let mut query = vec![std::mem::take(&mut case.query)];
    for (chance, text) in [
        (0.15, "fieldValidation=Warn"),
        (0.15, "fieldValidation=Ignore"),
        (0.08, "dryRun=All"),
        (0.05, "fieldManager=tester%20one"),
        (0.02, "fieldManager=%00%FF"),
        (0.02, "exactResourceVersion=true"),
        (0.01, "dryRun=%F0%9F"),
        (0.01, "force=true"),
        (0.01, "fieldValidation="),
    ] {
        if random.random_bool(chance) {
            query.push(text.to_owned());
        }
    }
    query.retain(|text| !text.is_empty());
    case.query = query.join("&");
    case
}

pub fn new(spec: &'static KindSpec, method: Method, place: Place, media: &'static str, body: Tree) -> Case {
    let headers = vec![("content-type", media)];
    let fresh = method == Method::POST && place == Place::Collection;
    Case { spec, method, place, query: String::new(), headers, body: Body::Tree(body), fresh }
}

/// A document of the kind, spoiled more often than not.
fn document(random: &mut StdRng, spec: &'static KindSpec, yaml: bool) -> Tree {
    let mut tree = if random.random_bool(0.5) { base::document(spec) } else { grown(random, spec) };
    if random.random_bool(0.8) {
        Spoil { random, yaml }.some(&mut tree);
    }
    tree
}

fn grown(random: &mut StdRng, spec: &'static KindSpec) -> Tree {
    let fill = *[0.1, 0.3, 0.6].choose(random).unwrap();
    let odd_metadata = random.random_bool(0.3);
    let mut tree = Grow { random, fill }.value(spec.schema(), "", 0);
    tree.set("apiVersion", Tree::text(spec.api_version()));
    tree.set("kind", Tree::text(spec.kind.name()));
    if !odd_metadata {
        tree.set("metadata", Tree::of(&json!({"name": "@name"})));
    } else if let Some(metadata) = tree.member("metadata") {
        metadata.set("name", Tree::text("@name"));
        metadata.set("namespace", Tree::text(if spec.namespaced() { NAMESPACE } else { "" }));
    }
    tree
}

fn media(random: &mut StdRng) -> &'static str {
    if random.random_bool(0.3) { YAML } else { JSON }
}

fn create(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let media = media(random);
    let body = document(random, spec, media == YAML);
    new(spec, Method::POST, Place::Collection, media, body)
}

fn replace(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let media = media(random);
    let mut body = document(random, spec, media == YAML);
    if random.random_bool(0.2)
        && let Some(metadata) = body.member("metadata")
    {
        metadata.set("resourceVersion", Tree::text("@revision"));
    }
    let place = with_status(random, spec, &mut body);
    new(spec, Method::PUT, place, media, body)
}

/// Makes some requests be about the status.
fn with_status(random: &mut StdRng, spec: &KindSpec, body: &mut Tree) -> Place {
    if !spec.has_status() || random.random_bool(0.6) {
        return Place::Item;
    }
    if let Some(schema) = spec.schema().at(&["status"]) {
        let mut status = Grow { random: &mut *random, fill: 0.4 }.value(schema, "status", 0);
        if random.random_bool(0.6) {
            Spoil { random, yaml: false }.some(&mut status);
        }
        body.set("status", status);
    }
    Place::Status
}

fn merge(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let mut body = document(random, spec, false);
    if let Tree::Map(members) = &mut body {
        members.retain(|_| random.random_bool(0.6));
    }
    let place = with_status(random, spec, &mut body);
    new(spec, Method::PATCH, place, MERGE, body)
}

fn apply(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let mut body = document(random, spec, true);
    let place = with_status(random, spec, &mut body);
    let mut case = new(spec, Method::PATCH, place, APPLY, body);
    let query = ["fieldManager=one", "fieldManager=one&force=true", "fieldManager=two&force=true", ""];
    case.query = (*query.choose(random).unwrap()).to_owned();
    case.fresh = random.random_bool(0.3);
    case
}

const POINTERS: &[&str] = &[
    "",
    "/",
    "/-",
    "//",
    "/~",
    "/~2",
    "spec",
    "/spec",
    "/metadata",
    "/metadata/name",
    "/metadata/name/0",
    "/metadata/labels",
    "/metadata/labels/a~1b",
    "/metadata/finalizers/-",
    "/metadata/managedFields",
    "/metadata/uid",
    "/metadata/resourceVersion",
    "/spec/env/-1",
    "/spec/env/0",
    "/spec/env/-",
    "/spec/env/01",
    "/spec/env/99999999999999999999",
    "/spec/volumes/0/volume",
    "/spec/ports/0/port",
    "/spec/rules/0/verbs/-",
    "/status",
    "/status/conditions",
    "/data",
    "/data/x",
    "/stringData",
    "/kind",
    "/apiVersion",
    "/spec/frozen",
    "/\u{1F4A5}",
];

fn json_patch(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let mut operations = Vec::new();
    let operation = |op: &str, path: &str, from: Option<&str>, value: Option<Tree>| {
        let mut members = vec![(quoted("op"), Tree::text(op)), (quoted("path"), Tree::text(path))];
        members.extend(from.map(|from| (quoted("from"), Tree::text(from))));
        members.extend(value.map(|value| (quoted("value"), value)));
        Tree::Map(members)
    };
    for _ in 0..random.random_range(0..4) {
        let op = *["add", "add", "replace", "remove", "move", "copy", "test"].choose(random).unwrap();
        let path = *POINTERS.choose(random).unwrap();
        let from = *POINTERS.choose(random).unwrap();
        let value = match random.random_range(0..3) {
            0 => document(random, spec, false),
            1 => Tree::List(Vec::new()),
            _ => Spoil { random, yaml: false }.scalar(),
        };
        operations.push(operation(op, path, Some(from), Some(value)));
    }
    if random.random_bool(0.06) {
        operations.push(operation(
            "add",
            "/metadata/annotations",
            None,
            Some(Tree::of(&json!({"a": ["x"]}))),
        ));
        let copy = operation("copy", "/metadata/annotations/a/-", Some("/metadata/annotations/a"), None);
        operations.extend(std::iter::repeat_n(copy, *[3, 12, 40].choose(random).unwrap()));
    }
    let mut body = Tree::List(operations);
    if random.random_bool(0.3) {
        Spoil { random, yaml: false }.some(&mut body);
    }
    let place = if spec.has_status() && random.random_bool(0.3) { Place::Status } else { Place::Item };
    new(spec, Method::PATCH, place, JSON_PATCH, body)
}

fn act(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let doors: Vec<Door> = Door::of(spec.kind).filter(|door| *door != Door::Revisions).collect();
    // The other form of a kind has no doors.
    let Some(door) = doors.choose(random).filter(|_| spec.form.is_none()) else {
        return create(random, spec);
    };
    let revision = ["\"@revision\"", "1", "0", "-1", "999999", "9223372036854775808"].choose(random).unwrap();
    let mut body = Tree::of(&json!({
        "revision": null, "resourceVersion": "@revision", "uid": "@uid", "metadata": {"name": "@name"},
    }));
    body.set("revision", Tree::Scalar((*revision).to_owned()));
    if let Tree::Map(members) = &mut body {
        members.retain(|(name, _)| name == "\"revision\"" || random.random_bool(0.4));
    }
    if random.random_bool(0.5) {
        Spoil { random, yaml: false }.some(&mut body);
    }
    let method = if random.random_bool(0.7) { Method::POST } else { Method::PUT };
    new(spec, method, Place::Door(*door), media(random), body)
}

fn options(random: &mut StdRng) -> Tree {
    let mut body = Tree::of(&json!({
        "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background",
        "orphanDependents": null, "dryRun": [], "preconditions": {"uid": "@uid", "resourceVersion": "@revision"},
    }));
    if let Tree::Map(members) = &mut body {
        members.retain(|_| random.random_bool(0.5));
    }
    if random.random_bool(0.7) {
        Spoil { random, yaml: false }.some(&mut body);
    }
    body
}

fn delete(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let body = options(random);
    new(spec, Method::DELETE, Place::Item, media(random), body)
}

/// Of what nothing is labelled with, and as a dry run.
fn delete_many(random: &mut StdRng, spec: &'static KindSpec) -> Case {
    let body = options(random);
    let mut case = new(spec, Method::DELETE, Place::Collection, media(random), body);
    case.query = "labelSelector=no%3Dsuch".to_owned();
    if random.random_bool(0.5) {
        case.query = "dryRun=All".to_owned();
    }
    case
}

/// The body of a case as text, of a YAML one in block style where that can be.
fn text(random: &mut StdRng, case: &Case) -> Vec<u8> {
    let Body::Tree(tree) = &case.body else { return Vec::new() };
    let mut text = String::new();
    tree.write(&mut text);
    let yaml = case.headers.iter().any(|(name, media)| *name == "content-type" && media.ends_with("yaml"));
    if yaml
        && random.random_bool(0.7)
        && let Ok(value) = serde_json::from_str::<Value>(&text)
    {
        text = yaml::write(&value);
    }
    text.into_bytes()
}

/// Small or not so small texts that cost a careless reader a lot.
fn bomb(random: &mut StdRng) -> Vec<u8> {
    let laughs = |levels: usize, width: usize| {
        let mut text = "a0: &a0 [x, x]\n".to_owned();
        for level in 1..levels {
            let below = vec![format!("*a{}", level - 1); width].join(", ");
            let _ = writeln!(text, "a{level}: &a{level} [{below}]");
        }
        text.into_bytes()
    };
    match random.random_range(0..14) {
        0 => laughs(12, 9),
        1 => laughs(40, 2),
        2 => vec![b'['; 100_000],
        3 => b"{\"a\":".repeat(60_000),
        4 => b"- ".repeat(50_000),
        5 => [&b"\""[..], &b"\\u0041".repeat(80_000), b"\""].concat(),
        6 => vec![b' '; (3 << 20) + 1],
        7 => format!("{{\"metadata\": {{\"{}\": 1}}}}", "k".repeat(1 << 20)).into_bytes(),
        8 => (0..900).flat_map(|depth| format!("{}a:\n", " ".repeat(depth)).into_bytes()).collect(),
        9 => b"a: &a\n  <<: *a\n".to_vec(),
        10 => b"a: &a [*a]\n".to_vec(),
        11 => Vec::new(),
        12 => (0..random.random_range(1..400)).map(|_| random.random()).collect(),
        _ => {
            let merges = (0..2000).map(|at| format!("k{at}: &k{at} {{<<: *k{}}}\n", at.max(1) - 1));
            merges.collect::<String>().into_bytes()
        }
    }
}
