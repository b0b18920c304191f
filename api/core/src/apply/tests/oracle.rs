//! Stories of random writes, against a model that knows fields as plain paths.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Values by path. An item of a list is a path of its own, with an empty value.
type Leaves = BTreeMap<String, String>;

/// The object as paths.
fn leaves(object: &Object) -> Leaves {
    let mut leaves = Leaves::new();
    let labels = object.at(&["metadata", "labels"]).and_then(Value::as_object);
    for (name, value) in labels.into_iter().flatten() {
        leaves.insert(format!("f:metadata/f:labels/f:{name}"), value.to_string());
    }
    for (name, value) in object.at(&["spec", "flat"]).and_then(Value::as_object).into_iter().flatten() {
        leaves.insert(format!("f:spec/f:flat/f:{name}"), value.to_string());
    }
    for item in object.at(&["spec", "list"]).and_then(Value::as_array).into_iter().flatten() {
        let place = format!("f:spec/f:list/k:{{\"name\":{}}}", item["name"]);
        leaves.insert(place.clone(), String::new());
        for (name, value) in item.as_object().unwrap() {
            leaves.insert(format!("{place}/f:{name}"), value.to_string());
        }
    }
    for item in object.at(&["spec", "set"]).and_then(Value::as_array).into_iter().flatten() {
        leaves.insert(format!("f:spec/f:set/v:{item}"), String::new());
    }
    if let Some(value) = object.at(&["spec", "atomic"]) {
        leaves.insert("f:spec/f:atomic".to_owned(), value.to_string());
    }
    leaves
}

const CONTAINERS: [&str; 6] =
    ["", "f:metadata/f:labels", "f:spec", "f:spec/f:flat", "f:spec/f:list", "f:spec/f:set"];

/// A set of fields as paths, containers left out: the model knows none.
fn paths(set: &FieldSet) -> BTreeSet<String> {
    fn walk(set: &Map<String, Value>, at: &str, paths: &mut BTreeSet<String>) {
        if (set.is_empty() || set.contains_key(".")) && !CONTAINERS.contains(&at) {
            paths.insert(at.to_owned());
        }
        for (step, below) in set.iter().filter(|(step, _)| *step != ".") {
            let at = if at.is_empty() { step.clone() } else { format!("{at}/{step}") };
            walk(below.as_object().unwrap(), &at, paths);
        }
    }
    let mut paths = BTreeSet::new();
    walk(&set.to_json(), "", &mut paths);
    paths
}

#[derive(Clone, Debug, Default)]
struct Model {
    leaves: Leaves,
    owners: BTreeMap<Manager, BTreeSet<String>>,
}

impl Model {
    /// Whether a path is that of the other, or of something in it.
    fn within(path: &str, other: &str) -> bool {
        path == other || path.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The item that a path leads into.
    fn item(path: &str) -> Option<&str> {
        let start = path.find("/k:{")?;
        let end = path[start..].find('}')? + start + 1;
        Some(&path[..end])
    }

    fn apply(&mut self, manager: &Manager, wanted: &Leaves, force: bool) -> bool {
        let differs = |path: &String| self.leaves.get(path) != wanted.get(path);
        let contested: BTreeSet<String> = wanted.keys().filter(|path| differs(path)).cloned().collect();
        let others = |owners: &BTreeMap<Manager, BTreeSet<String>>| -> BTreeSet<String> {
            owners.iter().filter(|(other, _)| *other != manager).flat_map(|(_, set)| set.clone()).collect()
        };
        if !force && others(&self.owners).intersection(&contested).next().is_some() {
            return false;
        }
        let last = self.owners.remove(manager).unwrap_or_default();
        let elsewhere = others(&self.owners);
        self.leaves.extend(wanted.clone());
        // What the manager named last, names no longer, and nobody else has, goes, unless something in it, or
        // the item of which it is the key, stays for somebody.
        let claimed =
            |place: &str| elsewhere.iter().chain(wanted.keys()).any(|path| Model::within(path, place));
        let gone: Vec<String> = last
            .iter()
            .filter(|path| !claimed(path))
            .filter(|path| !(path.ends_with("/f:name") && Model::item(path).is_some_and(&claimed)))
            .cloned()
            .collect();
        self.leaves.retain(|path, _| !gone.iter().any(|gone| Model::within(path, gone)));
        for set in self.owners.values_mut() {
            set.retain(|path| !contested.contains(path) && self.leaves.contains_key(path));
        }
        self.owners.insert(manager.clone(), wanted.keys().cloned().collect());
        self.owners.retain(|_, set| !set.is_empty());
        true
    }

    fn update(&mut self, manager: &Manager, new: &Leaves) {
        let changed: BTreeSet<String> = new
            .iter()
            .filter(|(path, value)| self.leaves.get(*path) != Some(value))
            .map(|(p, _)| p.clone())
            .collect();
        for (other, set) in &mut self.owners {
            set.retain(|path| new.contains_key(path) && (other == manager || !changed.contains(path)));
        }
        self.owners.entry(manager.clone()).or_default().extend(changed);
        self.owners.retain(|_, set| !set.is_empty());
        self.leaves = new.clone();
    }
}

fn some_object() -> impl Strategy<Value = Object> {
    let number = 1..3i64;
    let map = |names: &'static [&'static str]| {
        prop::collection::btree_map(prop::sample::select(names), 1..3i64, 0..3).prop_map(|map| {
            map.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect::<Map<_, _>>()
        })
    };
    let item = (prop::option::of(number.clone()), prop::option::of(number));
    let list = prop::collection::vec((prop::sample::select(vec!["A", "B", "C"]), item), 0..4);
    let set = prop::collection::vec(prop::sample::select(vec!["p", "q", "r"]), 0..4);
    let atomic = prop::option::of(prop::collection::vec(1..3i64, 0..2));
    (map(&["a", "b"]), map(&["x", "y", "z"]), list, set, atomic).prop_map(
        |(labels, flat, list, set, atomic)| {
            let mut metadata = json!({"name": "o"});
            let mut spec = Map::new();
            let labels: Map<String, Value> =
                labels.into_iter().map(|(name, value)| (name, json!(value.to_string()))).collect();
            if !labels.is_empty() {
                metadata["labels"] = Value::Object(labels);
            }
            if !flat.is_empty() {
                spec.insert("flat".to_owned(), Value::Object(flat));
            }
            let mut seen = BTreeSet::new();
            let items: Vec<Value> = list
                .into_iter()
                .filter(|(name, _)| seen.insert(*name))
                .map(|(name, (value, extra))| {
                    let mut item = json!({ "name": name });
                    if let Some(value) = value {
                        item["value"] = json!(value);
                    }
                    if let Some(extra) = extra {
                        item["extra"] = json!(extra);
                    }
                    item
                })
                .collect();
            if !items.is_empty() {
                spec.insert("list".to_owned(), Value::Array(items));
            }
            let mut seen = BTreeSet::new();
            let set: Vec<Value> =
                set.into_iter().filter(|item| seen.insert(*item)).map(Value::from).collect();
            if !set.is_empty() {
                spec.insert("set".to_owned(), Value::Array(set));
            }
            if let Some(atomic) = atomic {
                spec.insert("atomic".to_owned(), json!(atomic));
            }
            object(json!({"apiVersion": "t/v1", "kind": "Sample", "metadata": metadata, "spec": spec}))
        },
    )
}

#[derive(Clone, Debug)]
enum Write {
    Apply { by: &'static str, fields: Object, force: bool },
    Update { by: &'static str, object: Object },
}

fn some_write() -> impl Strategy<Value = Write> {
    let by = prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        3 => (by.clone(), some_object(), any::<bool>())
            .prop_map(|(by, fields, force)| Write::Apply { by, fields, force }),
        1 => (by, some_object()).prop_map(|(by, object)| Write::Update { by, object }),
    ]
}

impl Story {
    fn write(&mut self, write: &Write) -> bool {
        match write {
            Write::Apply { by, fields, force } => self.try_apply(by, fields, *force).is_ok(),
            Write::Update { by, object } => {
                self.update_object(by, object.clone());
                true
            }
        }
    }
}

fn story(writes: &[Write]) -> Story {
    let mut story = Story::new();
    for write in writes {
        story.write(write);
    }
    story
}

/// What an object names that the first one does not.
fn apart(first: &Object, mut second: Object) -> Object {
    let names = |path: &[&str]| -> Vec<String> {
        first.at(path).and_then(Value::as_object).into_iter().flat_map(|map| map.keys().cloned()).collect()
    };
    let items = |path: &[&str]| -> Vec<Value> {
        first.at(path).and_then(Value::as_array).into_iter().flatten().cloned().collect()
    };
    let labels = names(&["metadata", "labels"]);
    if let Some(map) = second.metadata_mut().get_mut("labels").and_then(Value::as_object_mut) {
        map.retain(|name, _| !labels.contains(name));
    }
    let spec = second.0["spec"].as_object_mut().unwrap();
    let flat = names(&["spec", "flat"]);
    if let Some(map) = spec.get_mut("flat").and_then(Value::as_object_mut) {
        map.retain(|name, _| !flat.contains(name));
    }
    let (list, set) = (items(&["spec", "list"]), items(&["spec", "set"]));
    if let Some(own) = spec.get_mut("list").and_then(Value::as_array_mut) {
        own.retain(|item| list.iter().all(|other| other["name"] != item["name"]));
    }
    if let Some(own) = spec.get_mut("set").and_then(Value::as_array_mut) {
        own.retain(|item| !set.contains(item));
    }
    if first.at(&["spec", "atomic"]).is_some() {
        spec.remove("atomic");
    }
    second
}

/// The object without what is nobody's: the order of lists.
fn unordered(object: &Option<Object>) -> Option<Leaves> {
    object.as_ref().map(leaves)
}

proptest! {
    #[test]
    fn agrees_with_the_model(writes in prop::collection::vec(some_write(), 1..10)) {
        let (mut story, mut model) = (Story::new(), Model::default());
        for write in &writes {
            let done = story.write(write);
            match write {
                Write::Apply { by, fields, force } => {
                    prop_assert_eq!(model.apply(&applier(by), &leaves(fields), *force), done, "{:?}", write);
                }
                Write::Update { by, object } => model.update(&updater(by), &leaves(object)),
            }
            prop_assert_eq!(story.live.as_ref().map(leaves).unwrap_or_default(), model.leaves.clone(), "{:?}", write);
            let owners: BTreeMap<Manager, BTreeSet<String>> = story.managed.managers()
                .map(|(manager, _)| (manager.clone(), paths(story.managed.fields(manager).unwrap())))
                .filter(|(_, set)| !set.is_empty())
                .collect();
            prop_assert_eq!(&owners, &model.owners, "{:?}", write);
        }
    }

    #[test]
    fn applying_twice_is_applying_once(
        writes in prop::collection::vec(some_write(), 0..6), fields in some_object(), force in any::<bool>(),
    ) {
        let mut story = story(&writes);
        if story.try_apply("a", &fields, force).is_ok() {
            let once = story.clone();
            story.try_apply("a", &fields, force).unwrap();
            prop_assert_eq!(&story.live, &once.live);
            prop_assert_eq!(&story.managed, &once.managed);
            prop_assert_eq!(story.managed.to_stored(), once.managed.to_stored());
        }
    }

    #[test]
    fn appliers_of_different_fields_do_not_notice_each_other(
        first in some_object(), second in some_object(), writes in prop::collection::vec(some_write(), 0..4),
    ) {
        let second = apart(&first, second);
        let story = story(&writes);
        let run = |order: [(&str, &Object); 2]| {
            let mut story = story.clone();
            let done = order.map(|(name, fields)| story.try_apply(name, fields, true).is_ok());
            prop_assert!(done[0] && done[1]);
            Ok(story)
        };
        let (ab, ba) = (run([("m", &first), ("n", &second)])?, run([("n", &second), ("m", &first)])?);
        prop_assert_eq!(unordered(&ab.live), unordered(&ba.live));
        for name in ["m", "n"] {
            prop_assert_eq!(ab.managed.fields(&applier(name)), ba.managed.fields(&applier(name)));
        }
    }

    #[test]
    fn field_sets_round_trip(writes in prop::collection::vec(some_write(), 1..6)) {
        let story = story(&writes);
        let stored = story.managed.to_stored().unwrap();
        let read = Managed::from_stored(Some(&stored));
        prop_assert_eq!(&read, &story.managed);
        prop_assert_eq!(read.to_stored().unwrap(), stored.clone());
        let value: Value = serde_json::from_slice(&stored).unwrap();
        if value != json!([]) {
            prop_assert_eq!(&Managed::from_client(Some(&value)).unwrap(), &story.managed);
        }
    }

    #[test]
    fn set_algebra_is_that_of_sets(a in some_object(), b in some_object(), c in some_object()) {
        let set = |object: &Object| every_field(sample(), object);
        let flat = |set: &FieldSet| paths(set);
        let (a, b, c) = (set(&a), set(&b), applied_fields(sample(), &c));
        let mut union = a.clone();
        union.add(&b);
        prop_assert_eq!(flat(&union), flat(&a).union(&flat(&b)).cloned().collect());
        prop_assert_eq!(flat(&a.intersection(&c)), flat(&a).intersection(&flat(&c)).cloned().collect());
        let mut rest = union.clone();
        rest.remove(&c);
        prop_assert_eq!(flat(&rest), flat(&union).difference(&flat(&c)).cloned().collect());
        let mut cut = union.clone();
        cut.remove_trees(&c);
        prop_assert!(cut.leaves().iter().all(|steps| rest.contains(steps)));
        prop_assert!(union.leaves().iter().all(|steps| union.contains(steps)));
    }

    #[test]
    fn a_comparison_tells_the_whole_difference(old in some_object(), new in some_object()) {
        let change = compare(sample(), Some(&old), &new);
        let (before, after) = (leaves(&old), leaves(&new));
        let keys = |map: &Leaves| map.keys().cloned().collect::<BTreeSet<_>>();
        prop_assert_eq!(paths(&change.added), keys(&after).difference(&keys(&before)).cloned().collect());
        prop_assert_eq!(paths(&change.removed), keys(&before).difference(&keys(&after)).cloned().collect());
        let modified = before.iter().filter(|(path, value)| after.get(*path).is_some_and(|it| it != *value));
        prop_assert_eq!(paths(&change.modified), modified.map(|(path, _)| path.clone()).collect());
        prop_assert!(compare(sample(), Some(&new), &new).is_empty());
    }

    #[test]
    fn nothing_that_clients_send_makes_it_panic(
        fields in any_json(), live in any_json(), managed in any_json(), force in any::<bool>(),
    ) {
        let wrapped = |value: &Value| object(json!({"metadata": value, "spec": value, "odd": value}));
        let mut story = Story::new();
        story.live = Some(wrapped(&live));
        story.managed = Managed::from_client(Some(&managed)).unwrap_or_else(Managed::untracked);
        let _ = story.try_apply("kubectl", &wrapped(&fields), force);
        story.update_object("edit", wrapped(&fields));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "labels",
        "finalizers",
        "ownerReferences",
        "flat",
        "list",
        "ports",
        "set",
        "atomic",
        "whole",
        "open",
        "name",
        "port",
        "uid",
        "x",
        "f:spec",
        "f:list",
        "k:{}",
        "k:{\"name\":\"A\"}",
        ".",
        "v:1",
        "manager",
        "operation",
        "fieldsV1",
    ]);
    let leaf = prop_oneof![
        Just(json!(null)),
        Just(json!(1)),
        Just(json!("A")),
        Just(json!("Update")),
        Just(json!({})),
        Just(json!([])),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(names.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}
