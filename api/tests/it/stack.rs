//! A replica of the API in this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use horchestra_api::app::{App, Parts};
use horchestra_api::http::limits::Limits;
use horchestra_api::metrics::Metrics;
use horchestra_api::relay::Relay;
use horchestra_api::server::{self, Listener};
use horchestra_auth::pki::{Authority, Lifetime, LocalPki, PairFiles, Process};
use horchestra_auth::tokens::Issuer;
use horchestra_auth::{Authorizer, KeyRing, SecretKeys};
use horchestra_core::gates::Gate;
use horchestra_runtime::proxy::Block;
use horchestra_runtime::tls::{ClientCertificates, KeyPairFiles, ReloadingClient, ReloadingServer};
use horchestra_runtime::{Checks, Metrics as Page};
use horchestra_service::{CachedRules, Service, ServiceConfig};
use horchestra_store::Store;
use horchestra_testkit::TempDir;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Protocol};

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// No certificate.
    Anonymous,
    /// An identity that nothing was granted to.
    Nobody,
    /// Somebody of this name in this group, with the rights that rules give.
    User(&'static str, &'static str),
    /// The agent of this node.
    Node(&'static str),
    /// A process of the control plane.
    Controller,
    Master,
}

/// What may differ between tests.
pub struct Setup {
    pub limits: Limits,
    pub connections: server::Limits,
    pub proxies: Vec<Block>,
    /// How long a credential of [`Who::Nobody`] and [`Who::Master`] lasts.
    pub lifetime: Lifetime,
    pub relay: bool,
    pub patience: Duration,
    /// In place of an empty store in memory.
    pub store: Option<Store>,
    /// Without, Secrets can be neither read nor written.
    pub secret_keys: bool,
    pub service: ServiceConfig,
    pub issuer: Option<Arc<Issuer>>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            limits: Limits::default(),
            connections: server::Limits::default(),
            proxies: Vec::new(),
            lifetime: Lifetime::CLIENT,
            relay: false,
            patience: horchestra_api::app::PATIENCE,
            store: None,
            secret_keys: true,
            service: ServiceConfig::default(),
            issuer: None,
        }
    }
}

pub struct Stack {
    pub address: SocketAddr,
    pub app: Arc<App>,
    pub store: Store,
    pub pki: LocalPki,
    pub page: Page,
    pub tls: Arc<ReloadingServer>,
    lifetime: Lifetime,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
    folder: TempDir,
}

impl Stack {
    pub async fn start() -> Stack {
        Stack::with(Setup::default()).await
    }

    pub async fn with(setup: Setup) -> Stack {
        let _ = horchestra_runtime::crypto::install();
        let folder = TempDir::new().unwrap();
        let pki = LocalPki::ensure(&folder.path().join("pki"), &[]).unwrap();
        let authorities = folder.path().join("clients.crt");
        std::fs::copy(pki.authority(), &authorities).unwrap();
        let tls = ReloadingServer::load(
            pair(&pki.serving()),
            ClientCertificates::Optional { ca: authorities },
            &[b"h2", b"http/1.1"],
        )
        .unwrap();
        let tls = Arc::new(tls);
        let peer =
            ReloadingClient::load(Some(pair(&pki.controller(Process::Api))), pki.authority(), &[b"h2"])
                .unwrap();
        let peer = peer.config();
        let store = setup.store.unwrap_or_else(Store::memory);
        store.ready().await;
        let checks = Checks::new();
        let authorizer = Arc::new(Authorizer::new(CachedRules::new(store.clone())));
        horchestra_api::add_checks(&checks, &store, &authorizer);
        let page = Page::new("horchestra-api", "0.0.0", None);
        let app = App::new(Parts {
            service: Service::new(
                store.clone(),
                ServiceConfig { secret_keys: setup.secret_keys.then(keys), ..setup.service },
            ),
            authorizer,
            issuer: setup.issuer,
            checks,
            metrics: Metrics::new(&page),
            limits: setup.limits,
            node_logs: setup.service.gates.enabled(Gate::NodeLogs),
            relay: setup.relay.then(|| Relay::new(store.clone(), Arc::new(move || peer.clone()))),
            patience: setup.patience,
        });
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let stop = CancellationToken::new();
        let listener =
            Listener { tcp, tls: Arc::clone(&tls), limits: setup.connections, proxies: setup.proxies };
        let server = tokio::spawn(listener.serve(app.clone(), stop.clone(), Duration::from_secs(10)));
        let (lifetime, server) = (setup.lifetime, Some(server));
        Stack { address, app, store, pki, page, tls, lifetime, stop, server, folder }
    }

    /// As [`Stack::start`], with the Namespaces `default` and `team-a`.
    pub async fn with_namespaces() -> Stack {
        let stack = Stack::start().await;
        stack.make_namespaces().await;
        stack
    }

    pub async fn make_namespaces(&self) {
        let master = self.master();
        for name in ["default", "team-a"] {
            let reply =
                master.post("/apis/horchestra.io/v1/namespaces", &json!({"metadata": {"name": name}})).await;
            assert_eq!(reply.status, 201, "{reply:?}");
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets clients of these authorities, and no others, be believed from now on.
    pub fn believe(&self, authorities: &[&Authority]) {
        let bundle: String = authorities.iter().map(|ca| ca.pem().certificate.as_str()).collect();
        std::fs::write(self.folder.path().join("clients.crt"), bundle).unwrap();
        assert!(self.tls.reload().unwrap());
    }

    fn credential(&self, who: Who) -> Option<PairFiles> {
        let signed = |file: &str, name: &str, group: &str| {
            let folder = self.folder.path();
            let files = PairFiles {
                certificate: folder.join(format!("{file}.crt")),
                key: folder.join(format!("{file}.key")),
            };
            if !files.key.exists() {
                let issued = self.pki.signer().client(name, group, self.lifetime).unwrap();
                std::fs::write(&files.certificate, issued.certificate).unwrap();
                std::fs::write(&files.key, issued.key).unwrap();
            }
            files
        };
        match who {
            Who::Anonymous => None,
            Who::Nobody => Some(signed("nobody", "nobody", "team-a")),
            Who::Master => Some(signed("master", "admin", "system:masters")),
            Who::User(name, group) => Some(signed(&format!("user-{name}"), name, group)),
            Who::Node(name) => Some(self.pki.node(name).unwrap()),
            Who::Controller => Some(self.pki.controller(Process::Api)),
        }
    }

    pub fn client(&self, who: Who, protocol: Protocol) -> Client {
        let alpn: &[&[u8]] = match protocol {
            Protocol::Http1 => &[b"http/1.1"],
            Protocol::Http2 => &[b"h2"],
        };
        let files = self.credential(who).map(|files| pair(&files));
        let tls = ReloadingClient::load(files, self.pki.authority(), alpn).unwrap();
        Client::new(self.address, tls.config(), protocol)
    }

    pub fn master(&self) -> Client {
        self.client(Who::Master, Protocol::Http2)
    }

    /// A kubeconfig of the operator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(Who::Master, "admin")
    }

    /// A kubeconfig of somebody, under this name.
    pub fn kubeconfig_of(&self, who: Who, name: &str) -> PathBuf {
        let files = self.credential(who).unwrap();
        let text = self.pki.kubeconfig(&format!("https://{}", self.address), name, &files).unwrap();
        let path = self.folder.path().join(format!("kubeconfig-{name}"));
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Asks the replica to end, and waits for it.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            tokio::time::timeout(Duration::from_secs(15), server).await.expect("the server ends").unwrap();
        }
    }

    /// Asks the replica to end.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }
}

/// The keys of every replica.
pub fn keys() -> Arc<SecretKeys> {
    static KEYS: LazyLock<Arc<SecretKeys>> =
        LazyLock::new(|| Arc::new(Arc::new(KeyRing::ephemeral().unwrap()).into()));
    Arc::clone(&KEYS)
}

pub fn pair(files: &PairFiles) -> KeyPairFiles {
    KeyPairFiles { certificate: files.certificate.clone(), key: files.key.clone() }
}
