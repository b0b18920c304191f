//! The process: opens the store, serves, ends in order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use horchestra_auth::sealing::RingError;
use horchestra_auth::tokens::{self, Issuer, KeyFiles};
use horchestra_auth::{DenyList, SecretKeys};
use horchestra_core::kind::Kind;
use horchestra_runtime::follow::follow;
use horchestra_runtime::keys::KeysInUse;
use horchestra_runtime::metrics::Readings;
use horchestra_runtime::tls::{KeyPairFiles, TlsMetrics};
use horchestra_runtime::{
    Checks, Metrics, Shutdown, Tasks, Traces, health, place, raise_file_limit, telemetry,
};
use horchestra_service::denied::Denials;
use horchestra_service::sealing::{self, missing_keys_patiently};
use horchestra_service::settings::{ClusterSettings, Wanted};
use horchestra_service::{Service, ServiceConfig};
use horchestra_store::postgres::{self, PostgresBackend};
use horchestra_store::{Announcement, Store, StoreOptions, StoreReadings};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::args::Args;
use crate::desired::feed;
use crate::gate::Gate;
use crate::gateway::{Gateway, GatewayTls};
use crate::tokens::{AgentCa, Tokens};

/// How long the database may be away before this process says that it is not ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// For how long the database is waited for at the very end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs until a signal or a failure.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    telemetry::init(&args.telemetry)?;
    let traces = Traces::begin("horchestra-nodegate", env!("CARGO_PKG_VERSION"));
    let code = Box::pin(process(args)).await;
    traces.finish().await;
    code
}

async fn process(args: Args) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    let metrics =
        Metrics::new("horchestra-nodegate", env!("CARGO_PKG_VERSION"), option_env!("HORCHESTRA_COMMIT"));
    let tasks = Tasks::new(&metrics);
    let shutdown = Shutdown::install(&args.shutdown(), &tasks)?;
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
        jwt_issuer: args.tokens.jwt_issuer.clone(),
        service_range: args.service_cidr,
        routed_range: args.routed_cidr,
        ..Wanted::default()
    };
    let cluster = tokio::select! {
        agreed = ClusterSettings::agree_patiently(&store, wanted) => agreed?,
        code = shutdown.finish(&tasks) => return Ok(code),
    };
    let listeners = [Arc::clone(&tls.nodes), Arc::clone(&tls.internal)];
    let deny = move |list: DenyList| {
        let list = Arc::new(list);
        for listener in &listeners {
            let list = Arc::clone(&list);
            listener.deny(move |leaf| list.denies(leaf));
        }
    };
    let denials = tokio::select! {
        denials = Denials::read_patiently(&store, deny) => denials,
        code = shutdown.finish(&tasks) => return Ok(code),
    };
    tasks
        .vital("denied-certificates", denials.follow(args.tls.tls_reload_interval, tasks.stopping().clone()));
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
    let given_tokens = load_tokens(&args, cluster.jwt_issuer.as_deref())?;
    let shown_keys = secret_keys.clone();
    let ready_timeout = cluster.node_ready_timeout();
    let config = ServiceConfig { ready_timeout, secret_keys, ..ServiceConfig::default() };
    let service = Service::new(store.clone(), config);
    let mut settings = args.settings(internal.local_addr()?, ready_timeout);
    settings.routed_range = cluster.routed_range;
    settings.service_range = cluster.service_range;
    tracing::info!(nodes = %nodes.local_addr()?, internal = %settings.internal_address,
        database_connections = args.database.most_connections(), "listening");
    let gateway = Gateway::launch(service, settings, given_tokens, (nodes, internal), &tls, &metrics, &tasks);
    store.announce(Announcement {
        id: gateway.gate.id,
        program: "horchestra-nodegate".to_owned(),
        place: place(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let interval = args.tls.tls_reload_interval;
    if let Some(keys) = &shown_keys {
        follow_keys(keys, &gateway.gate, interval, &metrics, &tasks);
    }
    follow_tokens(&gateway.gate, interval, &tasks);
    let gate = Arc::clone(&gateway.gate);
    checks.add("gateway", move || gate.readiness());
    let stopping = shutdown.stopping().clone();
    tasks.spawn("gateway", async move {
        stopping.cancelled().await;
        gateway.shutdown().await;
    });

    let code = shutdown.finish(&tasks).await;
    let _ = tokio::time::timeout(FAREWELL, async {
        store.shutdown().await;
        backend.close().await;
    })
    .await;
    Ok(code)
}

/// Reads the TLS files and follows their changes.
fn load_tls(args: &Args, tasks: &Tasks) -> anyhow::Result<GatewayTls> {
    let serving = KeyPairFiles { certificate: args.tls.tls_cert.clone(), key: args.tls.tls_key.clone() };
    let peer = KeyPairFiles { certificate: args.peer.peer_cert.clone(), key: args.peer.peer_key.clone() };
    let tls = GatewayTls::load(serving, &args.tls.tls_ca, peer, &args.peer.peer_ca)?;
    for server in [&tls.nodes, &tls.internal] {
        let follow = Arc::clone(server).follow(args.tls.tls_reload_interval, tasks.stopping().clone());
        tasks.vital("tls-files", follow);
    }
    Ok(tls)
}

/// Takes up changes of the keys of Secrets, and shows which there are.
fn follow_keys(
    keys: &Arc<SecretKeys>,
    gate: &Arc<Gate>,
    interval: Duration,
    metrics: &Metrics,
    tasks: &Tasks,
) {
    let shown = Arc::clone(keys);
    horchestra_runtime::keys::register(metrics, move || {
        let ring = shown.ring();
        KeysInUse {
            keys: ring.ids().map(str::to_owned).collect(),
            sealing: ring.sealing_key().to_owned(),
            unusable: shown.failing(),
        }
    });
    let (keys, gate, stopping) = (Arc::clone(keys), Arc::clone(gate), tasks.stopping().clone());
    tasks.vital("secret-keys", async move {
        let reload = async || {
            let changed = sealing::reload(&keys, &gate.store).await?;
            if changed {
                // What did not open may open now.
                gate.look_again();
            }
            Ok::<bool, RingError>(changed)
        };
        follow(interval, stopping, "the keys of Secrets", reload).await;
    });
}

/// What workloads are given tokens with. Keys must be there: those that this process would make are nobody else's.
fn load_tokens(args: &Args, issuer: Option<&str>) -> anyhow::Result<Tokens> {
    let load = |path: &PathBuf| {
        let name = issuer.unwrap_or(tokens::DEFAULT_ISSUER);
        Issuer::open(name, KeyFiles::new(path)).map(Arc::new).context(
            "the keys of tokens cannot be used; a replica of the API that is started with the same folder makes them",
        )
    };
    let issuer = args.tokens.jwt_signing_key.as_ref().map(load).transpose()?;
    match &issuer {
        Some(issuer) => {
            tracing::info!(issuer = issuer.name(), keys = ?issuer.key_ids(), "workloads get tokens");
        }
        None => tracing::warn!("no --jwt-signing-key: workloads cannot be given tokens"),
    }
    let ca = args.agent_ca.as_deref().map(AgentCa::load).transpose()?;
    Ok(Tokens::new(issuer, ca))
}

/// Takes up changes of the files that tokens are made with.
fn follow_tokens(gate: &Arc<Gate>, interval: Duration, tasks: &Tasks) {
    let (gate, stopping) = (Arc::clone(gate), tasks.stopping().clone());
    tasks.vital("token-files", async move {
        let reload = || {
            let changed = gate.tokens.reload();
            if let Ok(true) = changed {
                // A token that was signed with a key that is gone is good for nothing.
                gate.look_again();
            }
            std::future::ready(changed)
        };
        follow(interval, stopping, "the files of tokens", reload).await;
    });
}

async fn listen(address: SocketAddr, whom: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address} for {whom}"))
}

/// The store on PostgreSQL, with the kinds that a gateway looks at.
fn open_store(args: &Args, metrics: &Metrics) -> anyhow::Result<(Store, Arc<PostgresBackend>)> {
    let options = postgres::Options {
        // Of its own: by it the next process of this name finds out whether this one is still there.
        application: format!("horchestra-nodegate {}", Uuid::new_v4()),
        connections: args.database.database_connections,
        listen_url: args.database.database_listen_url.clone(),
        observer: Some(Arc::new(metrics.statements())),
    };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("opening the database")?;
    let mut kinds = vec![Kind::Namespace, Kind::Event];
    kinds.extend(feed::KINDS);
    // Nobody watches here but the feed of this process, which is never far behind and loads anew if it ever is. What is
    // remembered of every node, twice over, would be a tenth of what a session costs.
    let (ring_events, ring_bytes, prefill) = (2_000, 2 << 20, 1_000);
    let options = StoreOptions { kinds, ring_events, ring_bytes, prefill, ..StoreOptions::default() };
    let store = Store::open(backend.clone(), options);
    let shown = store.clone();
    metrics.readings(move || {
        let StoreReadings { counters, gauges, gauges_by, histograms } = shown.readings();
        Readings { counters, gauges, gauges_by, histograms }
    });
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
