//! The command line of `horchestra-workers`.

use std::time::Duration;

use clap::Parser;
use horchestra_core::gates::Gates;
use horchestra_core::ranges::Network;
use horchestra_runtime::args::{DatabaseArgs, MetricsArgs, ShutdownArgs, TelemetryArgs, duration};

use crate::certificates::args::SignerArgs;
use crate::scheduler::plugins::Strategy;

/// Where health and metrics are unless `--metrics-addr` says otherwise.
pub const METRICS_PORT: u16 = 9445;

/// The loops of the control plane. Run as many as you like: each loop has one leader.
#[derive(Debug, Parser)]
// What is said last counts (lists add up): units say some options, and OPTIONS may say them again.
#[command(name = "horchestra-workers", version, args_override_self = true, after_help = horchestra_runtime::probe::ALSO)]
pub struct Args {
    #[command(flatten)]
    pub database: DatabaseArgs,

    /// How long a node may be silent before it is judged not ready [default: the cluster's, which is 45s
    /// unless its first process said otherwise]
    #[arg(long, value_parser = positive, value_name = "DURATION")]
    pub node_ready_timeout: Option<Duration>,

    /// For how much longer a silent node has to be silent to count as lost, which makes the catalog give up what is
    /// on it [default: the cluster's, which is 5m unless a process said otherwise]
    #[arg(long, value_parser = positive, value_name = "DURATION")]
    pub node_lost_after: Option<Duration>,

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

    /// Which node is better among those that fit
    #[arg(long, value_enum, default_value_t = Strategy::Spread, value_name = "STRATEGY")]
    pub scheduler_strategy: Strategy,

    /// How long a loop's lease lasts without being renewed
    #[arg(long, default_value = "12s", value_parser = positive, value_name = "DURATION")]
    pub lease_ttl: Duration,

    #[command(flatten)]
    pub signer: SignerArgs,

    #[command(flatten)]
    pub metrics: MetricsArgs<METRICS_PORT>,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub shutdown: ShutdownArgs,
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than nothing".to_owned()),
        some => Ok(some),
    }
}
