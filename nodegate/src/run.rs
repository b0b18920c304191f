//! The process: opens the store, serves, ends in order.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use horchestra_auth::SecretKeys;
use horchestra_core::kind::Kind;
use horchestra_runtime::follow::follow;
use horchestra_runtime::keys::KeysInUse;
use horchestra_runtime::tls::{KeyPairFiles, TlsMetrics};
use horchestra_runtime::{Checks, Metrics, Shutdown, Tasks, health, telemetry};
use horchestra_service::sealing::{self, missing_keys_patiently};
use horchestra_service::settings::{ClusterSettings, Wanted};
use horchestra_service::{Service, ServiceConfig};
use horchestra_store::postgres::{self, PostgresBackend};
use horchestra_store::{Store, StoreOptions};
use prometheus_client::encoding::EncodeLabelSet;
use tokio::net::TcpListener;

use crate::args::Args;
use crate::gateway::{Gateway, GatewayTls};

/// How long the database may be away before this process says that it is not ready.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatementLabels {
    statement: &'static str,
}

/// Runs until a signal or a failure.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    telemetry::init(&args.telemetry)?;
    let metrics = Metrics::new("nodegate", env!("CARGO_PKG_VERSION"), option_env!("HORCHESTRA_COMMIT"));
    let tasks = Tasks::new(&metrics);
    let shutdown = Shutdown::install(&args.shutdown, &tasks)?;
    let checks = Checks::new();
    checks.draining(shutdown.draining());
    // Fails until there is a gateway to look at.
    let _starting = checks.state("gateway");
    let listener = health::bind(args.metrics.metrics_addr).await?;
    let serving = health::serve(listener, checks.clone(), metrics.clone(), shutdown.stopping().clone());
    tasks.essential("health", &shutdown, serving);

    let tls = load_tls(&args, &tasks)?;
    TlsMetrics::default()
        .server("serving", "node-authorities", &tls.nodes)
        .server("own", "peer-authorities", &tls.internal)
        .register(&metrics);
    let secret_keys = match &args.secrets.secret_keys {
        Some(file) => Some(Arc::new(SecretKeys::load(file).context("the keys of Secrets cannot be used")?)),
        None => None,
    };
    let nodes = listen(args.listen, "nodes").await?;
    let internal = listen(args.internal.internal_addr, "the control plane").await?;

    let (store, backend) = open_store(&args, &metrics)?;
    watch_store(&checks, &store);
    let wanted = Wanted {
        node_ready_timeout: args.node_ready_timeout,
        feature_gates: args.feature_gates,
        service_range: args.service_cidr,
        routed_range: args.routed_cidr,
        ..Wanted::default()
    };
    let cluster = tokio::select! {
        agreed = ClusterSettings::agree_patiently(&store, wanted) => agreed?,
        code = shutdown.finish(&tasks) => return Ok(code),
    };
    // Said, and no more: nodes have to be heard and their Applications kept whether or not Secrets open.
    let ring = secret_keys.as_deref().map(SecretKeys::ring);
    let missing = tokio::select! {
        missing = missing_keys_patiently(&store, ring.as_deref()) => missing,
        code = shutdown.finish(&tasks) => return Ok(code),
    };
    match (missing, &secret_keys) {
        (Some(missing), _) => tracing::error!("{missing}; nodes are not sent these Secrets"),
        (None, None) => tracing::warn!("no --secret-keys: nodes cannot be sent any Secret"),
        (None, Some(_)) => {}
    }
    if let Some(keys) = &secret_keys {
        follow_keys(keys, &store, args.tls.tls_reload_interval, &metrics, &tasks);
    }
    let ready_timeout = cluster.node_ready_timeout();
    let config = ServiceConfig { ready_timeout, secret_keys, ..ServiceConfig::default() };
    let service = Service::new(store.clone(), config);
    let settings = args.settings(internal.local_addr()?, ready_timeout);
    tracing::info!(nodes = %nodes.local_addr()?, internal = %settings.internal_address, "listening");
    let gateway = Gateway::launch(service, settings, (nodes, internal), &tls, &metrics, &tasks);
    let gate = Arc::clone(&gateway.gate);
    checks.add("gateway", move || gate.readiness());
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

/// Reads the TLS files and follows their changes.
fn load_tls(args: &Args, tasks: &Tasks) -> anyhow::Result<GatewayTls> {
    let serving = KeyPairFiles { certificate: args.tls.tls_cert.clone(), key: args.tls.tls_key.clone() };
    let peer = KeyPairFiles { certificate: args.peer.peer_cert.clone(), key: args.peer.peer_key.clone() };
    let tls = GatewayTls::load(serving, &args.tls.tls_ca, peer, &args.peer.peer_ca)?;
    for server in [&tls.nodes, &tls.internal] {
        let follow = Arc::clone(server).follow(args.tls.tls_reload_interval, tasks.stopping().clone());
        tasks.spawn("tls-files", follow);
    }
    Ok(tls)
}

/// Takes up changes of the keys of Secrets, and shows which there are.
fn follow_keys(keys: &Arc<SecretKeys>, store: &Store, interval: Duration, metrics: &Metrics, tasks: &Tasks) {
    let shown = Arc::clone(keys);
    horchestra_runtime::keys::register(metrics, move || {
        let ring = shown.ring();
        KeysInUse {
            keys: ring.ids().map(str::to_owned).collect(),
            sealing: ring.sealing_key().to_owned(),
            unusable: shown.failing(),
        }
    });
    let (keys, store, stopping) = (Arc::clone(keys), store.clone(), tasks.stopping().clone());
    tasks.spawn("secret-keys", async move {
        follow(interval, stopping, "the keys of Secrets", || sealing::reload(&keys, &store)).await;
    });
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
        connections: args.database.database_connections,
        observer: Some(Arc::new(observer)),
    };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("opening the database")?;
    let kinds = vec![Kind::Namespace, Kind::Node, Kind::Application, Kind::PersistentVolume, Kind::Event];
    let store = Store::open(backend.clone(), StoreOptions { kinds, ..StoreOptions::default() });
    Ok((store, backend))
}

/// Readiness: the cache is loaded, and the database has not been away for long.
fn watch_store(checks: &Checks, store: &Store) {
    let looked_at = store.clone();
    checks.add("store", move || {
        let health = looked_at.health();
        if !health.loaded {
            return Err("the objects are being loaded".to_owned());
        }
        if health.disconnected_for > PATIENCE {
            return Err(format!("no database for {} s", health.disconnected_for.as_secs()));
        }
        Ok(())
    });
}
