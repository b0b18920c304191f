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

use crate::settings::{SHORTEST_STALE, Settings};
use crate::strict::ReverseNames;

/// Serves the sessions of nodes: sends them what they are to run, and takes in what they report.
#[derive(Clone, Debug, Parser)]
#[command(name = "horchestra-nodegate", version)]
pub struct Args {
    /// Listener for nodes
    #[arg(long, default_value = "127.0.0.1:8444", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    #[command(flatten)]
    pub tls: TlsArgs,

    #[command(flatten)]
    pub internal: InternalArgs<9444>,

    #[command(flatten)]
    pub peer: PeerArgs,

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
    pub metrics: MetricsArgs<9454>,

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

    /// Let only those new nodes register whose address has a reverse name that begins with the node's name
    #[arg(long)]
    pub strict_node_registration: bool,

    /// How often a node is sent its desired state again though nothing changed; 0 = never
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub resend_interval: Duration,

    /// Logs that may be read through this gateway at the same time
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub log_streams: u32,

    /// TLS handshakes, and session claims, per second
    #[arg(long, default_value_t = 500, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub accept_rate: u32,

    /// Over how long, at most, sessions are sent to other gateways on shutdown
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub drain_over: Duration,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub shutdown: ShutdownArgs,
}

impl Args {
    /// What the gateway runs by. `internal` is where the internal listener turned out to listen,
    /// `ready_timeout` what the cluster has agreed on.
    pub fn settings(&self, internal: SocketAddr, ready_timeout: Duration) -> Settings {
        Settings {
            internal_address: self.internal_advertise.clone().unwrap_or_else(|| internal.to_string()),
            stale_after: ready_timeout.max(SHORTEST_STALE),
            resend_every: (!self.resend_interval.is_zero()).then_some(self.resend_interval),
            log_streams: self.log_streams as usize,
            accepts_per_second: self.accept_rate,
            claims_per_second: self.accept_rate,
            strict_registration: self.strict_node_registration.then(ReverseNames::of_the_system),
            // What has not left by the end of the shutdown is cut off.
            drain_over: self.drain_over.min(self.shutdown.shutdown_timeout / 2),
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
        assert_eq!(args.listen.to_string(), "127.0.0.1:8444");
        let settings = args.settings(([127, 0, 0, 1], 7).into(), READY);
        assert_eq!(settings.internal_address, "127.0.0.1:7");
        assert_eq!(settings.resend_every, Some(Duration::from_secs(300)));
        assert_eq!(settings.log_streams, 256);
        assert!(settings.strict_registration.is_none());
    }

    #[test]
    fn resending_can_be_turned_off_and_the_address_advertised() {
        let args = args(&["--resend-interval=0", "--internal-advertise=gate-1.internal:9444"]);
        let settings = args.settings(([0, 0, 0, 0], 9444).into(), READY);
        assert_eq!(settings.resend_every, None);
        assert_eq!(settings.internal_address, "gate-1.internal:9444");
    }
}
