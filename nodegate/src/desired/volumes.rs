//! The volumes of the fleet as nodes are sent them.
//!
//! A node deletes the data of every volume that it made and that a list does not name, unless the list is empty. So
//! every list names all volumes that there are: those of the node in full, the others by name alone, which is enough
//! for the node to leave them be, and all that it is meant to know of them. Other nodes are not told of a
//! volume that comes, goes or changes until they are pushed to for another reason: until then their list
//! names too much or lacks what they never had. A volume that an agent would not decode is sent by its name to its own
//! node, too; Applications that mount it do not start there, and its data stays.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::persistent_volume::PersistentVolume;
use horchestra_core::object::{self, Object};
use horchestra_store::{Entry, Holding};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::encoded;
use super::form::{check_members, without_bookkeeping};

/// What makes two lists differ for their node: its own volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Own {
    key: Key,
    uid: Uuid,
    generation: i64,
}

impl Own {
    /// The volume as something that its node may hold.
    pub fn holding(&self) -> Holding {
        Holding { key: self.key.clone(), uid: self.uid }
    }
}

/// A list of volumes as it is sent: a part of a desired state, in pieces of which most are shared by all lists.
#[derive(Clone, Debug, Default)]
pub struct List {
    pub pieces: Vec<Bytes>,
    pub own: Vec<Own>,
}

/// All volumes by name alone, one after the other.
struct Names {
    bytes: Bytes,
    /// Where each begins, in order.
    begins: Vec<(Key, usize)>,
}

#[derive(Debug)]
struct Volume {
    /// Empty: on none.
    node: String,
    own: Own,
    /// As an element of a list; `None`: agents would not decode it.
    full: Option<Bytes>,
}

#[derive(Default)]
pub(super) struct Volumes {
    volumes: BTreeMap<Key, Volume>,
    /// Made when it is first needed.
    names: OnceLock<Names>,
    by_node: HashMap<String, BTreeSet<Key>>,
}

impl Volumes {
    /// Takes a volume in (`None`: it is gone); answers the nodes that have to hear of it.
    pub fn put(&mut self, key: &Key, entry: Option<&Entry>) -> Vec<String> {
        let before = self.volumes.remove(key);
        if before.is_some() != entry.is_some() {
            self.names = OnceLock::new();
        }
        if let Some(volume) = &before {
            self.note(&volume.node, key, false);
        }
        let after = entry.map(volume);
        let same = match (&before, &after) {
            (Some(before), Some(after)) => (&before.node, &before.own) == (&after.node, &after.own),
            (before, after) => before.is_none() && after.is_none(),
        };
        let mut nodes: Vec<String> =
            [&before, &after].into_iter().flatten().map(|volume| volume.node.clone()).collect();
        if let Some(volume) = after {
            self.note(&volume.node, key, true);
            self.volumes.insert(key.clone(), volume);
        }
        nodes.dedup();
        nodes.retain(|node| !same && !node.is_empty());
        nodes
    }

    /// The list for a node.
    pub fn list(&self, node: &str) -> List {
        let names = self.names.get_or_init(|| Names::of(self.volumes.keys()));
        let mut list = List::default();
        // The names up to the first volume in full, that volume, the names up to the next, and so on.
        let mut done = 0;
        for key in self.by_node.get(node).into_iter().flatten() {
            let Some(volume) = self.volumes.get(key) else { continue };
            list.own.push(volume.own.clone());
            if let (Some(full), Some((begin, end))) = (&volume.full, names.place(key)) {
                list.add(names.bytes.slice(done..begin));
                list.add(full.clone());
                done = end;
            }
        }
        list.add(names.bytes.slice(done..));
        list
    }

    /// Whether lists name this volume.
    pub fn contains(&self, key: &Key) -> bool {
        self.volumes.contains_key(key)
    }

    fn note(&mut self, node: &str, key: &Key, comes: bool) {
        let keys = self.by_node.entry(node.to_owned()).or_default();
        if comes {
            keys.insert(key.clone());
        } else {
            keys.remove(key);
            if keys.is_empty() {
                self.by_node.remove(node);
            }
        }
    }
}

impl List {
    fn add(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }
}

impl Names {
    fn of<'a>(keys: impl Iterator<Item = &'a Key>) -> Names {
        let (mut bytes, mut begins) = (BytesMut::new(), Vec::new());
        for key in keys {
            begins.push((key.clone(), bytes.len()));
            bytes.extend_from_slice(&encoded::bytes(encoded::VOLUMES, &name_alone(key)));
        }
        Names { bytes: bytes.freeze(), begins }
    }

    /// From where to where the name of a volume goes.
    fn place(&self, key: &Key) -> Option<(usize, usize)> {
        let at = self.begins.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        let end = self.begins.get(at + 1).map_or(self.bytes.len(), |(_, begin)| *begin);
        Some((self.begins[at].1, end))
    }
}

fn volume(entry: &Entry) -> Volume {
    let node = entry.typed::<PersistentVolume>().map(|volume| volume.spec.node.clone()).unwrap_or_default();
    let own = Own { key: entry.key.clone(), uid: entry.uid, generation: entry.generation };
    let full = match full(entry) {
        Ok(bytes) => Some(encoded::bytes(encoded::VOLUMES, &bytes)),
        Err(why) => {
            tracing::error!(volume = %entry.key, %why, "agents would not decode this volume; sent by name alone");
            None
        }
    };
    Volume { node, own, full }
}

fn full(entry: &Entry) -> Result<Bytes, String> {
    let mut object = entry.object().map_err(|error| error.to_string())?;
    if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
        // Some agents fail on an empty text here.
        spec.retain(|_, value| value.as_str() != Some(""));
        check_members(spec, false, || "spec".to_owned()).map_err(|error| error.to_string())?;
    }
    without_bookkeeping(&mut object);
    Ok(Bytes::from(Value::Object(object.0).to_string()))
}

fn name_alone(key: &Key) -> Bytes {
    let metadata = json!({"namespace": key.namespace, "name": key.name});
    let object = Object(Map::from_iter([("metadata".to_owned(), metadata), ("spec".to_owned(), json!({}))]));
    object::encode(Kind::PersistentVolume, &object)
}

#[cfg(test)]
mod tests {
    use horchestra_proto::node::v1::DesiredState;
    use horchestra_store::{Columns, Draft, Index};
    use prost::Message;

    use super::*;

    fn entry(name: &str, generation: i64, spec: Value) -> Entry {
        let key = Key::namespaced(Kind::PersistentVolume, "shop", name);
        let annotations = json!({"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "kept"});
        let uid = Uuid::from_u128(7);
        let metadata = json!({"name": name, "namespace": "shop", "uid": uid.to_string(),
            "generation": generation, "annotations": annotations});
        let object = Object::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        let body = object::encode(Kind::PersistentVolume, &object);
        let draft = Draft {
            key,
            uid,
            generation,
            deleting: false,
            body,
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        Entry::new(draft, 9, 9)
    }

    fn put(volumes: &mut Volumes, entry: &Entry) -> Vec<String> {
        volumes.put(&entry.key, Some(entry))
    }

    /// What a node is sent: the name of each, and the spec of those that it gets in full.
    fn sent(volumes: &Volumes, node: &str) -> Vec<(String, Value)> {
        let list = DesiredState::decode(volumes.list(node).pieces.concat().as_slice()).unwrap();
        let parsed = list.persistent_volumes.into_iter().map(|bytes| {
            let object: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(
                (&object["kind"], &object["apiVersion"]),
                (&json!("PersistentVolume"), &json!("horchestra.io/v1"))
            );
            let full = object["metadata"].get("uid").is_some();
            assert_eq!(object["metadata"].get("annotations").is_some(), full);
            assert!(
                object["metadata"]["annotations"]
                    .get("kubectl.kubernetes.io/last-applied-configuration")
                    .is_none()
            );
            (object["metadata"]["name"].as_str().unwrap().to_owned(), object["spec"].clone())
        });
        parsed.collect()
    }

    #[test]
    fn every_list_names_every_volume_and_tells_a_node_of_its_own() {
        let mut volumes = Volumes::default();
        assert_eq!(sent(&volumes, "n1"), []);
        put(&mut volumes, &entry("b", 1, json!({"node": "n1", "size": "1Gi", "mode": ""})));
        put(&mut volumes, &entry("a", 1, json!({"node": "n2"})));
        put(&mut volumes, &entry("c", 1, json!({})));
        put(&mut volumes, &entry("odd", 1, json!({"node": "n1", "size": "1e99"})));
        let named = |name: &str| (name.to_owned(), json!({}));
        let mine = ("b".to_owned(), json!({"node": "n1", "size": "1Gi"}));
        assert_eq!(sent(&volumes, "n1"), [named("a"), mine, named("c"), named("odd")]);
        assert_eq!(sent(&volumes, "n3"), ["a", "b", "c", "odd"].map(named));
        volumes.put(&entry("b", 1, json!({})).key, None);
        assert_eq!(sent(&volumes, "n1"), ["a", "c", "odd"].map(named));
    }

    #[test]
    fn nodes_hear_of_their_own_volumes() {
        let mut volumes = Volumes::default();
        let on = |node: &str, generation| entry("a", generation, json!({ "node": node }));
        for (what, step, expected) in [
            ("it lies nowhere", Some(entry("a", 1, json!({}))), vec![]),
            ("it comes to a node", Some(on("n1", 2)), vec!["n1"]),
            ("it is as it was", Some(on("n1", 2)), vec![]),
            ("it changes", Some(on("n1", 3)), vec!["n1"]),
            ("it moves", Some(on("n2", 4)), vec!["n1", "n2"]),
            ("it goes", None, vec!["n2"]),
            ("it is gone", None, vec![]),
        ] {
            let before = volumes.list("n1").own;
            let key = Key::namespaced(Kind::PersistentVolume, "shop", "a");
            let heard = volumes.put(&key, step.as_ref());
            assert_eq!(heard, expected, "{what}");
            assert_eq!(volumes.list("n1").own != before, heard.contains(&"n1".to_owned()), "{what}");
        }
    }
}
