//! A service on a fresh in-memory database, and short ways to talk to it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity, KeyRing, SecretKeys};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::{self, Object};
use horchestra_core::registry;
use horchestra_core::status::Status;
use horchestra_service::{
    Apply, At, Body, Caller, DeleteOptions, Deleted, ListRequest, Listing, Part, Patch, PatchType,
    RequestContext, Service, ServiceConfig, Watch, WatchEvent, WatchRequest, WriteOptions, Written,
};
use horchestra_store::{
    Attribution, Columns, Draft, Entry, Index, Item, MemoryBackend, MemoryDatabase, Op, SessionClaim,
    SessionGrant, Store, StoreOptions,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// How long anything may take before a test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub struct World {
    pub database: MemoryDatabase,
    pub service: Service,
}

impl World {
    /// An empty database but for the Namespaces `default` and `other`.
    pub async fn new() -> World {
        World::with(ServiceConfig::default()).await
    }

    /// As [`World::new`], with a configuration.
    pub async fn with(config: ServiceConfig) -> World {
        let database = MemoryDatabase::new();
        let world = World { service: configured(database.connect(), config).await, database };
        world.create(json!({"kind": "Namespace", "metadata": {"name": "default"}})).await.unwrap();
        world.create(json!({"kind": "Namespace", "metadata": {"name": "other"}})).await.unwrap();
        world
    }

    /// Another process on the same database.
    pub async fn replica(&self) -> Service {
        replica(&self.database).await
    }

    /// As [`World::replica`], with a configuration.
    pub async fn replica_with(&self, config: ServiceConfig) -> Service {
        configured(self.database.connect(), config).await
    }

    pub async fn create(&self, object: Value) -> Result<Written, Status> {
        self.create_as(&admin(), object).await
    }

    /// Creates an object in the namespace that it names (namespaced kinds: `default` when it names none).
    pub async fn create_as(&self, context: &RequestContext, object: Value) -> Result<Written, Status> {
        let kind = kind_of(&object);
        let namespace = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => namespace.to_owned(),
            None if kind.namespaced() => "default".to_owned(),
            None => String::new(),
        };
        let body = Body::Json(object.to_string().into());
        self.service.create(context, kind, &namespace, body, &WriteOptions::default()).await
    }

    /// Puts an object into the database as it is, judged by nobody: one that another version stored, or that was
    /// imported. Answers its revision.
    pub async fn plant(&self, object: Value) -> i64 {
        let kind = kind_of(&object);
        let spec = registry::spec(kind).unwrap();
        let mut object = Object::from_value(object).unwrap();
        object.0.insert("apiVersion".to_owned(), kind.api_version().into());
        object.0.insert("kind".to_owned(), kind.name().into());
        if kind.namespaced() && object.namespace().is_empty() {
            object.set_metadata("namespace", "default");
        }
        let uid = Uuid::new_v4();
        object.set_metadata("uid", uid.to_string());
        object.set_metadata("generation", json!(1));
        object.set_metadata("creationTimestamp", "2020-01-01T00:00:00Z");
        let mut labels: Vec<(String, String)> =
            object.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        labels.sort();
        let draft = Draft {
            key: object.key(kind),
            uid,
            generation: 1,
            deleting: false,
            body: object::encode(kind, &object),
            managed: None,
            index: Index { labels, fields: spec.selectable_fields(&object) },
            columns: Columns::default(),
            edges: Vec::new(),
        };
        let who = Attribution {
            user: "system:import".to_owned(),
            verb: "create".to_owned(),
            audit_id: Uuid::new_v4(),
            trace: None,
        };
        let item = Item { ops: vec![Op::Create(draft)], guards: Vec::new(), who };
        self.service.store().commit(item).await.unwrap().revisions[0]
    }

    pub async fn put(&self, key: &Key, object: &Value) -> Result<Written, Status> {
        let body = Body::Json(object.to_string().into());
        self.service.update(&admin(), key, body, &WriteOptions::default()).await
    }

    pub async fn put_status(&self, key: &Key, object: &Value) -> Result<Written, Status> {
        let body = Body::Json(object.to_string().into());
        self.service.update_status(&admin(), key, body, &WriteOptions::default()).await
    }

    pub async fn merge(&self, key: &Key, patch: Value) -> Result<Written, Status> {
        self.patch(key, Part::Main, PatchType::Merge, patch).await
    }

    /// As [`World::merge`], for closures.
    pub async fn merge_owned(&self, key: Key, patch: Value) -> Result<Written, Status> {
        self.merge(&key, patch).await
    }

    pub async fn patch(
        &self,
        key: &Key,
        part: Part,
        kind: PatchType,
        patch: Value,
    ) -> Result<Written, Status> {
        let patch = Patch { kind, document: patch.to_string().into() };
        self.service.patch(&admin(), key, part, patch, &WriteOptions::default()).await
    }

    /// An apply by a manager, with the options of the caller's choice.
    pub async fn apply_with(
        &self,
        key: &Key,
        part: Part,
        object: &Value,
        force: bool,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let request = Apply { document: object.to_string().into(), force, refuse_create: None };
        self.service.apply(&admin(), key, part, request, options).await
    }

    pub async fn apply(&self, key: &Key, manager: &str, object: Value) -> Result<Written, Status> {
        self.apply_with(key, Part::Main, &object, false, &managed_by(manager)).await
    }

    pub async fn force(&self, key: &Key, manager: &str, object: Value) -> Result<Written, Status> {
        self.apply_with(key, Part::Main, &object, true, &managed_by(manager)).await
    }

    pub async fn delete(&self, key: &Key) -> Result<Deleted, Status> {
        self.service.delete(&admin(), key, &DeleteOptions::default()).await
    }

    pub async fn get(&self, key: &Key) -> Result<Value, Status> {
        self.service.get(key, At::Fresh).await.map(|entry| tree(&entry))
    }

    pub async fn list(&self, request: ListRequest) -> Result<Listing, Status> {
        self.service.list(request).await
    }

    /// A node's live session.
    pub async fn session(&self, node: &str) -> RequestContext {
        let gateway = Uuid::new_v4();
        let store = self.service.store();
        assert!(store.renew_gateway(gateway, "127.0.0.1:1", Duration::from_secs(60)).await.unwrap());
        let claim = SessionClaim {
            node: node.to_owned(),
            gateway,
            peer: "127.0.0.1:2".to_owned(),
            certificate: "00".repeat(32),
        };
        let grant = store.claim_session(claim, Duration::from_secs(60)).await.unwrap().expect("the session");
        node_context(node, grant, gateway)
    }

    /// The lease of a loop.
    pub async fn lease(&self, name: &str) -> RequestContext {
        let store = self.service.store();
        let lease = store.acquire_lease(name, Uuid::new_v4(), Duration::from_secs(60)).await.unwrap();
        let epoch = lease.expect("the lease").epoch;
        RequestContext::new(Caller::Loop { name: name.to_owned(), epoch })
    }

    /// A Node with this capacity, as its agent would have registered it, uncordoned.
    pub async fn node(&self, name: &str, cpu: &str, memory: &str) -> RequestContext {
        let session = self.session(name).await;
        let status = json!({"ready": true, "capacity": {"cpu": cpu, "memory": memory}});
        self.service.register_node(&session, name, &status).await.unwrap();
        self.service.cordon(&admin(), name, false).await.unwrap();
        session
    }
}

pub async fn replica(database: &MemoryDatabase) -> Service {
    served(database.connect()).await
}

/// The keys of every process that does not ask for others.
pub fn keys() -> Arc<SecretKeys> {
    static KEYS: LazyLock<Arc<SecretKeys>> =
        LazyLock::new(|| Arc::new(Arc::new(KeyRing::ephemeral().unwrap()).into()));
    Arc::clone(&KEYS)
}

/// A service over a connection that a test can meddle with.
pub async fn served(backend: Arc<MemoryBackend>) -> Service {
    configured(backend, ServiceConfig::default()).await
}

pub async fn configured(backend: Arc<MemoryBackend>, config: ServiceConfig) -> Service {
    process(backend, ServiceConfig { secret_keys: Some(keys()), ..config }).await
}

/// As [`served`], with other keys, or none.
pub async fn served_with(backend: Arc<MemoryBackend>, ring: Option<Arc<KeyRing>>) -> Service {
    let secret_keys = ring.map(|ring| Arc::new(ring.into()));
    process(backend, ServiceConfig { secret_keys, ..ServiceConfig::default() }).await
}

/// As [`served`], with keys that may change.
pub async fn served_by(backend: Arc<MemoryBackend>, keys: SecretKeys) -> Service {
    let config = ServiceConfig { secret_keys: Some(Arc::new(keys)), ..ServiceConfig::default() };
    process(backend, config).await
}

async fn process(backend: Arc<MemoryBackend>, config: ServiceConfig) -> Service {
    let store = Store::open(backend, StoreOptions::default());
    tokio::time::timeout(DEADLINE, store.ready()).await.expect("the store gets ready");
    Service::new(store, config)
}

fn node_context(node: &str, grant: SessionGrant, gateway: Uuid) -> RequestContext {
    RequestContext::new(Caller::Node { name: node.to_owned(), grant, gateway })
}

/// Who judges callers in tests that have no rules.
fn no_rules() -> Arc<Authorizer> {
    static NO_RULES: LazyLock<Arc<Authorizer>> =
        LazyLock::new(|| Arc::new(Authorizer::new(FixedPolicy::default())));
    Arc::clone(&NO_RULES)
}

pub fn identity(name: &str, groups: &[&str]) -> RequestContext {
    let identity = Identity {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        credential: Credential::Certificate {
            fingerprint: "00".repeat(32),
            not_after: "2100-01-01T00:00:00Z".parse().unwrap(),
        },
    };
    RequestContext::new(Caller::http(Arc::new(identity), no_rules()))
}

pub fn admin() -> RequestContext {
    identity("admin", &["system:masters"])
}

/// Options that name a manager.
pub fn managed_by(manager: &str) -> WriteOptions {
    WriteOptions { field_manager: Some(manager.to_owned()), ..WriteOptions::default() }
}

/// The managers of an object in short, in their order: `Apply web`, `Update x (status)`.
pub fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array();
    let short = |entry: &Value| {
        let subresource = entry["subresource"].as_str().map(|it| format!(" ({it})")).unwrap_or_default();
        format!(
            "{} {}{subresource}",
            entry["operation"].as_str().unwrap(),
            entry["manager"].as_str().unwrap()
        )
    };
    entries.into_iter().flatten().map(short).collect()
}

/// The fields of the manager that [`managers`] calls so.
pub fn fields_of(object: &Value, manager: &str) -> Value {
    let at = managers(object).iter().position(|name| name == manager);
    at.map(|at| object["metadata"]["managedFields"][at]["fieldsV1"].clone()).unwrap_or_default()
}

/// A user of whom nothing is known but the name.
pub fn somebody() -> RequestContext {
    identity("somebody", &[])
}

pub fn kind_of(object: &Value) -> Kind {
    let name = object["kind"].as_str().unwrap_or("Application");
    Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("a kind")
}

pub fn app(name: &str) -> Key {
    Key::namespaced(Kind::Application, "default", name)
}

pub fn node(name: &str) -> Key {
    Key::cluster(Kind::Node, name)
}

pub fn namespace(name: &str) -> Key {
    Key::cluster(Kind::Namespace, name)
}

/// An Application in the namespace `default`.
pub fn application(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"image": "nginx"}})
}

/// An Application that asks for this much.
pub fn sized(name: &str, cpu: &str, memory: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"image": "nginx", "resources": {"requests": {"cpu": cpu, "memory": memory}}},
    })
}

/// The object as a client sees it.
pub fn tree(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.shown()).unwrap()
}

pub fn names(listing: &Listing) -> Vec<&str> {
    listing.entries.iter().map(|entry| entry.key.name.as_str()).collect()
}

/// The next event, or a failed test.
pub async fn next(watch: &mut Watch) -> WatchEvent {
    tokio::time::timeout(DEADLINE, watch.next()).await.expect("an event in time").expect("an open watch")
}

/// The next event in short: `ADDED web 12`.
pub async fn next_short(watch: &mut Watch) -> String {
    short(&next(watch).await)
}

pub fn short(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Added(entry) => format!("ADDED {} {}", entry.key.name, entry.revision),
        WatchEvent::Modified(entry) => format!("MODIFIED {} {}", entry.key.name, entry.revision),
        WatchEvent::Deleted(entry) => format!("DELETED {} {}", entry.key.name, entry.revision),
        WatchEvent::Bookmark { revision, initial_events_end } => {
            format!("BOOKMARK {revision} {initial_events_end}")
        }
        WatchEvent::Failed(status) => format!("FAILED {}", status.code()),
    }
}

/// A watch of everything of a kind after a revision.
pub async fn watch_after(service: &Service, kind: Kind, revision: i64) -> Watch {
    let request = WatchRequest { resource_version: Some(revision.to_string()), ..WatchRequest::of(kind) };
    service.watch(request).await.unwrap()
}
