//! The object that is written: an Application of some 1,150 bytes of JSON.

use std::sync::LazyLock;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_store::{Attribution, Class, Columns, Draft, Guard, Index, Item, Op, Revision};
use serde_json::{Value, json};
use uuid::Uuid;

pub const NAMESPACE: &str = "default";

/// The body that every arm writes. Made once: building it is not what is measured.
pub fn body() -> Bytes {
    static BODY: LazyLock<Bytes> = LazyLock::new(|| build("app-000000000", Uuid::nil()));
    BODY.clone()
}

fn build(name: &str, uid: Uuid) -> Bytes {
    let mut tree = tree(name);
    tree["metadata"]["uid"] = json!(uid);
    tree["metadata"]["generation"] = json!(1);
    tree["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
    object::encode(Kind::Application, &Object::from_value(tree).unwrap_or_default())
}

/// The same as a client sends it.
pub fn manifest(name: &str) -> Bytes {
    tree(name).to_string().into()
}

fn tree(name: &str) -> Value {
    let env: Vec<_> = (0..12)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": format!("value-of-setting-{n}")}))
        .collect();
    json!({
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": {"app": "web", "tier": "front", "team": "shop", "track": "stable", "zone": "a"},
            "annotations": {"example.com/owner": "somebody@example.com"},
        },
        "spec": {
            "image": "registry.example.com/shop/web:1.2.3", "env": env,
            "ports": [{"name": "http", "port": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        },
    })
}

pub fn index() -> Index {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Index {
        labels: vec![
            pair("app", "web"),
            pair("team", "shop"),
            pair("tier", "front"),
            pair("track", "stable"),
            pair("zone", "a"),
        ],
        fields: vec![pair("status.phase", "Pending")],
    }
}

/// A create (`expect` `None`) or an update of the object, as the API would commit it: the namespace has to
/// exist.
pub fn item(name: &str, uid: Uuid, expect: Option<Revision>) -> Item {
    let draft = Draft {
        key: Key::namespaced(Kind::Application, NAMESPACE, name),
        uid,
        generation: 1,
        deleting: false,
        body: body(),
        managed: None,
        index: index(),
        columns: Columns { node: None, phase: Some("Pending".into()), cpu: 100_000_000, memory: 64 << 20 },
        edges: Vec::new(),
    };
    let op = match expect {
        None => Op::Create(draft),
        Some(expect) => Op::Update { draft, expect, class: Class::Core },
    };
    Item {
        ops: vec![op],
        guards: vec![Guard::Exists(Key::cluster(Kind::Namespace, NAMESPACE))],
        who: Attribution {
            user: "bench".into(),
            verb: "create".into(),
            audit_id: Uuid::new_v4(),
            trace: None,
        },
    }
}
