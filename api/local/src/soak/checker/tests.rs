//! Every rule is broken once, and a story in which none is broken passes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application_set::{HASH_ANNOTATION, expand};
use horchestra_core::object::{self, Object};
use horchestra_store::backend::LogRow;
use horchestra_store::{Attribution, Change, ChangeKind, Columns, Draft, Entry, Index, Revision};
use serde_json::{Value, json};
use uuid::Uuid;

use super::promises::TURN;
use super::{Acknowledged, Checker, Promise, Rule, SCHEDULER, SETS};

const AUTHOR: &str = "admin";
const AGENT: &str = "system:node:n1";

/// A log in the making.
#[derive(Default)]
struct Story {
    checker: Checker,
    stored: BTreeMap<Key, Arc<Entry>>,
    uids: HashMap<Key, Uuid>,
    last: Revision,
}

fn key(kind: Kind, name: &str) -> Key {
    if kind.namespaced() { Key::namespaced(kind, "default", name) } else { Key::cluster(kind, name) }
}

fn app(name: &str) -> Key {
    key(Kind::Application, name)
}

impl Story {
    /// Two ready nodes of two cores each.
    fn begin() -> Story {
        let mut story = Story::default();
        for name in ["n1", "n2"] {
            story.write(AUTHOR, "create", Kind::Node, &node(name));
        }
        story
    }

    fn uid(&self, key: &Key) -> Uuid {
        self.uids[key]
    }

    /// Adds or changes an object: `object` is all of it, but for what the store adds.
    fn write(&mut self, user: &str, verb: &str, kind: Kind, object: &Value) {
        let mut object = object.clone();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = key(kind, &name);
        let uid = *self.uids.entry(key.clone()).or_insert_with(Uuid::new_v4);
        object["metadata"]["uid"] = json!(uid.to_string());
        object["metadata"]["namespace"] = json!(key.namespace);
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
        let entry = Arc::new(Entry::new(draft, self.last + 1, self.last + 1));
        let before = self.stored.insert(key, Arc::clone(&entry));
        let kind = if before.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.row(user, verb, kind, entry, before);
    }

    fn erase(&mut self, user: &str, key: &Key) {
        let before = self.stored.remove(key).unwrap();
        self.uids.remove(key);
        let entry = Arc::new(before.deleted_at(self.last + 1));
        self.row(user, "delete", ChangeKind::Deleted, entry, Some(before));
    }

    fn row(
        &mut self,
        user: &str,
        verb: &str,
        kind: ChangeKind,
        entry: Arc<Entry>,
        before: Option<Arc<Entry>>,
    ) {
        self.last += 1;
        let change =
            Change { kind, revision: self.last, entry, previous: None, previous_columns: None, before: None };
        let who = Attribution {
            user: user.to_owned(),
            verb: verb.to_owned(),
            audit_id: Uuid::new_v4(),
            trace: None,
        };
        let previous_revision = before.map_or(0, |entry| entry.revision);
        self.checker.observe(&LogRow { change, previous_revision, who, at: 0 });
    }

    fn put(&mut self, user: &str, object: &Value) {
        self.write(user, "update", Kind::Application, object);
    }

    fn bind(&mut self, name: &str, node: &str, cpu: &str) {
        let mut bound = application(name, cpu, 2);
        bound["spec"]["placement"] = json!({"nodeName": node});
        self.write(SCHEDULER, "bind", Kind::Application, &bound);
    }

    fn rules(&self) -> Vec<Rule> {
        self.checker.violations().iter().map(|violation| violation.rule).collect()
    }

    /// Ends the story with what was stored by it.
    fn conclude(&mut self, acknowledged: &[Acknowledged]) {
        let stored: Vec<Arc<Entry>> = self.stored.values().cloned().collect();
        self.checker.conclude(&stored, acknowledged);
    }
}

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {}, "status": {
        "ready": true, "capacity": {"cpu": "2", "memory": "4Gi"},
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "Admitted", "status": "True"}],
    }})
}

fn application(name: &str, cpu: &str, generation: i64) -> Value {
    json!({
        "metadata": {"name": name, "generation": generation},
        "spec": {"image": "x", "resources": {"requests": {"cpu": cpu}}},
    })
}

#[test]
fn placement_goes_once_and_where_there_is_room() {
    type Tale = fn(&mut Story);
    let tales: &[(&str, Tale, &[Rule])] = &[
        ("two that fit", |story| ["a", "b"].iter().for_each(|name| story.bind(name, "n1", "1")), &[]),
        (
            "one too many",
            |story| ["a", "b", "c"].iter().for_each(|name| story.bind(name, "n1", "900m")),
            &[Rule::Overcommitted],
        ),
        (
            "room that was left by one that went",
            |story| {
                story.bind("a", "n1", "2");
                story.erase(AGENT, &app("a"));
                story.bind("b", "n1", "2");
            },
            &[],
        ),
        (
            "room that was left by one that is done",
            |story| {
                story.bind("a", "n1", "2");
                let mut done = application("a", "2", 2);
                done["spec"]["placement"] = json!({"nodeName": "n1"});
                done["status"] = json!({"phase": "Succeeded", "observedGeneration": 2});
                story.put(AGENT, &done);
                story.bind("b", "n1", "2");
            },
            &[],
        ),
        (
            "one that grows where it is",
            |story| {
                story.bind("a", "n1", "1");
                story.bind("b", "n1", "1");
                let mut grown = application("a", "1500m", 3);
                grown["spec"]["placement"] = json!({"nodeName": "n1"});
                story.put(AUTHOR, &grown);
            },
            &[Rule::Overcommitted],
        ),
        (
            "a node that shrinks under what it has",
            |story| {
                story.bind("a", "n1", "2");
                let mut small = node("n1");
                small["status"]["capacity"]["cpu"] = json!("1");
                story.write(AGENT, "status", Kind::Node, &small);
            },
            &[],
        ),
        (
            "bound again to where it is",
            |story| {
                story.bind("a", "n1", "1");
                story.bind("a", "n1", "1");
            },
            &[Rule::BoundTwice],
        ),
        (
            "bound elsewhere",
            |story| {
                story.bind("a", "n1", "1");
                story.bind("a", "n2", "1");
            },
            &[Rule::BoundTwice, Rule::Moved],
        ),
        (
            "unbound",
            |story| {
                story.bind("a", "n1", "1");
                story.put(AUTHOR, &application("a", "1", 3));
            },
            &[Rule::Moved],
        ),
        (
            "another of the same name",
            |story| {
                story.bind("a", "n1", "1");
                story.erase(AGENT, &app("a"));
                story.bind("a", "n2", "1");
            },
            &[],
        ),
        ("a node that is not there", |story| story.bind("a", "n3", "1"), &[Rule::ClosedNode]),
        (
            "a node that was cordoned",
            |story| {
                let mut cordoned = node("n1");
                cordoned["spec"]["unschedulable"] = json!(true);
                story.write(AUTHOR, "update", Kind::Node, &cordoned);
                story.bind("a", "n1", "1");
            },
            &[Rule::ClosedNode],
        ),
        (
            "a node that fell silent",
            |story| {
                let mut silent = node("n1");
                silent["status"]["conditions"][0]["status"] = json!("Unknown");
                story.write("system:loop:node-lifecycle", "status", Kind::Node, &silent);
                story.bind("a", "n1", "1");
            },
            &[Rule::ClosedNode],
        ),
    ];
    for (what, tell, expected) in tales {
        let mut story = Story::begin();
        for name in ["a", "b", "c"] {
            story.put(AUTHOR, &application(name, "1", 1));
        }
        tell(&mut story);
        assert_eq!(story.rules(), *expected, "{what}: {:?}", story.checker.violations());
    }
}

/// A set of one step and three that are kept running, with a budget of one.
fn set(image: &str) -> Value {
    json!({"metadata": {"name": "web", "generation": 1}, "spec": {"rollout": {"maxUnavailable": 1}, "applications": [
        {"name": "init", "spec": {"image": image, "lifecycle": {"restartPolicy": "Never"}}},
        {"name": "a", "spec": {"image": image}, "scale": {"replicas": 3}},
    ]}})
}

/// What the loop makes of a child.
fn child(story: &Story, of: &Value, name: &str) -> Value {
    let mut of = of.clone();
    of["metadata"]["uid"] = json!(story.uid(&key(Kind::ApplicationSet, "web")).to_string());
    of["metadata"]["namespace"] = json!("default");
    let expansion = expand(&Object::from_value(of).unwrap(), &[]).unwrap();
    let found = expansion.children.into_iter().find(|child| child.name() == name).unwrap();
    let mut child = found.object.into_value();
    assert!(child["metadata"]["annotations"][HASH_ANNOTATION].is_string());
    child["metadata"]["generation"] = json!(1);
    child
}

fn on_node(mut child: Value, generation: i64, phase: &str) -> Value {
    child["metadata"]["generation"] = json!(generation);
    child["spec"]["placement"] = json!({"nodeName": "n1"});
    child["status"] = json!({"phase": phase, "observedGeneration": generation});
    child
}

/// The set of image `x`, all of it done and running.
fn running_set() -> Story {
    let mut story = Story::begin();
    story.write(AUTHOR, "create", Kind::ApplicationSet, &set("x"));
    for name in ["web-init", "web-a-0", "web-a-1", "web-a-2"] {
        let made = child(&story, &set("x"), name);
        story.put(SETS, &made);
        let phase = if name == "web-init" { "Succeeded" } else { "Running" };
        story.put(AGENT, &on_node(made, 1, phase));
    }
    assert_eq!(story.rules(), []);
    assert_eq!(story.checker.counts().children, 4);
    story
}

/// The loop brings a child to an image, and its node starts to run it, where `runs`.
fn roll(story: &mut Story, name: &str, image: &str, runs: bool) {
    let mut changed = on_node(child(story, &set(image), name), 2, "Running");
    changed["status"]["observedGeneration"] = json!(1);
    story.put(SETS, &changed);
    if runs {
        let phase = if name == "web-init" { "Succeeded" } else { "Running" };
        story.put(AGENT, &on_node(changed, 2, phase));
    }
}

fn edit(story: &mut Story, change: impl FnOnce(&mut Value)) {
    let mut edited = set("y");
    change(&mut edited);
    story.write(AUTHOR, "update", Kind::ApplicationSet, &edited);
}

#[test]
fn rollouts_keep_to_order_and_budget() {
    type Tale = fn(&mut Story);
    let tales: &[(&str, Tale, &[Rule])] = &[
        (
            "one after the other",
            |story| {
                for name in ["web-init", "web-a-0", "web-a-1", "web-a-2"] {
                    roll(story, name, "y", true);
                }
            },
            &[],
        ),
        (
            "two at a time",
            |story| {
                roll(story, "web-init", "y", true);
                roll(story, "web-a-0", "y", false);
                roll(story, "web-a-1", "y", false);
            },
            &[Rule::Budget],
        ),
        (
            "the second while another failed by itself",
            |story| {
                roll(story, "web-init", "y", true);
                let failed = on_node(child(story, &set("x"), "web-a-2"), 1, "Failed");
                story.put(AGENT, &failed);
                roll(story, "web-a-0", "y", false);
            },
            &[Rule::Budget],
        ),
        (
            "one that is down anyway, while another is down",
            |story| {
                roll(story, "web-init", "y", true);
                for name in ["web-a-1", "web-a-2"] {
                    let failed = on_node(child(story, &set("x"), name), 1, "Failed");
                    story.put(AGENT, &failed);
                }
                roll(story, "web-a-1", "y", false);
            },
            &[],
        ),
        (
            "two on a node that fell silent",
            |story| {
                roll(story, "web-init", "y", true);
                let mut silent = node("n1");
                silent["status"]["conditions"][0]["status"] = json!("Unknown");
                story.write("system:loop:node-lifecycle", "status", Kind::Node, &silent);
                roll(story, "web-a-0", "y", false);
                roll(story, "web-a-1", "y", false);
            },
            &[],
        ),
        ("before the step", |story| roll(story, "web-a-0", "y", false), &[Rule::OutOfOrder]),
        (
            "before the step is done",
            |story| {
                roll(story, "web-init", "y", false);
                roll(story, "web-a-0", "y", false);
            },
            &[Rule::OutOfOrder],
        ),
        (
            "paused",
            |story| {
                edit(story, |set| set["spec"]["rollout"]["paused"] = json!(true));
                roll(story, "web-init", "y", false);
            },
            &[Rule::SetGone],
        ),
        (
            "frozen",
            |story| {
                edit(story, |set| set["spec"]["frozen"] = json!(true));
                roll(story, "web-init", "y", false);
            },
            &[Rule::SetGone],
        ),
        ("one that is wanted goes", |story| story.erase(SETS, &app("web-a-1")), &[Rule::Wanted]),
        (
            "one that is not wanted goes",
            |story| {
                edit(story, |set| set["spec"]["applications"][1]["scale"]["replicas"] = json!(2));
                story.erase(SETS, &app("web-a-2"));
            },
            &[],
        ),
        (
            "one is made that nobody wants",
            |story| {
                let spare = child(story, &set("y"), "web-a-2");
                story.erase(AGENT, &app("web-a-2"));
                edit(story, |set| set["spec"]["applications"][1]["scale"]["replicas"] = json!(2));
                story.put(SETS, &spare);
            },
            &[Rule::Unwanted],
        ),
        (
            "one is made for a set that is deleted",
            |story| {
                let again = child(story, &set("x"), "web-a-0");
                edit(story, |set| set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
                story.erase(SETS, &app("web-a-0"));
                story.put(SETS, &again);
            },
            &[Rule::SetGone],
        ),
        (
            "one is made for a set that is gone",
            |story| {
                let again = child(story, &set("x"), "web-a-0");
                story.erase(AGENT, &app("web-a-0"));
                story.erase(AUTHOR, &key(Kind::ApplicationSet, "web"));
                story.put(SETS, &again);
            },
            &[Rule::SetGone],
        ),
        (
            "one is made for the predecessor of the set",
            |story| {
                let again = child(story, &set("x"), "web-a-0");
                story.erase(AGENT, &app("web-a-0"));
                story.erase(AUTHOR, &key(Kind::ApplicationSet, "web"));
                story.write(AUTHOR, "create", Kind::ApplicationSet, &set("x"));
                story.put(SETS, &again);
            },
            &[Rule::SetGone],
        ),
        (
            "children are let go of",
            |story| {
                let mut free = on_node(child(story, &set("x"), "web-a-0"), 1, "Running");
                free["metadata"]["ownerReferences"] = json!([]);
                edit(story, |set| set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
                story.put(SETS, &free);
            },
            &[],
        ),
    ];
    for (what, tell, expected) in tales {
        let mut story = running_set();
        edit(&mut story, |_| ());
        tell(&mut story);
        assert_eq!(story.rules(), *expected, "{what}: {:?}", story.checker.violations());
    }
    let mut story = running_set();
    edit(&mut story, |_| ());
    roll(&mut story, "web-init", "y", true);
    roll(&mut story, "web-a-0", "y", true);
    assert_eq!(story.checker.counts().disruptions, 1, "the step is not counted");
}

#[test]
fn a_log_with_a_hole_or_a_change_of_an_old_version_is_noticed() {
    let mut story = Story::begin();
    story.last += 1;
    story.put(AUTHOR, &application("a", "1", 1));
    assert_eq!(story.rules(), [Rule::Hole]);

    let mut story = Story::begin();
    story.put(AUTHOR, &application("a", "1", 1));
    let old = Arc::clone(&story.stored[&app("a")]);
    story.put(AUTHOR, &application("a", "1", 2));
    let entry = Arc::new(old.deleted_at(story.last + 1));
    story.row(AUTHOR, "delete", ChangeKind::Deleted, entry, Some(old));
    assert_eq!(story.rules(), [Rule::Stale]);
}

#[test]
fn what_was_acknowledged_is_there() {
    let turned = |turn: u64| {
        let mut app = application("a", "1", 1);
        app["metadata"]["annotations"] = json!({TURN: turn.to_string()});
        app["spec"]["placement"] = json!({"nodeName": "n1"});
        app
    };
    let mut story = Story::begin();
    story.put(AUTHOR, &turned(1));
    story.put(AUTHOR, &turned(2));
    let (uid, at) = (story.uid(&app("a")), story.last);
    let told = |promise, turn| Acknowledged { key: app("a"), uid, promise, turn };
    let cases = [
        ("as it is", told(Promise::Written(at), Some(2)), None),
        ("an earlier one", told(Promise::Written(at - 1), Some(1)), None),
        ("a revision of something else", told(Promise::Written(1), None), Some(Rule::Lost)),
        ("a revision that never was", told(Promise::Written(at + 1), None), Some(Rule::Lost)),
        ("a turn that never was", told(Promise::Written(at), Some(3)), Some(Rule::Lost)),
        ("a deletion", told(Promise::Deleted, None), Some(Rule::Undead)),
    ];
    for (what, told, expected) in cases {
        let before = story.rules().len();
        story.conclude(&[told]);
        assert_eq!(story.rules()[before..], *expected.as_slice(), "{what}");
    }
    let before = story.rules().len();
    story.put(SETS, &turned(1));
    assert!(story.rules()[before..].contains(&Rule::Undone), "an older state was put back");
    story.erase(AGENT, &app("a"));
    let before = story.rules().len();
    story.conclude(&[told(Promise::Deleted, None), told(Promise::Written(at), Some(2))]);
    assert_eq!(story.rules()[before..], [], "gone, as was said");
}

#[test]
fn in_the_end_all_is_placed_and_the_store_has_what_the_log_says() {
    let mut story = Story::begin();
    story.put(AUTHOR, &application("a", "1", 1));
    story.conclude(&[]);
    assert_eq!(story.rules(), [Rule::Unbound]);

    type Change = fn(&mut Vec<Arc<Entry>>);
    let cases: &[(&str, Change)] = &[
        ("one is missing", |stored| drop(stored.pop())),
        ("one is newer", |stored| {
            let entry = stored.pop().unwrap();
            stored.push(Arc::new(entry.deleted_at(entry.revision + 1)));
        }),
        ("one is not in the log", |stored| {
            let mut other = Story::begin();
            other.put(AUTHOR, &application("a", "1", 1));
            stored.push(other.stored.remove(&app("a")).unwrap());
        }),
    ];
    for (what, change) in cases {
        let mut story = Story::begin();
        let mut stored: Vec<Arc<Entry>> = story.stored.values().cloned().collect();
        change(&mut stored);
        story.checker.conclude(&stored, &[]);
        assert_eq!(story.rules(), [Rule::Different], "{what}");
    }
}
