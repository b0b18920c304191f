//! A database with one of everything in it, as the control plane would have written it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity, KeyRing};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::usage::row::{Aged, AppUsage, NodeUsage};
use horchestra_core::usage::{Before, Measured, Sample};
use horchestra_service::{
    Body, Caller, DeleteOptions, Part, Patch, PatchType, RequestContext, Service, ServiceConfig, WriteOptions,
};
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::pushes::reason;
use horchestra_store::{
    AddressDemand, Announcement, DeniedCertificates, Heartbeat, Holding, PushChange, Samples, SeenSession,
    SessionClaim, Store, StoreOptions,
};
use horchestra_testkit::{Template, TestDatabase};
use serde_json::{Value, json};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// In every value of a Secret here, and nowhere else.
pub const PAYLOAD: &str = "the-payload-that-nobody-may-see";
/// In a label, so that what finds this would find that.
pub const CLEAR: &str = "in-the-clear";

pub struct World {
    pub database: TestDatabase,
    /// A transaction that somebody forgot.
    _forgotten: PgConnection,
}

const NODE: &str = "rack-a";
const LONG: Duration = Duration::from_secs(600);

fn operator() -> RequestContext {
    let identity = Identity {
        name: "olga".to_owned(),
        groups: vec!["system:masters".to_owned()],
        credential: Credential::Certificate {
            fingerprint: "00".repeat(32),
            not_after: "2100-01-01T00:00:00Z".parse().expect("a time"),
        },
    };
    let no_rules = Arc::new(Authorizer::new(FixedPolicy::default()));
    RequestContext::new(Caller::http(Arc::new(identity), no_rules))
}

impl World {
    pub async fn new() -> World {
        let schema = postgres::fingerprint();
        let migrate = async |url: String| Ok(postgres::migrate(&url).await?);
        let template = Template::prepare("inspect", &schema, migrate).await.expect("a migrated template");
        let database = template.database().await.expect("a database");
        let backend = PostgresBackend::open(database.url(), Options::default()).expect("a well-formed URL");
        let store = Store::open(backend, StoreOptions::default());
        store.ready().await;
        let keys = Arc::new(KeyRing::ephemeral().expect("keys"));
        let config = ServiceConfig { secret_keys: Some(Arc::new(keys.into())), ..ServiceConfig::default() };
        let made = Making { service: Service::new(store.clone(), config), store, operator: operator() };
        made.objects().await;
        made.presence().await;
        made.store.shutdown().await;

        let mut forgotten = PgConnection::connect(database.url()).await.expect("a connection");
        for statement in [
            "update horchestra.heartbeats set at = now() - interval '2 minutes'",
            "begin isolation level repeatable read",
            "select count(*) from horchestra.objects",
        ] {
            sqlx::raw_sql(statement).execute(&mut forgotten).await.expect(statement);
        }
        World { database, _forgotten: forgotten }
    }
}

struct Making {
    service: Service,
    store: Store,
    operator: RequestContext,
}

impl Making {
    async fn create(&self, kind: Kind, namespace: &str, body: Body) {
        let made = self.service.create(&self.operator, kind, namespace, body, &WriteOptions::default()).await;
        made.unwrap_or_else(|status| panic!("{kind}: {status:?}"));
    }

    async fn patch(&self, key: &Key, part: Part, document: Value) {
        let patch = Patch { kind: PatchType::Merge, document: document.to_string().into() };
        let made = self.service.patch(&self.operator, key, part, patch, &WriteOptions::default()).await;
        made.unwrap_or_else(|status| panic!("{key}: {status:?}"));
    }

    async fn objects(&self) {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kinds");
        let mut files: Vec<_> =
            fs::read_dir(examples).expect("examples").flatten().map(|file| file.path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "yaml")) {
            let text = fs::read_to_string(file).expect("a manifest");
            let member = |name: &str| {
                text.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default().trim()
            };
            let kind = Kind::ALL.into_iter().find(|kind| kind.name() == member("kind:")).expect("a kind");
            let namespace = if kind.namespaced() { "shop" } else { "" };
            self.create(kind, namespace, Body::Yaml(text.clone().into())).await;
        }
        let json = |value: Value| Body::Json(value.to_string().into());
        let at = |kind, name: &str| Key::namespaced(kind, "shop", name);
        self.create(Kind::Secret, "shop", json(json!({
            "metadata": {"name": "planted", "labels": {"of": CLEAR},
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": PAYLOAD}},
            "stringData": {"value": PAYLOAD, "shifted": format!("x{PAYLOAD}"), "further": format!("xy{PAYLOAD}")},
        }))).await;
        self.patch(
            &at(Kind::Secret, "planted"),
            Part::Main,
            json!({"stringData": {"value": format!("{PAYLOAD}!")}}),
        )
        .await;
        self.patch(
            &at(Kind::Secret, "cart-database"),
            Part::Main,
            json!({"metadata": {"labels": {"a": "b"}}}),
        )
        .await;

        self.patch(
            &Key::cluster(Kind::Node, NODE),
            Part::Status,
            json!({"status": {
                "ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}, "allocated": {},
                "conditions": [{"type": "Ready", "status": "False", "reason": "Silent", "message": "",
                    "lastTransitionTime": "2030-01-01T00:00:00Z"}],
            }}),
        )
        .await;
        for name in ["web", "worn", "old"] {
            self.create(Kind::Application, "shop", json(json!({
                "metadata": {"name": name, "labels": {"of": CLEAR}},
                "spec": {"image": format!("registry.shop.example/{name}:1"), "placement": {"nodeName": NODE},
                    "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}},
            }))).await;
        }
        self.patch(
            &at(Kind::Application, "web"),
            Part::Main,
            json!({"spec": {"image": "registry.shop.example/web:2"}}),
        )
        .await;
        self.patch(&at(Kind::Application, "web"), Part::Status, json!({"status": {"phase": "Running"}}))
            .await;
        self.patch(
            &at(Kind::Application, "worn"),
            Part::Status,
            json!({"status": {
            "phase": "Failed", "message": "it would not start", "exitCode": 3, "attempts": 1}}),
        )
        .await;
        self.patch(&at(Kind::Application, "cart"), Part::Status, json!({"status": {
            "phase": "Pending", "message": "no node has room", "conditions": [{"type": "Scheduled", "status": "False",
                "reason": "Unschedulable", "message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"}]}})).await;
        self.patch(
            &at(Kind::ApplicationSet, "search"),
            Part::Status,
            json!({"status": {
            "phase": "Progressing", "desired": 3, "current": 1, "scheduled": 0, "running": 0, "updated": 1,
            "conditions": [{"type": "Progressing", "status": "False", "reason": "DeadlineExceeded",
                "message": "nothing for 60 s", "lastTransitionTime": "2030-01-01T00:00:00Z"}]}}),
        )
        .await;
        let set = self
            .service
            .get(&at(Kind::ApplicationSet, "search"), horchestra_service::At::Fresh)
            .await
            .expect("there");
        self.create(Kind::Service, "shop", json(json!({
            "metadata": {"name": "lonely", "ownerReferences": [{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet",
                "name": "search", "uid": set.uid}]},
            "spec": {"ports": [{"port": 80}]},
        }))).await;
        self.create(Kind::Event, "shop", json(json!({
            "metadata": {"name": "told"}, "type": "Warning", "reason": "Unschedulable", "message": "no node has room",
            "involvedObject": {"kind": "Application", "namespace": "shop", "name": "cart"},
            "firstTimestamp": "2030-01-01T00:00:00Z", "lastTimestamp": "2030-01-01T00:00:00Z", "count": 3,
        }))).await;
        let volume = json!({"metadata": {"name": "lonely-volume"}, "spec": {"size": "1Gi", "node": NODE}});
        self.create(Kind::PersistentVolume, "shop", json(volume)).await;
        // One goes, one waits for its node.
        for key in [at(Kind::PersistentVolume, "lonely-volume"), at(Kind::Application, "old")] {
            self.service.delete(&self.operator, &key, &DeleteOptions::default()).await.expect("deleted");
        }
    }

    async fn presence(&self) {
        let (store, gateway, worker) = (&self.store, Uuid::new_v4(), Uuid::new_v4());
        store.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("renewed");
        store.name_gateway(gateway, "gate-0").await.expect("named");
        let claim = SessionClaim {
            node: NODE.to_owned(),
            gateway,
            peer: "192.0.2.7:4711".to_owned(),
            certificate: "ab".repeat(32),
        };
        let grant = store.claim_session(claim, LONG).await.expect("answered").expect("a session");
        let ends = jiff::Timestamp::now().as_microsecond() + 86_400_000_000;
        let seen = SeenSession { node: NODE.to_owned(), grant: grant.clone(), certificate_ends: Some(ends) };
        store.touch_sessions(gateway, &[seen]).await.expect("touched");
        store.acquire_lease("scheduler", worker, LONG).await.expect("answered").expect("a lease");
        for (id, program) in [(gateway, "horchestra-nodegate"), (worker, "horchestra-workers")] {
            let announcement = Announcement {
                id,
                program: program.into(),
                place: "here/17".into(),
                version: "0.1.0".into(),
            };
            store.backend().announce(&announcement, 1).await.expect("announced");
        }
        let beat = Heartbeat { node: NODE.to_owned(), allocated_cpu: 0, allocated_memory: 0 };
        store.record_heartbeats(&[beat]).await.expect("recorded");
        let sample = |cpu_usec, at| Sample { cpu_usec, memory_bytes: 123_456, at, ..Sample::default() };
        let used = Aged {
            measured: Measured {
                now: sample(3_000_000, 4_000_000_000),
                before: Some(Before { cpu_usec: 1_000_000, at: 2_000_000_000 }),
            },
            age: Duration::from_secs(1),
        };
        let web = store.fresh().await.expect("fresh").get(&Key::namespaced(Kind::Application, "shop", "web"));
        let web = web.expect("there");
        let app =
            AppUsage { uid: web.uid, namespace: "shop".into(), name: "web".into(), usage: used.clone() };
        let body = NodeUsage { node: Some(used), apps: vec![app] }.encode().into();
        store
            .record_samples(&[Samples { node: NODE.into(), grant: grant.clone(), body }])
            .await
            .expect("recorded");
        let held = Holding { key: web.key.clone(), uid: web.uid };
        let push = PushChange {
            node: NODE.into(),
            grant,
            revision: web.revision,
            add: vec![held],
            remove: Vec::new(),
        };
        store.record_pushes(&[push]).await.expect("recorded");
        store.engage_hold(None, reason::REQUESTED, "a rehearsal").await.expect("held");
        store.choose_token_form(NODE, true, false).await.expect("chosen");
        let denied = DeniedCertificates::Name { name: "node-9".into(), begun_until: 1 };
        store.deny_certificates(&denied, "its disk was stolen").await.expect("denied");
        let range = Ipv4Addr::new(10, 244, 0, 1)..=Ipv4Addr::new(10, 244, 0, 9);
        let demand = AddressDemand {
            holders: vec![(web.key.clone(), web.uid)],
            range,
            skipped: Vec::new(),
            hold_back: Duration::ZERO,
        };
        store.lease_addresses(&demand).await.expect("leased");
        let settings = json!({"nodeReadyTimeoutMs": 45_000}).to_string();
        store.write_settings(settings.into(), 0).await.expect("written");
    }
}
