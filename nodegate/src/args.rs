//! Arguments of `horchestra-nodegate`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use horchestra_core::gates::Gates;
use horchestra_core::ranges::Network;
use horchestra_runtime::args::{
    DatabaseArgs, InternalArgs, MetricsArgs, PeerArgs, SecretArgs, ShutdownArgs, TelemetryArgs, TlsArgs,
    TokenArgs, duration,
};
use horchestra_runtime::proxy::Block;

use crate::settings::{SHORTEST_STALE, Settings};
use crate::strict::ReverseNames;
use crate::transport::splice::{self, Backend};

/// Where health and metrics are unless `--metrics-addr` says otherwise.
pub const METRICS_PORT: u16 = 9454;

/// Serves the sessions of nodes: sends them what they are to run, and takes in what they report.
#[derive(Clone, Debug, Parser)]
// What is said last counts (lists add up): units say some options, and OPTIONS may say them again.
#[command(name = "horchestra-nodegate", version, args_override_self = true, after_help = horchestra_runtime::probe::ALSO)]
pub struct Args {
    /// Listener for nodes, and with --api-backend for everybody
    #[arg(long, default_value = "127.0.0.1:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    #[command(flatten)]
    pub tls: TlsArgs,

    #[command(flatten)]
    pub internal: InternalArgs<9444>,

    #[command(flatten)]
    pub peer: PeerArgs,

    /// What this gateway is called. One that dies and is started again under its name has the nodes back at once,
    /// instead of after the eight seconds of its predecessor's term. Must be another one for each gateway [default:
    /// the host's name and the port of --listen]
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub name: Option<String>,

    /// host:port under which API replicas reach the internal listener; absent: its own address
    #[arg(long, value_name = "HOST:PORT")]
    pub internal_advertise: Option<String>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub secrets: SecretArgs,

    #[command(flatten)]
    pub tokens: TokenArgs,

    /// For fleets with agents of the 0.9 line, which cannot mount tokens: send nodes the files of a token volume as a
    /// volume of a Secret, with this file (PEM, read again when it changes) as its ca.crt: the authorities that the
    /// agents believe this control plane by. Applies to nodes that have not been sent a token volume yet; for the
    /// others, and for a single node, say it with the annotation horchestra.io/token-volumes (`token` or `secret`) of
    /// the Node, which restarts the workloads with such volumes
    #[arg(long, value_name = "FILE")]
    pub agent_ca: Option<PathBuf>,

    #[command(flatten)]
    pub metrics: MetricsArgs<METRICS_PORT>,

    /// How long a node may be silent before it is judged not ready; a silent session may be taken over after
    /// this time, but not before 60s [default: the cluster's, which is 45s unless its first process said
    /// otherwise]
    #[arg(long, value_parser = duration, value_name = "DURATION")]
    pub node_ready_timeout: Option<Duration>,

    /// Features that are off otherwise, as `<name>=true` separated by commas: AutoNodeCertRotation, NodeLogs,
    /// VaultDynamicSecrets, VaultStaticRoles [default: the cluster's, which are none unless its first process
    /// said otherwise]
    #[arg(long, value_name = "GATES")]
    pub feature_gates: Option<Gates>,

    /// Where Services that name no address get one from, such as 10.243.0.0/16; nodes and workloads must not have
    /// addresses of it. The first process that says one decides, and processes that ran before have to be started
    /// again [default: the cluster's]
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub service_cidr: Option<Network>,

    /// Where workloads with a network of their own get their addresses from, such as 10.244.0.0/16; without it
    /// none may ask for one. As with --service-cidr, the first process that says one decides [default: the
    /// cluster's]
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub routed_cidr: Option<Network>,

    /// host:port of a replica of the API, may be repeated: to these, in turn, goes what comes to the listener and
    /// is no stream of a node, still encrypted and with a PROXY header in front. They have to be started with this
    /// gateway's address in --proxy-from. Without any, clients of the API are turned away here
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub api_backend: Vec<Backend>,

    /// Most connections to the API that are passed on at once
    #[arg(long, default_value_t = 4096, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_spliced: u32,

    /// Balancers in front of this gateway whose PROXY protocol (version 2) header is believed: an address or a
    /// block, may be repeated
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS[/BITS]")]
    pub proxy_from: Vec<Block>,

    /// Let only those new nodes register whose address has a reverse name that begins with the node's name
    #[arg(long)]
    pub strict_node_registration: bool,

    /// How often a node is sent its desired state again though nothing changed; 0 = never
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub resend_interval: Duration,

    /// How much of the network may be used to tell all nodes what concerns all of them (routes to workloads, rules of
    /// Services), in MiB per second; what concerns one node does not wait for it
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub fleet_egress: u32,

    /// Logs that may be read through this gateway at the same time
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub log_streams: u32,

    /// TLS handshakes, and session claims, per second
    #[arg(long, default_value_t = 500, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub accept_rate: u32,

    /// Over how long, at most, sessions are sent to other gateways on shutdown, in random order: fifty a second,
    /// more if they are too many. --shutdown-timeout counts from there
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub drain_over: Duration,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub shutdown: ShutdownArgs,
}

impl Args {
    /// How the process ends: sessions have left before anything is cut off.
    pub fn shutdown(&self) -> ShutdownArgs {
        let shutdown_timeout = self.shutdown.shutdown_timeout.saturating_add(self.drain_over);
        ShutdownArgs { shutdown_timeout, ..self.shutdown.clone() }
    }

    /// What the gateway runs by. `internal` is where the internal listener turned out to listen,
    /// `ready_timeout` what the cluster has agreed on.
    pub fn settings(&self, internal: SocketAddr, ready_timeout: Duration) -> Settings {
        Settings {
            internal_address: self.internal_advertise.clone().unwrap_or_else(|| internal.to_string()),
            name: self.name.clone().or_else(|| {
                horchestra_runtime::host_name().map(|host| format!("{host}:{}", self.listen.port()))
            }),
            stale_after: ready_timeout.max(SHORTEST_STALE),
            resend_every: (!self.resend_interval.is_zero()).then_some(self.resend_interval),
            fleet_egress: u64::from(self.fleet_egress) << 20,
            log_streams: self.log_streams as usize,
            accepts_per_second: self.accept_rate,
            claims_per_second: self.accept_rate,
            strict_registration: self.strict_node_registration.then(ReverseNames::of_the_system),
            drain_over: self.drain_over,
            api_backends: self.api_backend.clone(),
            splice: splice::Limits { connections: self.max_spliced as usize, ..splice::Limits::default() },
            proxies: self.proxy_from.clone(),
            ..Settings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: Duration = Duration::from_secs(45);

    fn args(extra: &[&str]) -> Args {
        let base = ["test", "--database-url=x", "--tls-cert=c", "--tls-key=k", "--tls-ca=a"];
        let peer = ["--peer-cert=c", "--peer-key=k", "--peer-ca=a"];
        Args::try_parse_from(base.iter().chain(&peer).chain(extra)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn sessions_are_never_taken_over_within_a_minute() {
        for (timeout, stale) in [(45, 60), (1, 60), (120, 120)] {
            let settings = args(&[]).settings(([127, 0, 0, 1], 9444).into(), Duration::from_secs(timeout));
            assert_eq!(settings.stale_after, Duration::from_secs(stale));
        }
    }

    #[test]
    fn defaults() {
        let args = args(&[]);
        assert_eq!(args.listen.to_string(), "127.0.0.1:8443");
        let settings = args.settings(([127, 0, 0, 1], 7).into(), READY);
        assert_eq!(settings.internal_address, "127.0.0.1:7");
        assert_eq!(settings.resend_every, Some(Duration::from_secs(300)));
        assert_eq!(settings.log_streams, 256);
        assert!(settings.strict_registration.is_none());
        assert!(settings.ping_every + settings.ping_timeout <= Duration::from_secs(40));
        assert_eq!(settings.drain_over, Duration::from_secs(60));
        assert_eq!(
            args.shutdown().shutdown_timeout,
            Duration::from_secs(80),
            "nobody is cut off while leaving"
        );
    }

    #[test]
    fn the_api_and_balancers_are_named() {
        let named = args(&["--api-backend=10.0.0.7:8443,api-1:8443", "--api-backend=[fd00::7]:8443"]);
        let settings = named.settings(([127, 0, 0, 1], 9444).into(), READY);
        let shown: Vec<String> = settings.api_backends.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.7:8443", "api-1:8443", "[fd00::7]:8443"]);
        let named = args(&["--proxy-from=10.0.0.0/8,127.0.0.1", "--max-spliced=5"]);
        let settings = named.settings(([127, 0, 0, 1], 9444).into(), READY);
        assert_eq!((settings.proxies.len(), settings.splice.connections), (2, 5));
    }

    #[test]
    fn resending_can_be_turned_off_and_the_address_advertised() {
        let args_of = |extra: &[&str]| args(extra);
        let args = args(&["--resend-interval=0", "--internal-advertise=gate-1.internal:9444"]);
        let settings = args.settings(([0, 0, 0, 0], 9444).into(), READY);
        assert_eq!(settings.resend_every, None);
        assert!(settings.name.is_some_and(|name| name.ends_with(":8443")));
        let named = args_of(&["--name=gate-1"]);
        assert_eq!(named.settings(([0, 0, 0, 0], 9444).into(), READY).name.as_deref(), Some("gate-1"));
        assert_eq!(settings.internal_address, "gate-1.internal:9444");
    }
}
