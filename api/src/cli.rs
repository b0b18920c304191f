//! The command line.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use horchestra_core::gates::Gates;
use horchestra_core::names::label_fault;
use horchestra_core::ranges::Network;
use horchestra_runtime::Progress;
use horchestra_runtime::args::{
    DatabaseArgs, MetricsArgs, PeerArgs, SecretArgs, ShutdownArgs, TelemetryArgs, TlsArgs, TokenArgs,
    duration,
};
use horchestra_runtime::probe::{self, HealthArgs};
use horchestra_runtime::telemetry;
use horchestra_store::postgres;

use crate::certificates::{self, CertificatesArgs};
use crate::check::{self, CheckArgs};
use crate::hold::{self, HoldArgs};
use crate::http::limits::{Limit, Limits};
use crate::import::{self, ImportArgs};
use crate::secret_keys::{self, ResealArgs, SecretKeysArgs};
use crate::serve;
use crate::token_keys::{self, TokenKeysArgs};
use horchestra_runtime::proxy::Block;

/// The Kubernetes-shaped API of horchestra
#[derive(Debug, Parser)]
// What is said last counts (lists add up): units say some options, and OPTIONS may say them again.
#[command(name = "horchestra-api", version, propagate_version = true, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the API; this is what happens when no command is named
    Serve(Box<ServeArgs>),
    /// Bring the database's schema up to this version; safe to run from several places at once
    Migrate(MigrateArgs),
    /// Look over files, database and clocks, and say what is not well and what to do about it
    Check(CheckArgs),
    /// Ask a replica that runs on this machine whether it is ready: exit code 0, or 1 and why not
    Health(HealthArgs<9443>),
    /// Take client certificates back before their time
    Certificates(CertificatesArgs),
    /// Make or change a file of keys for --secret-keys
    SecretKeys(SecretKeysArgs),
    /// Make or add to a folder of keys for --jwt-signing-key
    TokenKeys(TokenKeysArgs),
    /// Seal every stored Secret with the key that seals now; safe beside running replicas, and to run again
    Reseal(ResealArgs),
    /// Store the objects of another control plane of this API as they are, in a database of their own
    Import(ImportArgs),
    /// Show, engage or release the hold that keeps nodes from being sent anything after a loss
    Hold(HoldArgs),
}

#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Listener for clients, always TLS
    #[arg(long, default_value = "127.0.0.1:8443", value_name = "ADDRESS")]
    pub listen: SocketAddr,

    #[command(flatten)]
    pub tls: TlsArgs,

    #[command(flatten)]
    pub peer: PeerArgs,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub secrets: SecretArgs,

    /// Start although stored Secrets need keys that --secret-keys does not hold: those Secrets then answer 503,
    /// and can only be deleted
    #[arg(long)]
    pub allow_missing_secret_keys: bool,

    #[command(flatten)]
    pub tokens: TokenArgs,

    #[command(flatten)]
    pub metrics: MetricsArgs<9443>,

    /// After how long without a heartbeat a node is judged silent; the same for the whole cluster, whose
    /// first process decides (45s when it does not say)
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

    /// Namespace that the service catalog speaks of when a client names none. As with --service-cidr, the first
    /// process that says one decides [default: the cluster's, which is `default`]
    #[arg(long, value_parser = namespace, value_name = "NAMESPACE")]
    pub catalog_namespace: Option<String>,

    /// Peers whose PROXY protocol (version 2) header is believed, such as gateways with --api-backend: an address or
    /// a block, may be repeated
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS[/BITS]")]
    pub proxy_from: Vec<Block>,

    /// Most connections that are open at once
    #[arg(long, default_value_t = 16_384, value_name = "COUNT")]
    pub max_connections: usize,

    /// Most reads in flight (a caller may have half of them)
    #[arg(long, default_value_t = 1024, value_name = "COUNT")]
    pub max_reads: usize,

    /// Most writes in flight (a caller may have half of them)
    #[arg(long, default_value_t = 1024, value_name = "COUNT")]
    pub max_writes: usize,

    /// Most watches and log streams (a caller may have a quarter of them)
    #[arg(long, default_value_t = 20_000, value_name = "COUNT")]
    pub max_watches: usize,

    /// Most queries of the service catalog that wait for a change (a caller may have half of them)
    #[arg(long, default_value_t = 8_192, value_name = "COUNT")]
    pub max_parked: usize,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,

    #[command(flatten)]
    pub shutdown: ShutdownArgs,
}

fn namespace(text: &str) -> Result<String, String> {
    label_fault(text).map_or_else(|| Ok(text.to_owned()), |fault| Err(fault.to_owned()))
}

impl ServeArgs {
    pub fn limits(&self) -> Limits {
        let limit = |server: usize, part: usize| Limit { server, caller: (server / part).max(1) };
        Limits {
            reads: limit(self.max_reads, 2),
            writes: limit(self.max_writes, 2),
            watches: limit(self.max_watches, 4),
            parked: limit(self.max_parked, 2),
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

impl Cli {
    /// Reads the arguments of the process; options without a command belong to `serve`.
    pub fn from_args(args: impl IntoIterator<Item = String>) -> Result<Cli, clap::Error> {
        let mut args: Vec<String> = args.into_iter().collect();
        let named = args.get(1).is_some_and(|first| {
            !first.starts_with('-') || matches!(first.as_str(), "-h" | "--help" | "-V" | "--version")
        });
        if !named {
            args.insert(args.len().min(1), "serve".to_owned());
        }
        Cli::try_parse_from(args)
    }
}

/// Runs a command to its end.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Serve(args) => {
            telemetry::init(&args.telemetry)?;
            serve::run(&args).await
        }
        Command::Migrate(args) => {
            telemetry::init(&args.telemetry)?;
            let progress = Progress::new("migrating");
            let migrated = postgres::migrate(&args.database.database_url).await;
            drop(progress);
            migrated.context("the database was not migrated")?;
            tracing::info!("the database is migrated");
            Ok(ExitCode::SUCCESS)
        }
        Command::Health(args) => Ok(probe::run(&args)),
        Command::Certificates(args) => certificates::run(&args).await,
        Command::SecretKeys(args) => secret_keys::change(&args.action),
        Command::TokenKeys(args) => token_keys::change(&args.action),
        Command::Reseal(args) => {
            telemetry::init(&args.telemetry)?;
            secret_keys::reseal(&args).await
        }
        Command::Import(args) => {
            telemetry::init(&args.telemetry)?;
            import::run(&args).await
        }
        Command::Hold(args) => {
            telemetry::init(&args.telemetry)?;
            hold::run(&args).await
        }
        Command::Check(args) => {
            telemetry::init(&args.telemetry)?;
            check::run(&args).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    const SERVE: [&str; 7] = [
        "--database-url=postgres://h/d",
        "--tls-cert=c",
        "--tls-key=k",
        "--tls-ca=a",
        "--peer-cert=c",
        "--peer-key=k",
        "--peer-ca=a",
    ];

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::from_args(std::iter::once("horchestra-api").chain(args.iter().copied()).map(str::to_owned))
    }

    #[test]
    fn serving_is_the_default_command() {
        Cli::command().debug_assert();
        let Command::Serve(args) = parse(&SERVE).unwrap().command else { panic!("not serve") };
        assert_eq!(args.listen, "127.0.0.1:8443".parse().unwrap());
        assert_eq!(args.limits().reads.caller, 512);
        let mut named = vec!["serve", "--proxy-from=10.0.0.0/8,fd00::/8", "--proxy-from=127.0.0.1"];
        named.extend(SERVE);
        let Command::Serve(args) = parse(&named).unwrap().command else { panic!("not serve") };
        assert_eq!(args.proxy_from.len(), 3);
        for (namespace, good) in [("platform", true), ("Platform", false), ("", false)] {
            let mut args = vec!["serve".to_owned(), format!("--catalog-namespace={namespace}")];
            args.extend(SERVE.map(str::to_owned));
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!(parse(&args).is_ok(), good, "{namespace:?}");
        }
        assert!(matches!(
            parse(&["migrate", "--database-url=postgres://h/d"]).unwrap().command,
            Command::Migrate(_)
        ));
        for (words, good) in [
            ("secret-keys new /k", true),
            ("secret-keys use /k 2026-11-29-a41b66e3", true),
            ("secret-keys use /k 2026-11-29-a41b66e3 --in 10m", true),
            ("secret-keys use /k 2026-11-29-a41b66e3 --in 10", false),
            ("secret-keys use /k", false),
            ("secret-keys", false),
            ("token-keys new /k", true),
            ("token-keys add /k", true),
            ("token-keys list /k", true),
            ("token-keys add", false),
            ("token-keys", false),
            ("certificates --database-url=postgres://h/d deny --name node-1", true),
            ("certificates --database-url=postgres://h/d deny --file c.pem --reason lost", true),
            ("certificates --database-url=postgres://h/d deny", false),
            ("certificates --database-url=postgres://h/d deny --name a --file b", false),
            (
                "certificates --database-url=postgres://h/d deny --file b --begun-until 2026-11-30T00:00:00Z",
                false,
            ),
            ("certificates --database-url=postgres://h/d list", true),
            ("certificates --database-url=postgres://h/d allow node-1", true),
            ("reseal --database-url=postgres://h/d --secret-keys=/k", true),
            ("reseal --database-url=postgres://h/d", false),
            ("import --database-url=postgres://h/d a.json b.json", true),
            ("import --database-url=postgres://h/d --secret-keys=/k -", true),
            ("import --database-url=postgres://h/d", false),
            ("hold --database-url=postgres://h/d show", true),
            ("hold --database-url=postgres://h/d engage --message=why", true),
            ("hold --database-url=postgres://h/d engage --put-back", true),
            ("hold --database-url=postgres://h/d release --node=n1", true),
            ("hold --database-url=postgres://h/d", false),
            ("check --database-url=postgres://h/d -o json --host=a --host=b", true),
            ("check --database-url=postgres://h/d --tls-cert=c", false),
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(parse(&words).is_ok(), good, "{words:?}");
        }
        assert!(parse(&["nonsense"]).is_err());
        assert!(parse(&["--help"]).is_err(), "help is shown as an error of the parser");
    }
}
