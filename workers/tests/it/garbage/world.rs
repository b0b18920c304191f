//! A database, a service on it, and a garbage collection that leads.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity, KeyRing};
use horchestra_core::kind::{Key, Kind};
use horchestra_runtime::Metrics;
use horchestra_service::{
    At, Body, Caller, DeleteOptions, Deleted, Part, Patch, PatchType, Propagation, RequestContext, Service,
    ServiceConfig, WriteOptions,
};
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::{Backend, Entry, MemoryDatabase, Store, StoreOptions};
use horchestra_testkit::Template;
use horchestra_workers::gc::{GarbageCollection, Limits};
use horchestra_workers::substrate::{Reconciler, Term};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

pub const TERM: Duration = Duration::from_secs(600);
/// Passes after which it should have come to rest long ago.
const PASSES: usize = 50;

/// How an object names its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ref {
    Plain,
    /// A foreground deletion of the owner waits for it.
    Blocks,
    NeverSeen,
    OtherName,
    OtherKind,
    NotWhole,
    Foreign,
}

/// Where a row lives.
pub struct Namespaces {
    pub own: String,
    pub elsewhere: String,
}

impl Namespaces {
    pub fn key(&self, name: &str) -> Key {
        let namespace = if name == "elsewhere" { &self.elsewhere } else { &self.own };
        Key::namespaced(Kind::PersistentVolume, namespace.as_str(), name)
    }
}

pub struct World {
    pub service: Service,
    pub metrics: Metrics,
    gc: tokio::sync::Mutex<(GarbageCollection, Term)>,
    _keep: Box<dyn Any + Send + Sync>,
}

pub fn operator() -> RequestContext {
    let identity = Identity {
        name: "operator".to_owned(),
        groups: vec!["system:masters".to_owned()],
        credential: Credential::Certificate { fingerprint: String::new(), not_after: Timestamp::MAX },
    };
    let authorizer = Authorizer::new(FixedPolicy::default());
    RequestContext::new(Caller::http(Arc::new(identity), Arc::new(authorizer)))
}

/// Runs a test on the database in memory, and on PostgreSQL.
pub async fn on_both(test: impl AsyncFn(&World)) {
    test(&World::memory().await).await;
    test(&World::postgres().await).await;
}

/// An owner reference as clients write it.
pub fn reference(owner: &Key, uid: &str) -> Value {
    json!({
        "apiVersion": owner.kind.api_version(), "kind": owner.kind.name(), "name": owner.name, "uid": uid,
    })
}

pub async fn term(store: &Store, name: &str) -> Term {
    let lease = store.acquire_lease(name, Uuid::new_v4(), TERM).await.unwrap();
    Term { lease: lease.expect("nobody else asks") }
}

impl World {
    pub async fn memory() -> World {
        World::on(MemoryDatabase::new().connect(), ()).await
    }

    pub async fn postgres() -> World {
        let schema = postgres::fingerprint();
        let template = Template::prepare("store", &schema, async |url| {
            postgres::migrate_schema(&url).await?;
            Ok(())
        });
        let database = template.await.expect("a migrated template").database().await.expect("a database");
        let backend = PostgresBackend::open(database.url(), Options::default()).expect("a well-formed URL");
        World::on(backend, database).await
    }

    pub async fn on(backend: Arc<dyn Backend>, keep: impl Any + Send + Sync) -> World {
        let store = Store::open(backend, StoreOptions::default());
        store.ready().await;
        let keys = Some(Arc::new(Arc::new(KeyRing::ephemeral().unwrap()).into()));
        let service = Service::new(store, ServiceConfig { secret_keys: keys, ..ServiceConfig::default() });
        let metrics = Metrics::new("test", "0", None);
        let term = term(service.store(), "garbage-collection").await;
        let gc = GarbageCollection::new(service.clone(), Limits::default(), &metrics);
        World { service, metrics, gc: tokio::sync::Mutex::new((gc, term)), _keep: Box::new(keep) }
    }

    /// Another process takes over; what this one remembered is lost.
    pub async fn take_over(&self, limits: Limits) {
        let mut gc = self.gc.lock().await;
        self.service.store().release_lease(&gc.1.lease).await.unwrap();
        let metrics = Metrics::new("test", "0", None);
        let fresh = GarbageCollection::new(self.service.clone(), limits, &metrics);
        *gc = (fresh, term(self.service.store(), "garbage-collection").await);
    }

    /// Leaves the lease to others.
    pub async fn resign(&self) {
        let gc = self.gc.lock().await;
        self.service.store().release_lease(&gc.1.lease).await.unwrap();
    }

    /// How many volumes there are.
    pub async fn volumes(&self, namespaces: &Namespaces) -> usize {
        let view = self.service.store().fresh().await.unwrap();
        view.count(Kind::PersistentVolume, Some(&namespaces.own))
    }

    /// One pass: what was written and what was refused.
    pub async fn pass(&self) -> (usize, usize) {
        let mut gc = self.gc.lock().await;
        let (gc, term) = &mut *gc;
        let report = gc.pass(term).await.unwrap();
        (report.writes, report.refused)
    }

    /// Passes until there is nothing to do; how much was written.
    pub async fn settle(&self) -> usize {
        let mut written = 0;
        for _ in 0..PASSES {
            let (writes, _) = self.pass().await;
            if writes == 0 {
                return written;
            }
            written += writes;
        }
        panic!("the garbage collection does not come to rest");
    }

    pub async fn create(&self, kind: Kind, namespace: &str, object: Value) -> Arc<Entry> {
        self.create_as(&operator(), kind, namespace, object).await
    }

    pub async fn create_as(
        &self,
        context: &RequestContext,
        kind: Kind,
        namespace: &str,
        object: Value,
    ) -> Arc<Entry> {
        let namespace = if kind.namespaced() { namespace } else { "" };
        let body = Body::Json(object.to_string().into());
        let written = self.service.create(context, kind, namespace, body, &WriteOptions::default()).await;
        written.unwrap_or_else(|status| panic!("{object}: {status}")).entry
    }

    pub async fn merge(&self, key: &Key, patch: Value) {
        let patch = Patch { kind: PatchType::Merge, document: patch.to_string().into() };
        self.service.patch(&operator(), key, Part::Main, patch, &WriteOptions::default()).await.unwrap();
    }

    pub async fn delete(&self, key: &Key, policy: Propagation) -> Deleted {
        let options = DeleteOptions { propagation: Some(policy), ..DeleteOptions::default() };
        self.service.delete(&operator(), key, &options).await.unwrap()
    }

    pub async fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        self.service.get(key, At::Fresh).await.ok()
    }

    pub async fn get(&self, key: &Key) -> Option<Value> {
        let entry = self.entry(key).await?;
        Some(serde_json::from_slice(&entry.shown()).unwrap())
    }

    pub async fn uid(&self, key: &Key) -> String {
        self.entry(key).await.expect("it is there").uid.to_string()
    }

    pub async fn namespaces(&self, number: usize) -> Namespaces {
        let namespaces = Namespaces { own: format!("row-{number}"), elsewhere: format!("beside-{number}") };
        for name in [&namespaces.own, &namespaces.elsewhere] {
            self.create(Kind::Namespace, "", json!({"metadata": {"name": name}})).await;
        }
        namespaces
    }

    /// Makes volumes, then says who owns them.
    pub async fn make(&self, namespaces: &Namespaces, objects: &[(&str, &[(&str, Ref)])]) {
        for (name, _) in objects {
            let key = namespaces.key(name);
            let object = json!({"metadata": {"name": name}, "spec": {}});
            self.create(Kind::PersistentVolume, &key.namespace, object).await;
        }
        for (name, owners) in objects.iter().filter(|(_, owners)| !owners.is_empty()) {
            let mut references = Vec::new();
            for (owner, how) in *owners {
                references.push(self.reference(&namespaces.key(owner), *how).await);
            }
            self.merge(&namespaces.key(name), json!({"metadata": {"ownerReferences": references}})).await;
        }
    }

    async fn reference(&self, owner: &Key, how: Ref) -> Value {
        let uid = match how {
            Ref::NeverSeen => Uuid::new_v4().to_string(),
            _ => self.uid(owner).await,
        };
        let mut reference = reference(owner, &uid);
        match how {
            Ref::Plain | Ref::NeverSeen => {}
            Ref::Blocks => reference["blockOwnerDeletion"] = json!(true),
            Ref::OtherName => reference["name"] = json!("other"),
            Ref::OtherKind => reference["kind"] = json!("Service"),
            Ref::NotWhole => reference["apiVersion"] = json!(""),
            Ref::Foreign => reference["apiVersion"] = json!("apps/v1"),
        }
        reference
    }

    /// The volumes that are there, none of them being deleted, and the names of their owners.
    pub async fn left(&self, namespaces: &Namespaces) -> Vec<(String, Vec<String>)> {
        let view = self.service.store().fresh().await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        view.list(Kind::PersistentVolume, Some(&namespaces.own))
            .map(|entry| {
                assert!(!entry.deleting, "{} is still being deleted", entry.key);
                let object = entry.object().unwrap().into_value();
                let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
                let names = owners.iter().map(|owner| text(&owner["name"])).collect();
                (entry.key.name.clone(), names)
            })
            .collect()
    }

    /// The number behind a line of the metrics that begins so.
    pub fn counted(&self, what: &str) -> u64 {
        let line = format!("horchestra_garbage_total{{what=\"{what}\"}}");
        let text = self.metrics.encode().unwrap();
        let found = text.lines().find_map(|found| found.strip_prefix(&line));
        found.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}
