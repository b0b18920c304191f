//! Two processes that both lead every loop, with nothing that keeps one of them out.
//!
//! Both hold the very same terms, so no fence tells them apart: what is left to keep the rules is what each write
//! says it rests on. One of them hears of nothing half of the time and acts on what was.

use std::collections::BTreeMap;

use horchestra_core::kind::Kind;
use horchestra_service::Propagation;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::judge::Judge;
use super::plane::{Plane, app, set, somebody, volume};
use super::process::Process;
use crate::certificates::support::{object, request};
use crate::sets::world::{replicas, step};

const ROUNDS: usize = 40;
const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

fn web(image: usize, count: usize) -> Value {
    let image = format!("i{image}");
    let mut api = replicas("api", &image, count);
    api["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    json!({"applications": [step("init", &image), api], "rollout": {"maxUnavailable": 1}})
}

struct Life {
    plane: Plane,
    random: StdRng,
    /// How many things have happened.
    made: usize,
    image: usize,
}

impl Life {
    /// Somebody does something.
    async fn happen(&mut self) {
        let (plane, random) = (&mut self.plane, &mut self.random);
        self.made += 1;
        let name = format!("x{:03}", self.made);
        match random.random_range(0..9) {
            // More is asked for than there is room.
            0..3 => plane.run(&name, &random.random_range(1..5).to_string()).await,
            3 => {
                let snapshot = plane.store().fresh().await.unwrap();
                let mut own = snapshot.list(Kind::Application, None).map(|entry| &entry.key.name);
                if let Some(old) = own.find(|name| name.starts_with('x')) {
                    plane.delete(&app(old), None).await;
                }
            }
            4 => {
                self.image += 1;
                let count = random.random_range(2..5);
                plane.put_set("web", web(self.image, count)).await;
            }
            5 => {
                let node = NODES[random.random_range(0..NODES.len())];
                plane
                    .create_as(&somebody(node, &["system:nodes"]), object(&name, &request(node)))
                    .await
                    .unwrap();
            }
            6 => {
                let snapshot = plane.store().fresh().await.unwrap();
                let waiting =
                    snapshot.list(Kind::Application, None).find(|entry| entry.columns.node.is_none());
                if let Some(key) = waiting.map(|entry| entry.key.clone()) {
                    plane.merge(&key, json!({"metadata": {"labels": {"edited": name}}})).await.unwrap();
                }
            }
            _ => {
                let owner = json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {}});
                let uid = plane.create(owner).await.unwrap().entry.uid.to_string();
                let reference = json!([{
                    "apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": name, "uid": uid,
                }]);
                for child in ["a", "b"] {
                    let metadata = json!({"name": format!("{name}-{child}"), "ownerReferences": reference});
                    let child = json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}});
                    plane.create(child).await.unwrap();
                }
                let policy = [Propagation::Background, Propagation::Foreground, Propagation::Orphan];
                let policy = policy[random.random_range(0..policy.len())];
                plane.delete(&volume(&name), Some(policy)).await;
            }
        }
    }
}

async fn lead_twice(seed: u64) -> Judge {
    let plane = Plane::new(&NODES).await;
    let first = Process::start(&plane).await;
    let second = first.double(&plane).await;
    let mut life = Life { plane, random: StdRng::seed_from_u64(seed), made: 0, image: 0 };
    life.plane.put_set("web", web(0, 3)).await;
    let (mut first, mut second) = (first, second);
    let mut judge = Judge::default();
    for round in 0..ROUNDS {
        match round {
            10 => drop(life.plane.silent.insert("n4".to_owned())),
            28 => drop(life.plane.silent.remove("n4")),
            _ => {}
        }
        // What the second one knows of this is up to chance.
        let deaf = life.random.random_bool(0.5);
        second.backend.set_deaf(deaf);
        second.careful = !deaf;
        for _ in 0..life.random.random_range(0..4) {
            life.happen().await;
        }
        tokio::time::sleep(super::plane::BEAT).await;
        life.plane.beat().await;
        let (one, other) = tokio::join!(first.pass(), second.pass());
        one.unwrap();
        other.unwrap();
        judge.follow(&life.plane).await;
        life.plane.work().await;
    }
    // Everybody is well, both know of everything, and there is room for all.
    second.backend.set_deaf(false);
    second.careful = true;
    let Life { mut plane, .. } = life;
    plane.silent.clear();
    plane.add_node("n5", "1000").await;
    let mut both = [first, second];
    plane.settle(&mut both).await;
    judge.follow(&plane).await;

    let snapshot = plane.store().fresh().await.unwrap();
    for entry in snapshot.list(Kind::Application, None) {
        assert!(entry.columns.node.is_some() && !entry.deleting, "{} was left behind", entry.key);
    }
    assert_eq!(plane.tree(&set("web")).await["status"]["phase"], "Ready");
    for entry in snapshot.list(Kind::CertificateSigningRequest, None) {
        let tree: Value = serde_json::from_slice(&entry.encoded()).unwrap();
        let decided = ["Approved", "Denied"].iter().any(|phase| tree["status"]["phase"] == **phase);
        assert!(decided, "{} was left undecided", entry.key);
    }
    told_once(&plane, &judge).await;
    judge
}

/// Each change of a verdict is told of once.
async fn told_once(plane: &Plane, judge: &Judge) {
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    for node in NODES {
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for verdict in &judge.verdicts[node] {
            let reason = if verdict == "True" { "NodeReady" } else { "NodeSilent" };
            *expected.entry(reason.to_owned()).or_default() += 1;
        }
        let mut told = plane.told_of(node).await;
        told.retain(|reason, _| ["NodeReady", "NodeSilent", "NodeNotReady"].contains(&reason.as_str()));
        assert_eq!(told, expected, "{node}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_that_lead_at_once_keep_every_rule() {
    let mut judged: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..4 {
        let judge = lead_twice(seed).await;
        *judged.entry("requests signed").or_default() += judge.certificates();
        for (what, count) in judge.judged {
            *judged.entry(what).or_default() += count;
        }
    }
    for what in ["bindings", "children", "budget", "certificates", "requests signed", "collected"] {
        let count = judged.get(what).copied().unwrap_or_default();
        assert!(count > 5, "{what} was put to the test {count} times only: {judged:?}");
    }
}
