//! One story that gives every loop something to do, told in chapters, and what there is in the end.

use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::{Order, Propagation};
use serde_json::{Value, json};

use super::plane::{Plane, app, node, operator, set, somebody, volume};
use crate::certificates::support::{object, request};
use crate::sets::world::{component, replicas, step};

pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
pub const CHAPTERS: usize = 5;

fn web(image: &str, count: usize, more: bool) -> Value {
    let mut api = replicas("api", image, count);
    api["spec"]["ports"] = json!([{"name": "http", "port": 80}]);
    let mut components = vec![step("init", image), api];
    components.extend(more.then(|| component("more", image)));
    json!({"applications": components, "rollout": {"maxUnavailable": 1}})
}

/// A volume, and volumes that go when it goes.
async fn family(plane: &Plane, name: &str) {
    let owner = json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {}});
    let owner = plane.create(owner).await.unwrap().entry;
    let reference = json!([{
        "apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": name, "uid": owner.uid.to_string(),
        "blockOwnerDeletion": true,
    }]);
    for child in ["a", "b"] {
        let metadata = json!({"name": format!("{name}-{child}"), "ownerReferences": reference});
        plane.create(json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}})).await.unwrap();
    }
}

/// What happens outside in a chapter.
pub async fn tell(plane: &mut Plane, chapter: usize) {
    match chapter {
        // Things to place, to expand, to sign.
        0 => {
            let mounts = json!([{"mountPath": "/data", "volume": {"type": "pv", "size": "1Gi"}}]);
            let solo = json!({"metadata": {"name": "solo"}, "spec": {"image": "x", "volumes": mounts}});
            plane.create(solo).await.unwrap();
            plane.run("too-large", "100").await;
            plane.put_set("web", web("x", 2, true)).await;
            plane.put_set("left", json!({"applications": [component("a", "x")]})).await;
            plane.put_set("freed", json!({"applications": [replicas("a", "x", 2)]})).await;
            for name in ["back", "fore", "leave"] {
                family(plane, name).await;
            }
            let agent = somebody("n1", &["system:nodes"]);
            for (who, name, about) in [(&agent, "renewal", "n1"), (&operator(), "stranger", "n9")] {
                plane.create_as(who, object_of(name, about)).await.unwrap();
            }
        }
        // A rollout, deletions, and a node that falls silent.
        1 => {
            plane.put_set("web", web("y", 3, false)).await;
            plane.delete(&volume("back"), None).await;
            plane.delete(&volume("fore"), Some(Propagation::Foreground)).await;
            plane.delete(&volume("leave"), Some(Propagation::Orphan)).await;
            plane.silent.insert("n3".to_owned());
        }
        // It is back. Something shrinks and fits. A set goes and leaves its children behind, another one is forced
        // out before anybody has seen to its children.
        2 => {
            plane.silent.clear();
            let smaller = json!({"spec": {"resources": {"requests": {"cpu": "1"}}}});
            plane.merge(&app("too-large"), smaller).await.unwrap();
            plane.delete(&set("freed"), Some(Propagation::Orphan)).await;
            plane.delete(&set("left"), None).await;
            let holds = vec!["horchestra.io/child-teardown".to_owned()];
            let order = Order { finalizers: Some(holds), ..Order::default() };
            assert!(plane.act(&set("left"), Door::Finalize, &order).await.unwrap().erased);
        }
        // A node is lost for good, with what is placed on it.
        3 => {
            plane.run("lost", "1").await;
            let pinned = json!({"spec": {"placement": {"nodeName": "n3"}}});
            plane.merge(&app("lost"), pinned).await.unwrap();
            plane.silent.insert("n3".to_owned());
            away(plane).await;
            plane.disconnect("n3").await;
            plane.silent.clear();
            let forgotten = plane.act(&node("n3"), Door::Forget, &Order::default()).await.unwrap();
            assert!(forgotten.erased);
            plane.delete(&app("lost"), None).await;
        }
        // The end of the other set, and of what holds a volume.
        _ => {
            plane.delete(&set("web"), None).await;
            plane.delete(&app("solo"), None).await;
        }
    }
}

/// Time passes, more than the ready timeout, and no loop looks.
async fn away(plane: &mut Plane) {
    for _ in 0..10 {
        plane.round(&mut []).await;
    }
}

fn object_of(name: &str, about: &str) -> Value {
    object(name, &request(about))
}

/// Everything that is stored, without what may differ from one telling to the next: times, identities, and which of
/// several equal nodes somebody got.
pub async fn state(plane: &Plane) -> Vec<String> {
    let snapshot = plane.store().fresh().await.unwrap();
    let mut all = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Event) {
        for entry in snapshot.list(kind, None) {
            let mut tree: Value = serde_json::from_slice(&entry.encoded()).unwrap();
            level(&mut tree);
            all.push(format!("{} {tree}", entry.key));
        }
    }
    all
}

/// Members that are replaced by a word that says that they are there.
const VARY: [&str; 10] = [
    "runAsUser",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "lastTransitionTime",
    "lastProgressTime",
    "finishedAt",
    "certificate",
    "request",
];

fn level(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("managedFields");
            members.remove("heartbeat");
            for (name, member) in members.iter_mut() {
                if VARY.contains(&name.as_str()) {
                    *member = "some".into();
                } else if ["nodeName", "node"].contains(&name.as_str()) && member != "" {
                    *member = "somewhere".into();
                } else if name == "message" && member.as_str().is_some_and(|text| text.contains(" node ")) {
                    *member = "of a node".into();
                } else {
                    level(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(level),
        _ => {}
    }
}
