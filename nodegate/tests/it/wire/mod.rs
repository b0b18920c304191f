//! The wire between nodes and gateways, by a client that knows nothing but the wire.
//!
//! Agents in the field cannot be changed together with this product, so the rules of the stream are held against a
//! client of its own ([`client`]): TLS, HTTP/2, the messages, and nothing that our own agent is made of. The server
//! side is a real gateway over the in-memory store. Every push that any of these tests hears is held to what must hold
//! of all of them ([`push`]). [`rules`] says which rule is shown where.

mod client;
mod content;
mod contract;
mod deletion;
mod front;
mod holds;
mod identity;
mod logs;
mod membership;
mod metrics;
mod networks;
mod pki;
mod push;
mod registration;
mod restarts;
mod rules;
mod sessions;
mod stage;
mod status;
mod tokens;
mod triggers;

use horchestra_core::Object;
use horchestra_core::kind::Key;
use horchestra_store::{Attribution, Class, Draft, Index, Item, Op};

use self::stage::Stage;

/// The group of nodes.
const NODES: &str = "system:nodes";

/// Changes an object past all rules, as an import would.
async fn store_as_it_is(stage: &Stage, key: &Key, change: impl FnOnce(&mut Object)) {
    let store = stage.world.operator.store();
    let entry = store.fresh().await.unwrap().get(key).unwrap();
    let mut object = entry.object().unwrap();
    object.metadata_mut().remove("resourceVersion");
    let generation = entry.generation + 1;
    object.set_metadata("generation", generation);
    change(&mut object);
    let draft = Draft {
        key: key.clone(),
        uid: entry.uid,
        generation,
        deleting: false,
        body: horchestra_core::object::encode(key.kind, &object),
        managed: None,
        index: Index::default(),
        columns: (*entry.columns).clone(),
        edges: Vec::new(),
    };
    let who = Attribution {
        user: "system:import".to_owned(),
        verb: "import".to_owned(),
        audit_id: uuid::Uuid::new_v4(),
        trace: None,
    };
    let op = Op::Update { draft, expect: entry.revision, class: Class::Core };
    store.commit(Item { ops: vec![op], guards: Vec::new(), who }).await.unwrap();
}
