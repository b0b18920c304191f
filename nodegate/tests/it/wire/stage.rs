//! One gateway with its database and its operator, and nodes that come to it.
//!
//! Cases of one test share a stage where they do not disturb each other: each has nodes and names of its own.

use std::pin::Pin;

use futures::future::join_all;
use horchestra_auth::pki::Authority;
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::tokens::Tokens;
use horchestra_service::Order;
use horchestra_testkit::eventually;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};

use super::client::{Node, Refusal, heartbeat};
use super::pki::Credentials;
use crate::world::{NAMESPACE, SOON, TestGateway, World, node_key};

pub struct Stage {
    pub world: World,
    pub gateway: TestGateway,
}

impl Stage {
    pub async fn new() -> Stage {
        Stage::with(|_| ()).await
    }

    pub async fn with(adjust: impl FnOnce(&mut Settings)) -> Stage {
        let world = Stage::world().await;
        let gateway = world.gateway_with(adjust).await;
        Stage { world, gateway }
    }

    /// A gateway that has this to make tokens with.
    pub async fn with_tokens(tokens: Tokens, adjust: impl FnOnce(&mut Settings)) -> Stage {
        let world = Stage::world().await;
        let gateway = world.gateway_of(Some(world.keys.clone()), tokens, adjust).await;
        Stage { world, gateway }
    }

    /// With the namespace in which Events about nodes lie.
    async fn world() -> World {
        let world = World::new().await;
        world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
        world
    }

    // ---- nodes ----------------------------------------------------------------------------------------

    fn authority(&self) -> CertificateDer<'static> {
        self.world.authority.certificate().clone()
    }

    /// A node of this name, let in or not.
    pub async fn try_dial(&self, name: &str) -> Result<Node, Refusal> {
        self.try_dial_to(&self.gateway, name).await
    }

    pub async fn try_dial_to(&self, gateway: &TestGateway, name: &str) -> Result<Node, Refusal> {
        let shown = Credentials::node(&self.world.authority, name);
        Node::dial(gateway.address, &self.authority(), name, Some(&shown)).await
    }

    /// A client that shows these credentials, or none.
    pub async fn try_dial_as(&self, shown: Option<&Credentials>, name: &str) -> Result<Node, Refusal> {
        Node::dial(self.gateway.address, &self.authority(), name, shown).await
    }

    /// The same for a certificate of somebody else's.
    pub async fn try_dial_from(&self, issuer: &Authority, name: &str) -> Result<Node, Refusal> {
        self.try_dial_as(Some(&Credentials::node(issuer, name)), name).await
    }

    pub async fn dial(&self, name: &str) -> Node {
        self.dial_to(&self.gateway, name).await
    }

    pub async fn dial_to(&self, gateway: &TestGateway, name: &str) -> Node {
        match self.try_dial_to(gateway, name).await {
            Ok(node) => node,
            Err(refusal) => panic!("{name} is not let in: {refusal:?}"),
        }
    }

    /// Comes back until it is let in, as agents do.
    pub async fn dial_again(&self, gateway: &TestGateway, name: &str) -> Node {
        eventually(SOON, async || self.try_dial_to(gateway, name).await.ok()).await
    }

    /// A node that an operator made, with these Applications on it, after it was told of them.
    pub async fn serving(&self, name: &str, apps: &[(&str, Value)]) -> Node {
        self.world.create_node(name).await;
        for (app, spec) in apps {
            self.world.create_app(app, name, spec.clone()).await;
        }
        let mut node = self.dial(name).await;
        node.push_where(|push| push.apps.len() == apps.len()).await;
        node
    }

    // ---- what is stored -------------------------------------------------------------------------------

    /// Waits until the Application is so.
    pub async fn until_app(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(SOON, async || Some(self.world.app(name).await).filter(|app| holds(app))).await
    }

    pub async fn until_phase(&self, name: &str, phase: &str) -> Value {
        self.until_app(name, |app| app["status"]["phase"] == phase).await
    }

    /// Waits until the Node is so.
    pub async fn until_node(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(SOON, async || Some(self.world.node(name).await).filter(|node| holds(node))).await
    }

    pub async fn status(&self, app: &str) -> Value {
        self.world.app(app).await["status"].clone()
    }

    /// Waits until a node's stream has been read up to here: its own report of itself comes through.
    pub async fn heard(&self, node: &Node) {
        let mark = format!("mark {}", uuid::Uuid::new_v4());
        let mut said = heartbeat(&node.name);
        said["status"]["os"] = json!(mark);
        node.say_of_itself(said.to_string()).await;
        self.until_node(&node.name, |node| node["status"]["os"] == mark.as_str()).await;
    }

    // ---- the operator ---------------------------------------------------------------------------------

    /// A further namespace.
    pub async fn create_namespace(&self, name: &str) {
        self.world.create(Kind::Namespace, "", json!({"metadata": {"name": name}})).await;
    }

    pub async fn create_volume(&self, name: &str, node: &str) {
        let spec = json!({"node": node, "size": "1Gi", "mode": "0750"});
        self.world
            .create(Kind::PersistentVolume, NAMESPACE, json!({"metadata": {"name": name}, "spec": spec}))
            .await;
    }

    pub async fn edit(&self, app: &str, spec: Value) {
        self.world.merge(&crate::world::app_key(app), json!({"spec": spec})).await;
    }

    /// Freezes or thaws.
    pub async fn act(&self, app: &str, door: Door) {
        let (key, order) = (crate::world::app_key(app), Order::default());
        let acted = self.world.operator.act(&self.world.who(), &key, door, &order, &Default::default()).await;
        acted.unwrap_or_else(|status| panic!("{}", status.message));
    }

    pub async fn delete_app(&self, app: &str) -> bool {
        self.world.delete(&crate::world::app_key(app)).await
    }

    pub async fn delete_node(&self, node: &str) {
        assert!(self.world.delete(&node_key(node)).await);
    }

    /// How many sessions of this node are on record, and with which gateway.
    pub async fn session_of(&self, node: &str) -> Option<uuid::Uuid> {
        self.world.operator.store().session_of(node).await.unwrap().map(|row| row.gateway)
    }
}

pub fn volume_key(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, NAMESPACE, name)
}

/// A case of its own, run beside others.
pub type Case<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs cases side by side.
pub async fn together<'a>(cases: impl IntoIterator<Item = Case<'a>>) {
    join_all(cases).await;
}

/// A job that may be run again so often.
pub fn job(retries: i64) -> Value {
    json!({"lifecycle": {"restartPolicy": "Never", "backoffLimit": retries}})
}
