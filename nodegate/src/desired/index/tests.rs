use horchestra_core::object::{self, Object};
use horchestra_store::{Columns, Draft, Holding, Index as Fields};
use serde_json::{Value, json};

use super::*;
use crate::desired::decision::Fate;

const GOOD: &str = "registry.example/app:1";

/// What happens, to what, and who hears of it.
type Step<'a> = (&'a str, ChangeKind, Version, Vec<(String, Hurry)>);

struct Version {
    kind: Kind,
    object: Value,
}

impl Version {
    fn entry(&self, revision: i64) -> Arc<Entry> {
        let object = Object::from_value(self.object.clone()).unwrap();
        let text = |path: &[&str]| Some(object.str_at(path).to_owned()).filter(|text| !text.is_empty());
        let columns = Columns {
            node: text(&["spec", "placement", "nodeName"]),
            phase: text(&["status", "phase"]),
            ..Columns::default()
        };
        let draft = Draft {
            key: object.key(self.kind),
            uid: object.uid().parse().unwrap(),
            generation: object.generation(),
            deleting: object.is_deleting(),
            body: object::encode(self.kind, &object),
            managed: None,
            index: Fields::default(),
            columns,
            edges: Vec::new(),
        };
        Arc::new(Entry::new(draft, revision, revision))
    }
}

fn node(admitted: bool) -> Version {
    let status = if admitted { "True" } else { "False" };
    let condition = json!({
        "type": "Admitted", "status": status, "reason": "Test", "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    });
    let status = json!({"capacity": {}, "allocated": {}, "ready": true, "conditions": [condition]});
    let metadata = json!({"name": "n1", "uid": Uuid::from_u128(1).to_string()});
    Version { kind: Kind::Node, object: json!({"metadata": metadata, "spec": {}, "status": status}) }
}

fn app(uid: u128, generation: i64, image: Value) -> Version {
    Version {
        kind: Kind::Application,
        object: json!({
            "metadata": {
                "name": "web", "namespace": "team", "uid": Uuid::from_u128(uid).to_string(),
                "generation": generation,
            },
            "spec": {"image": image, "placement": {"nodeName": "n1"}},
            "status": {},
        }),
    }
}

impl Version {
    fn with(mut self, pointer: &str, value: Value) -> Version {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        self.object.pointer_mut(parent).unwrap()[member] = value;
        self
    }
}

struct Log {
    index: Index,
    revision: i64,
}

impl Log {
    fn new() -> Log {
        let index = Index::default();
        index.state.write().loaded = true;
        Log { index, revision: 0 }
    }

    fn change(&mut self, kind: ChangeKind, version: &Version) -> Vec<(String, Hurry)> {
        self.revision += 1;
        let entry = version.entry(self.revision);
        let change = Change {
            kind,
            revision: self.revision,
            entry,
            previous: None,
            previous_columns: None,
            before: None,
        };
        self.index.apply(&[change]).into_iter().map(|ring| (ring.node, ring.hurry)).collect()
    }

    fn put(&mut self, version: &Version) -> Vec<(String, Hurry)> {
        self.change(ChangeKind::Modified, version)
    }

    /// Images that the node is sent; `None` when nothing is.
    fn images(&self) -> Option<Vec<String>> {
        let View::Complete { applications, .. } = self.index.view("n1") else { return None };
        let image = |form: &Arc<Form>| {
            let sent: Value = serde_json::from_slice(&form.bytes()).unwrap();
            sent["spec"]["image"].as_str().unwrap().to_owned()
        };
        Some(applications.iter().map(image).collect())
    }
}

#[test]
fn who_has_to_hear_of_a_change() {
    let mut log = Log::new();
    let urgent = |node: &str| (node.to_owned(), Hurry::Urgent);
    let normal = |node: &str| (node.to_owned(), Hurry::Normal);
    let deleted = json!("2030-01-01T00:00:00Z");
    let steps: [Step<'_>; 14] = [
        ("a node appears", ChangeKind::Added, node(false), vec![urgent("n1")]),
        ("its status changes", ChangeKind::Modified, node(false).with("/status/os", json!("x")), vec![]),
        ("it is admitted", ChangeKind::Modified, node(true), vec![urgent("n1")]),
        ("a placement", ChangeKind::Added, app(7, 1, json!(GOOD)), vec![urgent("n1")]),
        (
            "a report",
            ChangeKind::Modified,
            app(7, 1, json!(GOOD)).with("/status/phase", json!("Running")),
            vec![],
        ),
        (
            "a label",
            ChangeKind::Modified,
            app(7, 1, json!(GOOD)).with("/metadata/labels", json!({"a": "b"})),
            vec![],
        ),
        ("an edit", ChangeKind::Modified, app(7, 2, json!(GOOD)), vec![normal("n1")]),
        (
            "a freeze, which moves no generation",
            ChangeKind::Modified,
            app(7, 2, json!(GOOD)).with("/spec/frozen", json!(true)),
            vec![normal("n1")],
        ),
        (
            "a deletion mark",
            ChangeKind::Modified,
            app(7, 2, json!(GOOD)).with("/metadata/deletionTimestamp", deleted.clone()),
            vec![urgent("n1")],
        ),
        ("its erasure", ChangeKind::Deleted, app(7, 2, json!(GOOD)), vec![normal("n1")]),
        ("the name again", ChangeKind::Added, app(8, 1, json!(GOOD)), vec![urgent("n1")]),
        (
            "a move",
            ChangeKind::Modified,
            app(8, 2, json!(GOOD)).with("/spec/placement/nodeName", json!("n2")),
            vec![urgent("n1"), urgent("n2")],
        ),
        (
            "the end of the placement",
            ChangeKind::Modified,
            app(8, 3, json!(GOOD)).with("/spec/placement", json!({})),
            vec![normal("n2")],
        ),
        ("the end of the node", ChangeKind::Deleted, node(true), vec![urgent("n1")]),
    ];
    for (what, kind, version, expected) in steps {
        assert_eq!(log.change(kind, &version), expected, "{what}");
    }
    assert!(matches!(log.index.view("n1"), View::Absent));
}

fn secret(name: &str, contents: &str, store: &str) -> Version {
    let annotations = json!({"secrets.horchestra.io/store": store, "note": "x"});
    let uid = Uuid::from_u128(50).to_string();
    Version {
        kind: Kind::Secret,
        object: json!({
            "metadata": {"name": name, "namespace": "team", "uid": uid, "annotations": annotations},
            "type": "horchestra.io/vault",
            "sealed": {"key": "k", "digest": contents, "payload": ""},
        }),
    }
}

fn store(name: &str, server: &str) -> Version {
    let metadata = json!({"name": name, "namespace": "team", "uid": Uuid::from_u128(60).to_string()});
    Version { kind: Kind::SecretStore, object: json!({"metadata": metadata, "spec": {"server": server}}) }
}

#[test]
fn a_change_of_a_secret_rings_the_nodes_that_use_it() {
    let mut log = Log::new();
    let uses = |node: &str, name: &str, secret: &str| {
        let volume = json!([{"mountPath": "/m", "volume": {"type": "secret", "name": secret}}]);
        app(7, 1, json!(GOOD))
            .with("/metadata/name", json!(name))
            .with("/spec/placement/nodeName", json!(node))
            .with("/spec/volumes", volume)
    };
    for version in [uses("n1", "a", "s"), uses("n1", "b", "s"), uses("n2", "c", "s"), uses("n3", "d", "t")] {
        log.put(&version);
    }
    let ended = uses("n4", "e", "s")
        .with("/spec/lifecycle", json!({"restartPolicy": "Never"}))
        .with("/status", json!({"phase": "Succeeded", "observedGeneration": 1}));
    log.put(&ended);
    let label = json!({"a": "b"});
    let steps: [(&str, Version, &[&str]); 14] = [
        ("it comes", secret("s", "1", "v"), &["n1", "n2"]),
        ("it is as it was", secret("s", "1", "v"), &[]),
        ("a label", secret("s", "1", "v").with("/metadata/labels", label), &[]),
        ("its contents", secret("s", "2", "v"), &["n1", "n2"]),
        ("its store", secret("s", "2", "w"), &["n1", "n2"]),
        ("its type", secret("s", "2", "w").with("/type", json!("Opaque")), &["n1", "n2"]),
        ("its type again", secret("s", "2", "w"), &["n1", "n2"]),
        ("one of that name elsewhere", secret("s", "9", "w").with("/metadata/namespace", json!("x")), &[]),
        ("one that nobody uses", secret("u", "1", "v"), &[]),
        ("one that another node uses", secret("t", "1", "v"), &["n3"]),
        ("the store that it named before", store("v", "a"), &["n3"]),
        ("the store", store("w", "a"), &["n1", "n2"]),
        ("the store as it was", store("w", "a"), &[]),
        ("what the store says", store("w", "b"), &["n1", "n2"]),
    ];
    for (what, version, expected) in steps {
        let rung: Vec<String> = log.put(&version).into_iter().map(|(node, _)| node).collect();
        assert_eq!(rung, expected, "{what}");
    }
    // Nobody uses it any more.
    for name in ["a", "b"] {
        log.put(&uses("n1", name, "other"));
    }
    log.change(ChangeKind::Deleted, &uses("n2", "c", "s"));
    assert_eq!(log.put(&secret("s", "3", "w")), []);
    assert_eq!(log.change(ChangeKind::Deleted, &secret("s", "3", "w")), []);
    assert_eq!(log.change(ChangeKind::Deleted, &secret("t", "1", "v")).len(), 1);
}

#[test]
fn an_index_that_missed_changes_says_nothing() {
    let mut log = Log::new();
    log.put(&node(true));
    assert_eq!(log.images(), Some(vec![]));
    log.index.unload();
    assert!(matches!(log.index.view("n1"), View::Unknown));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_revision_takes_a_loaded_index_that_has_it() {
    let log = Log::new();
    let waits = async |revision| {
        tokio::time::timeout(std::time::Duration::from_secs(1), log.index.reach(revision)).await.is_err()
    };
    log.index.note_reached(7);
    assert!(waits(1).await, "not loaded");
    log.index.reached.send_replace(Some(5));
    assert_eq!((waits(5).await, waits(6).await), (false, true));
    log.index.note_reached(7);
    log.index.note_reached(6);
    assert_eq!((waits(7).await, waits(8).await), (false, true), "it never goes back");
    log.index.unload();
    assert!(waits(5).await, "changes were missed");
}

#[test]
fn what_cannot_be_sent_keeps_its_last_good_form() {
    let mut log = Log::new();
    log.put(&node(true));
    log.put(&app(7, 1, json!(GOOD)));
    assert_eq!(log.put(&app(7, 2, json!(7))), [], "nothing changes for the node");
    assert_eq!(log.images(), Some(vec![GOOD.to_owned()]));
    // It can still be ended, and another bearer of the name owes it nothing.
    let deleted = json!("2030-01-01T00:00:00Z");
    log.put(&app(7, 2, json!(7)).with("/metadata/deletionTimestamp", deleted));
    let View::Complete { applications, .. } = log.index.view("n1") else { panic!("complete") };
    assert!(applications[0].signature.deleting);
    log.put(&app(8, 1, json!(7)));
    assert_eq!(log.images(), Some(vec![]), "it never ran, so it is left out");
    log.put(&app(8, 2, json!("registry.example/app:2")));
    assert_eq!(log.images(), Some(vec!["registry.example/app:2".to_owned()]));
}

#[test]
fn what_may_be_held_is_compared_with_what_is_to_be_sent() {
    let held = |uid: u128| Holding {
        key: Key::namespaced(Kind::Application, "team", "web"),
        uid: Uuid::from_u128(uid),
    };
    let volume = Holding { key: Key::namespaced(Kind::PersistentVolume, "team", "web"), ..held(7) };
    let job = app(7, 1, json!(GOOD)).with("/spec/lifecycle", json!({"restartPolicy": "Never"}));
    let ended = json!({"phase": "Succeeded", "observedGeneration": 1});
    // What the database says, and why the one on record is not to be sent: `None` = it is.
    let cases = [
        ("it is there", app(7, 1, json!(GOOD)), None),
        ("the name has another bearer", app(8, 1, json!(GOOD)), Some(None)),
        (
            "it is on another node",
            app(7, 1, json!(GOOD)).with("/spec/placement/nodeName", json!("n2")),
            Some(Some(Fate::Moved)),
        ),
        ("it is on none", app(7, 1, json!(GOOD)).with("/spec/placement", json!({})), Some(None)),
        ("it has run to its end", job.with("/status", ended), Some(Some(Fate::Finished))),
        ("it cannot be sent", app(7, 1, json!(7)), Some(Some(Fate::Unsendable))),
    ];
    for (what, version, expected) in cases {
        let mut log = Log::new();
        log.put(&node(true));
        log.put(&version);
        let (_, missing) = log.index.survey("n1", &[held(7)]);
        assert_eq!(missing.first().map(|(_, fate)| *fate), expected, "{what}");
    }
    let mut log = Log::new();
    log.put(&node(false));
    assert_eq!(log.index.survey("n1", &[held(7)]).1, [], "of a node that is not admitted nothing is asked");
    log.put(&node(true));
    assert_eq!(log.index.survey("n1", std::slice::from_ref(&volume)).1, [(volume, None)]);
}

#[test]
fn nothing_is_pushed_rather_than_tearing_down_what_cannot_be_sent() {
    let mut log = Log::new();
    log.put(&node(true));
    log.put(&app(7, 1, json!(7)).with("/status/phase", json!("Running")));
    assert!(matches!(log.index.view("n1"), View::Blocked { .. }));
    log.put(&app(7, 1, json!(7)).with("/status/phase", json!("Pending")));
    assert_eq!(log.images(), Some(vec![]));
}
