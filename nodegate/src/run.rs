//! Putting a gateway together, and taking it apart in the right order.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use horchestra_core::kind::Kind;
use horchestra_runtime::tls::{ClientCertificates, KeyPairFiles, ReloadingServer, TlsError};
use horchestra_runtime::{Checks, Metrics, Shutdown, Tasks, health, telemetry};
use horchestra_service::{Service, ServiceConfig};
use horchestra_store::postgres::{self, PostgresBackend};
use horchestra_store::{Store, StoreOptions};
use prometheus_client::encoding::EncodeLabelSet;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::front::Front;
use crate::gate::Gate;
use crate::relay::LogRelay;
use crate::settings::Settings;
use crate::transport::listener::Listening;
use crate::transport::pace::Pace;

/// Connections that the committer and the listener for notifications have for themselves.
const CONNECTIONS_APART: u32 = 3;

/// An agent opens one stream per connection; an API replica reads many logs over one.
const NODE_STREAMS: u32 = 64;
const INTERNAL_STREAMS: u32 = 1024;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementLabels {
    statement: &'static str,
}

/// The TLS sides of the two listeners.
pub struct GatewayTls {
    pub nodes: Arc<ReloadingServer>,
    pub internal: Arc<ReloadingServer>,
}

impl GatewayTls {
    /// `serving` is what nodes see, `peer` what the other processes of the control plane see; `clients` and
    /// `peers` are the authorities that these come from. Nodes may come without a certificate, so that they
    /// can be told; the other processes may not.
    pub fn load(
        serving: KeyPairFiles,
        clients: &Path,
        peer: KeyPairFiles,
        peers: &Path,
    ) -> Result<GatewayTls, TlsError> {
        let nodes = ReloadingServer::load(
            serving,
            ClientCertificates::Optional { ca: clients.to_owned() },
            &[b"h2", b"http/1.1"],
        )?;
        let internal =
            ReloadingServer::load(peer, ClientCertificates::Required { ca: peers.to_owned() }, &[b"h2"])?;
        Ok(GatewayTls { nodes: Arc::new(nodes), internal: Arc::new(internal) })
    }
}

/// A gateway that runs.
pub struct Gateway {
    pub gate: Arc<Gate>,
    accepting: CancellationToken,
    background: CancellationToken,
}

impl Gateway {
    /// Starts a gateway on these sockets.
    pub fn launch(
        service: Service,
        settings: Settings,
        (nodes, internal): (TcpListener, TcpListener),
        tls: &GatewayTls,
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> Gateway {
        let gate = Gate::new(service, settings, metrics, tasks.clone());
        let (accepting, background) = (CancellationToken::new(), CancellationToken::new());
        gate.start(&background);
        let listening = |tls: &Arc<ReloadingServer>, streams: u32| Listening {
            tls: Arc::clone(tls),
            streams,
            settings: Arc::clone(&gate.settings),
            metrics: gate.metrics.clone(),
            tasks: tasks.clone(),
            pace: Arc::new(Pace::per_second(gate.settings.accepts_per_second)),
        };
        let front = Front::server(Arc::clone(&gate));
        let relay = LogRelay::server(Arc::clone(&gate));
        tasks
            .spawn("node-listener", listening(&tls.nodes, NODE_STREAMS).run(nodes, front, accepting.clone()));
        tasks.spawn(
            "internal-listener",
            listening(&tls.internal, INTERNAL_STREAMS).run(internal, relay, accepting.clone()),
        );
        Gateway { gate, accepting, background }
    }

    /// Stops in order: no new connections, then the sessions leave, then the term is given up.
    pub async fn shutdown(&self) {
        self.accepting.cancel();
        self.gate.drain().await;
        self.gate.retire().await;
        self.background.cancel();
    }
}

/// The binary.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    telemetry::init(&args.telemetry)?;
    let metrics = Metrics::new("horchestra-nodegate", env!("CARGO_PKG_VERSION"), option_env!("GIT_COMMIT"));
    let tasks = Tasks::new(&metrics);
    let shutdown = Shutdown::install(&args.shutdown, &tasks)?;

    let serving = KeyPairFiles { certificate: args.tls.tls_cert.clone(), key: args.tls.tls_key.clone() };
    let peer = KeyPairFiles { certificate: args.peer.peer_cert.clone(), key: args.peer.peer_key.clone() };
    let tls = GatewayTls::load(serving, &args.tls.tls_ca, peer, &args.peer.peer_ca)?;
    for server in [&tls.nodes, &tls.internal] {
        let follow = Arc::clone(server).follow(args.tls.tls_reload_interval, tasks.stopping().clone());
        tasks.spawn("tls-files", follow);
    }
    let nodes = listen(args.listen, "nodes").await?;
    let internal = listen(args.internal.internal_addr, "the control plane").await?;
    let health_socket = listen(args.metrics.metrics_addr, "health and metrics").await?;

    let (store, backend) = open_store(&args, &metrics)?;
    let config = ServiceConfig { ready_timeout: args.node_ready_timeout, ..ServiceConfig::default() };
    let service = Service::new(store.clone(), config);
    let settings = args.settings(internal.local_addr()?);
    tracing::info!(nodes = %nodes.local_addr()?, internal = %settings.internal_address, "listening");
    let gateway = Gateway::launch(service, settings, (nodes, internal), &tls, &metrics, &tasks);

    let checks = Checks::new();
    checks.draining(shutdown.draining());
    let gate = Arc::clone(&gateway.gate);
    checks.add("gateway", move || gate.readiness());
    tasks.essential(
        "health",
        &shutdown,
        health::serve(health_socket, checks, metrics, tasks.stopping().clone()),
    );
    let stopping = shutdown.stopping().clone();
    tasks.spawn("gateway", async move {
        stopping.cancelled().await;
        gateway.shutdown().await;
    });
    let code = shutdown.finish(&tasks).await;
    store.shutdown().await;
    backend.close().await;
    Ok(code)
}

async fn listen(address: SocketAddr, whom: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for {whom}"))
}

/// The store on PostgreSQL, with the kinds that a gateway looks at.
fn open_store(args: &Args, metrics: &Metrics) -> anyhow::Result<(Store, Arc<PostgresBackend>)> {
    let statements = metrics.durations::<StatementLabels>("sql_statement", "Statements of the catalogue");
    let observer = move |name: &'static str, took: Duration| {
        statements.get_or_create(&StatementLabels { statement: name }).observe(took.as_secs_f64());
    };
    let options = postgres::Options {
        application: "horchestra-nodegate".to_owned(),
        connections: args.database.database_connections.saturating_sub(CONNECTIONS_APART).max(2),
        observer: Some(Arc::new(observer)),
    };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("the database cannot be used")?;
    let kinds = vec![Kind::Namespace, Kind::Node, Kind::Application];
    let store = Store::open(backend.clone(), StoreOptions { kinds, ..StoreOptions::default() });
    Ok((store, backend))
}
