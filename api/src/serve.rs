//! A replica, from its arguments to its exit code.

use std::convert::Infallible;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use horchestra_auth::tokens::{self, Issuer, KeyFiles};
use horchestra_auth::{Authorizer, DenyList, SecretKeys};
use horchestra_core::gates::Gate;
use horchestra_runtime::args::{DatabaseArgs, TokenArgs};
use horchestra_runtime::follow::follow;
use horchestra_runtime::keys::KeysInUse;
use horchestra_runtime::metrics::Readings;
use horchestra_runtime::tls::{
    ClientCertificates, KeyPairFiles, ReloadingClient, ReloadingServer, TlsMetrics,
};
use horchestra_runtime::{
    Backoff, Checks, Metrics as Page, Shutdown, Tasks, Traces, health, place, raise_file_limit,
};
use horchestra_service::denied::Denials;
use horchestra_service::sealing::{self, missing_keys_patiently};
use horchestra_service::settings::{ClusterSettings, Wanted};
use horchestra_service::{CachedRules, Service, ServiceConfig};
use horchestra_store::postgres::{Observer, Options, PostgresBackend};
use horchestra_store::{Announcement, Store, StoreOptions, StoreReadings};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::app::{App, PATIENCE, Parts};
use crate::cli::ServeArgs;
use crate::handlers::health::add_checks;
use crate::metrics::Metrics;
use crate::relay::Relay;
use crate::server::{Limits, Listener};

/// The store over the database that the arguments name. It loads in the background. `observer` is told of its
/// statements.
pub fn open_store(args: &DatabaseArgs, observer: Option<Observer>) -> anyhow::Result<Store> {
    let options = Options {
        application: "horchestra-api".to_owned(),
        connections: args.database_connections,
        listen_url: args.database_listen_url.clone(),
        observer,
    };
    let backend =
        PostgresBackend::open(&args.database_url, options).context("the database cannot be used")?;
    let kinds = horchestra_core::registry::served().iter().map(|spec| spec.kind).collect();
    Ok(Store::open(backend, StoreOptions { kinds, ..StoreOptions::default() }))
}

/// The keys of Secrets, if a file of them is named.
fn load_keys(file: Option<&Path>) -> anyhow::Result<Option<SecretKeys>> {
    let load = |file| SecretKeys::load(file).context("the keys of Secrets cannot be used");
    file.map(load).transpose()
}

/// What the metrics say of the keys of Secrets.
fn in_use(keys: &SecretKeys) -> KeysInUse {
    let ring = keys.ring();
    KeysInUse {
        keys: ring.ids().map(str::to_owned).collect(),
        sealing: ring.sealing_key().to_owned(),
        unusable: keys.failing(),
    }
}

/// The issuer of workload tokens, if it has keys; `named` is what the cluster calls it.
fn load_issuer(args: &TokenArgs, named: Option<&str>) -> anyhow::Result<Option<Arc<Issuer>>> {
    let load = |path: &PathBuf| {
        let name = named.unwrap_or(tokens::DEFAULT_ISSUER);
        Issuer::load(name, KeyFiles::new(path)).context("the keys of tokens cannot be used").map(Arc::new)
    };
    args.jwt_signing_key.as_ref().map(load).transpose()
}

/// Serves until a signal, or until something necessary breaks.
pub async fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let traces = Traces::begin("horchestra-api", env!("CARGO_PKG_VERSION"));
    let code = Box::pin(process(args)).await;
    traces.finish().await;
    code
}

async fn process(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    raise_file_limit();
    let page = Page::new("horchestra-api", env!("CARGO_PKG_VERSION"), option_env!("HORCHESTRA_COMMIT"));
    let tasks = Tasks::new(&page);
    let shutdown = Shutdown::install(&args.shutdown, &tasks)?;

    let server = ReloadingServer::load(
        KeyPairFiles { certificate: args.tls.tls_cert.clone(), key: args.tls.tls_key.clone() },
        ClientCertificates::Optional { ca: args.tls.tls_ca.clone() },
        &[b"h2", b"http/1.1"],
    )
    .context("the TLS files of the listener cannot be used")?;
    let server = Arc::new(server);
    let client = ReloadingClient::load(
        Some(KeyPairFiles { certificate: args.peer.peer_cert.clone(), key: args.peer.peer_key.clone() }),
        args.peer.peer_ca.clone(),
        &[b"h2"],
    )
    .context("the TLS files for calls to gateways cannot be used")?;
    let client = Arc::new(client);
    let interval = args.tls.tls_reload_interval;
    let (follower, stopping) = (server.clone(), tasks.stopping().clone());
    tasks.supervise("tls-server", Backoff::default(), move || {
        let follow = follower.clone().follow(interval, stopping.clone());
        async move {
            follow.await;
            Ok::<(), Infallible>(())
        }
    });
    let (follower, stopping) = (client.clone(), tasks.stopping().clone());
    tasks.supervise("tls-client", Backoff::default(), move || {
        let follow = follower.clone().follow(interval, stopping.clone());
        async move {
            follow.await;
            Ok::<(), Infallible>(())
        }
    });

    TlsMetrics::default()
        .server("serving", "client-authorities", &server)
        .client("own", "gateway-authorities", &client)
        .register(&page);
    let mut secret_keys = load_keys(args.secrets.secret_keys.as_deref())?;
    let store = open_store(&args.database, Some(Arc::new(page.statements())))?;
    let shown = store.clone();
    page.readings(move || {
        let StoreReadings { counters, gauges, gauges_by, histograms } = shown.readings();
        Readings { counters, gauges, gauges_by, histograms }
    });
    store.announce(Announcement {
        id: Uuid::new_v4(),
        program: "horchestra-api".to_owned(),
        place: place(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let checks = Checks::new();
    let authorizer = Arc::new(Authorizer::new(CachedRules::new(store.clone())));
    add_checks(&checks, &store, &authorizer);
    checks.draining(shutdown.draining());
    let listening = checks.state("listener");
    let health = health::bind(args.metrics.metrics_addr).await?;
    tasks.essential(
        "health",
        &shutdown,
        health::serve(health, checks.clone(), page.clone(), tasks.stopping().clone()),
    );

    // Probes answer while this waits for a database that is not there yet.
    let wanted = Wanted {
        node_ready_timeout: args.node_ready_timeout,
        feature_gates: args.feature_gates,
        jwt_issuer: args.tokens.jwt_issuer.clone(),
        service_range: args.service_cidr,
        routed_range: args.routed_cidr,
        catalog_namespace: args.catalog_namespace.clone(),
        ..Wanted::default()
    };
    let settings = tokio::select! {
        () = shutdown.draining().cancelled() => return Ok(shutdown.finish(&tasks).await),
        settings = ClusterSettings::agree_patiently(&store, wanted) => settings?,
    };
    let listener = Arc::clone(&server);
    let deny = move |list: DenyList| listener.deny(move |leaf| list.denies(leaf));
    let denials = tokio::select! {
        () = shutdown.draining().cancelled() => return Ok(shutdown.finish(&tasks).await),
        denials = Denials::read_patiently(&store, deny) => denials,
    };
    tasks.vital("denied-certificates", denials.follow(interval, tasks.stopping().clone()));
    let ring = secret_keys.as_ref().map(SecretKeys::ring);
    let missing = tokio::select! {
        () = shutdown.draining().cancelled() => return Ok(shutdown.finish(&tasks).await),
        missing = missing_keys_patiently(&store, ring.as_deref()) => missing,
    };
    match (missing, &mut secret_keys) {
        (Some(missing), keys) if args.allow_missing_secret_keys => {
            tracing::error!("{missing}; going on without them, as --allow-missing-secret-keys says");
            if let Some(keys) = keys {
                keys.give_up(missing.0.into_iter().map(|used| used.key_id));
            }
        }
        (Some(missing), _) => {
            bail!("{missing}, or start it with --allow-missing-secret-keys and these Secrets stay closed");
        }
        (None, None) => {
            tracing::warn!("no --secret-keys: Secrets can be neither read nor written through this replica");
        }
        (None, Some(keys)) => tracing::info!(key = keys.ring().sealing_key(), "Secrets are sealed"),
    }
    let secret_keys = secret_keys.map(Arc::new);
    if let Some(keys) = &secret_keys {
        let shown = Arc::clone(keys);
        horchestra_runtime::keys::register(&page, move || in_use(&shown));
        let (keys, store, stopping) = (Arc::clone(keys), store.clone(), tasks.stopping().clone());
        tasks.supervise("secret-keys", Backoff::default(), move || {
            let (keys, store, stopping) = (Arc::clone(&keys), store.clone(), stopping.clone());
            async move {
                follow(interval, stopping, "the keys of Secrets", || sealing::reload(&keys, &store)).await;
                Ok::<(), Infallible>(())
            }
        });
    }
    let issuer = load_issuer(&args.tokens, settings.jwt_issuer.as_deref())?;
    if let Some(issuer) = &issuer {
        tracing::info!(issuer = issuer.name(), keys = ?issuer.key_ids(), "workloads are known by their tokens");
        let (issuer, stopping) = (Arc::clone(issuer), tasks.stopping().clone());
        tasks.supervise("signing-keys", Backoff::default(), move || {
            let (issuer, stopping) = (Arc::clone(&issuer), stopping.clone());
            async move {
                follow(interval, stopping, "the keys of tokens", || ready(issuer.reload())).await;
                Ok::<(), Infallible>(())
            }
        });
    }
    let config = ServiceConfig {
        ready_timeout: settings.node_ready_timeout(),
        catalog_namespace: settings.catalog_namespace().to_owned(),
        gates: settings.feature_gates,
        service_range: settings.service_range,
        routed_range: settings.routed_range,
        secret_keys,
        ..ServiceConfig::default()
    };
    let tls = client.clone();
    let app = App::new(Parts {
        service: Service::new(store.clone(), config),
        authorizer,
        issuer,
        checks,
        metrics: Metrics::new(&page),
        limits: args.limits(),
        relay: Some(Relay::new(store.clone(), Arc::new(move || tls.config()))),
        node_logs: settings.feature_gates.enabled(Gate::NodeLogs),
        patience: PATIENCE,
    });

    let tcp =
        TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    listening.pass();
    tracing::info!(address = %args.listen, metrics = %args.metrics.metrics_addr,
        database_connections = args.database.most_connections(), "serving");
    let listener = Listener {
        tcp,
        tls: server,
        limits: Limits { connections: args.max_connections, ..Limits::default() },
        proxies: args.proxy_from.clone(),
    };
    let stop = tasks.stopping().clone();
    // A little less than the whole, so that the listener can say what it cut off.
    let grace = args.shutdown.shutdown_timeout.saturating_sub(Duration::from_secs(1));
    tasks.essential("listener", &shutdown, async move {
        listener.serve(app, stop, grace).await;
        Ok::<(), Infallible>(())
    });

    let code = shutdown.finish(&tasks).await;
    let _ = tokio::time::timeout(Duration::from_secs(5), store.shutdown()).await;
    Ok(code)
}
