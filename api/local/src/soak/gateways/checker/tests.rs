//! A story without faults passes; every rule is broken once, and seen.

use horchestra_core::object::{self, Object};
use horchestra_store::{Attribution, Change, Columns, Draft, Index};
use serde_json::{Value, json};

use super::*;
use crate::journal::Stopped;

const NODE: &str = "system:node:n1";

#[derive(Default)]
struct Story {
    judge: Judge,
    at: Moment,
    journal: Vec<Line>,
    stored: BTreeMap<Key, Arc<Entry>>,
}

impl Story {
    fn row(&mut self, kind: Kind, uid: u128, name: &str, change: ChangeKind, mut object: Value) {
        self.at += 1;
        let key = Key::namespaced(kind, "default", name);
        let uid = Uuid::from_u128(uid);
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!("default");
        object["metadata"]["uid"] = json!(uid.to_string());
        let object = Object::from_value(object).unwrap();
        let draft = Draft {
            key: key.clone(),
            uid,
            generation: object.generation(),
            deleting: object.is_deleting(),
            body: object::encode(kind, &object),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        let entry = Arc::new(Entry::new(draft, self.at, self.at));
        match change {
            ChangeKind::Deleted => self.stored.remove(&key),
            _ => self.stored.insert(key, Arc::clone(&entry)),
        };
        let change = Change {
            kind: change,
            revision: self.at,
            entry,
            previous: None,
            previous_columns: None,
            before: None,
        };
        let who = Attribution {
            user: NODE.to_owned(),
            verb: "update".to_owned(),
            audit_id: Uuid::new_v4(),
            trace: None,
        };
        self.judge.observe(&LogRow { change, previous_revision: 0, who, at: self.at });
    }

    /// An Application that is placed, and says this of itself.
    fn app(&mut self, uid: u128, node: &str, phase: &str, address: &str, also: Value) {
        let mut object = json!({
            "metadata": {"generation": 1},
            "spec": {"image": "x", "placement": {"nodeName": node}},
            "status": {"phase": phase, "observedGeneration": 1, "address": address},
        });
        for (path, value) in also.as_object().into_iter().flatten() {
            *object
                .pointer_mut("/spec")
                .unwrap()
                .as_object_mut()
                .unwrap()
                .entry(path)
                .or_insert(Value::Null) = value.clone();
        }
        self.row(Kind::Application, uid, &format!("app-{uid}"), ChangeKind::Modified, object);
    }

    fn erased(&mut self, uid: u128, node: &str) {
        let object = json!({"spec": {"image": "x", "placement": {"nodeName": node}}});
        self.row(Kind::Application, uid, &format!("app-{uid}"), ChangeKind::Deleted, object);
    }

    fn happens(&mut self, node: &str, event: Event) {
        self.at += 1;
        self.journal.push(Line { at: self.at, node: node.to_owned(), event });
    }

    fn says(&mut self, uid: u128, node: &str, phase: &str, address: &str) {
        let (uid, phase, address) = (Uuid::from_u128(uid), phase.to_owned(), address.to_owned());
        self.happens(node, Event::Reported { uid, phase, generation: 1, address });
    }

    fn stops(&mut self, uid: u128, node: &str) {
        self.happens(node, Event::Stopped { uid: Uuid::from_u128(uid), why: Stopped::Unwanted });
    }

    fn conclude(mut self, leases: &[(u128, &str)]) -> (Counts, Vec<String>) {
        let stored: Vec<Arc<Entry>> = self.stored.into_values().collect();
        let leases =
            leases.iter().map(|(uid, address)| (Uuid::from_u128(*uid), (*address).to_owned())).collect();
        self.judge.conclude(&self.journal, &stored, &leases);
        (self.judge.counts(), self.judge.into_violations())
    }
}

#[test]
fn a_story_in_which_everything_has_a_reason_passes() {
    let mut story = Story::default();
    story.app(1, "n1", "Running", "10.244.0.1/32", Value::Null);
    story.says(1, "n1", "Running", "10.244.0.1/32");
    // A job that ran, one that was deleted, one that moved, and a volume.
    story.app(2, "n1", "Succeeded", "", json!({"lifecycle": {"restartPolicy": "Never"}}));
    story.says(2, "n1", "Succeeded", "");
    story.stops(2, "n1");
    story.app(3, "n1", "Running", "10.244.0.2/32", Value::Null);
    story.erased(3, "n1");
    story.stops(3, "n1");
    story.app(4, "n1", "Running", "", Value::Null);
    story.app(4, "n2", "Running", "", Value::Null);
    story.stops(4, "n1");
    story.says(4, "n2", "Running", "");
    story.row(Kind::PersistentVolume, 9, "v", ChangeKind::Deleted, json!({"spec": {}}));
    story.happens("n1", Event::VolumeGone { volume: "default_v".to_owned(), kept: false });
    // The address of one that is gone.
    story.app(5, "n1", "Running", "10.244.0.2/32", Value::Null);
    story.says(5, "n1", "Running", "10.244.0.2/32");
    let (counts, violations) = story.conclude(&[(1, "10.244.0.1"), (5, "10.244.0.2")]);
    assert_eq!(violations, Vec::<String>::new());
    assert_eq!((counts.stopped, counts.volumes_gone, counts.compared), (3, 1, 4));
}

#[test]
fn whatever_has_no_reason_is_seen() {
    type Break = fn(&mut Story);
    let cases: [(&str, Break); 8] = [
        ("without a reason", |story| story.stops(1, "n1")),
        ("without a reason", |story| story.stops(77, "n1")),
        ("without a reason", |story| {
            // The reason comes later than the deed.
            story.stops(1, "n1");
            story.erased(1, "n1");
        }),
        ("was not deleted", |story| {
            story.happens("n1", Event::VolumeGone { volume: "default_v".to_owned(), kept: false });
        }),
        ("reports the address", |story| {
            story.app(2, "n2", "Running", "10.244.0.1/32", Value::Null);
            story.says(2, "n2", "Running", "10.244.0.1/32");
        }),
        ("said \"Failed\"", |story| story.says(1, "n1", "Failed", "")),
        ("no node said so", |story| story.app(3, "n1", "Running", "", Value::Null)),
        ("leased is None", |story| {
            story.app(4, "n1", "Running", "10.244.0.9/32", Value::Null);
            story.says(4, "n1", "Running", "10.244.0.9/32");
        }),
    ];
    for (expected, break_it) in cases {
        let mut story = Story::default();
        story.app(1, "n1", "Running", "10.244.0.1/32", Value::Null);
        story.says(1, "n1", "Running", "10.244.0.1/32");
        break_it(&mut story);
        let (_, violations) = story.conclude(&[(1, "10.244.0.1"), (2, "10.244.0.1")]);
        assert!(violations.len() == 1 && violations[0].contains(expected), "{expected:?}: {violations:?}");
    }
}
