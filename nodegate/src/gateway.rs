//! A gateway as a whole: put together, and taken apart in the right order.

use std::path::Path;
use std::sync::Arc;

use horchestra_runtime::tls::{ClientCertificates, KeyPairFiles, ReloadingServer, TlsError};
use horchestra_runtime::{Metrics, Tasks};
use horchestra_service::Service;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::front::Front;
use crate::gate::Gate;
use crate::relay::LogRelay;
use crate::settings::Settings;
use crate::tokens::Tokens;
use crate::transport::arrivals::Arrivals;
use crate::transport::listener::Listening;
use crate::transport::pace::Pace;
use crate::transport::splice::Splicer;

/// An agent opens one stream per connection; an API replica reads many logs over one.
const NODE_STREAMS: u32 = 64;
const INTERNAL_STREAMS: u32 = 1024;

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
    splices: CancellationToken,
    background: CancellationToken,
}

impl Gateway {
    /// Starts a gateway on these sockets.
    pub fn launch(
        service: Service,
        settings: Settings,
        tokens: Tokens,
        (nodes, internal): (TcpListener, TcpListener),
        tls: &GatewayTls,
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> Gateway {
        let gate = Gate::new(service, settings, tokens, metrics, tasks.clone());
        let (accepting, background) = (CancellationToken::new(), CancellationToken::new());
        let splices = CancellationToken::new();
        gate.start(&background);
        let settings = &gate.settings;
        let listening = |tls: &Arc<ReloadingServer>, streams: u32| Listening {
            tls: Arc::clone(tls),
            streams,
            proxies: Arc::default(),
            splicer: None,
            leaving: splices.clone(),
            arrivals: Arrivals::new(settings.arrivals),
            settings: Arc::clone(settings),
            metrics: gate.metrics.clone(),
            tasks: tasks.clone(),
            pace: Arc::new(Pace::per_second(gate.settings.accepts_per_second)),
        };
        let front = Front::server(Arc::clone(&gate));
        let relay = LogRelay::server(Arc::clone(&gate));
        // The one address of a fleet: nodes come here, and everybody else too.
        let one_address = Listening {
            proxies: settings.proxies.as_slice().into(),
            splicer: Splicer::new(&settings.api_backends, settings.splice, gate.metrics.transport.clone()),
            ..listening(&tls.nodes, NODE_STREAMS)
        };
        tasks.vital("node-listener", one_address.run(nodes, front, accepting.clone()));
        tasks.vital(
            "internal-listener",
            listening(&tls.internal, INTERNAL_STREAMS).run(internal, relay, accepting.clone()),
        );
        Gateway { gate, accepting, splices, background }
    }

    /// Stops in order: no new connections, then the sessions leave, then what is passed on to the API ends as soon as
    /// what was asked is answered, then the term is given up.
    pub async fn shutdown(&self) {
        self.accepting.cancel();
        self.gate.drain().await;
        self.splices.cancel();
        // A renewal after the retirement would begin a new term.
        self.background.cancel();
        self.gate.stop_recording();
        self.gate.retire().await;
    }
}
