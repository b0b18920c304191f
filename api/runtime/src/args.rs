//! Arguments that several binaries share, each a struct to flatten into the binary's own.
//!
//! Every default is a value of the argument, so `--help` shows it, with its unit. Addresses default to the
//! loopback interface: reaching further is a decision that somebody writes down.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

/// How to reach PostgreSQL.
#[derive(Clone, Args)]
pub struct DatabaseArgs {
    /// PostgreSQL, as postgres://user:password@host:port/database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database_url: String,

    /// The same database without a pooler in between, for the one connection that listens for changes; needed where
    /// --database-url leads through a pooler that lends connections for one transaction at a time
    #[arg(long, env = "DATABASE_LISTEN_URL", hide_env_values = true, value_name = "URL")]
    pub database_listen_url: Option<String>,

    /// Most connections that this process keeps open to PostgreSQL, besides two that write and one that listens
    #[arg(long, default_value_t = 10, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub database_connections: u32,
}

impl DatabaseArgs {
    /// Connections that the process has open at most: `--database-connections`, two that write, one that listens, and
    /// for moments one that tries out whether notifications arrive.
    pub fn most_connections(&self) -> u32 {
        self.database_connections + 4
    }
}

impl std::fmt::Debug for DatabaseArgs {
    /// Without the address: it holds a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseArgs")
            .field("database_connections", &self.database_connections)
            .finish_non_exhaustive()
    }
}

/// The listener for health and metrics; the default port is the binary's.
#[derive(Clone, Debug, Args)]
pub struct MetricsArgs<const PORT: u16> {
    /// Plain HTTP listener for /livez, /readyz and /metrics
    #[arg(long, default_value_t = loopback(PORT), value_name = "ADDRESS")]
    pub metrics_addr: SocketAddr,
}

/// The listener for the other binaries of the control plane.
#[derive(Clone, Debug, Args)]
pub struct InternalArgs<const PORT: u16> {
    /// Listener for the other processes of the control plane; a client certificate is required
    #[arg(long, default_value_t = loopback(PORT), value_name = "ADDRESS")]
    pub internal_addr: SocketAddr,
}

/// What a TLS listener shows and whom it believes.
#[derive(Clone, Debug, Args)]
pub struct TlsArgs {
    /// Serving certificate and its intermediates, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_cert: PathBuf,

    /// Key of the serving certificate, PEM (SEC1, PKCS#8 or PKCS#1); read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_key: PathBuf,

    /// Authorities whose client certificates are believed, PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub tls_ca: PathBuf,

    /// How often the TLS files, and the files of keys, are looked at
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub tls_reload_interval: Duration,
}

/// What this process shows when it calls another one of the control plane.
#[derive(Clone, Debug, Args)]
pub struct PeerArgs {
    /// Client certificate for calls to other processes of the control plane, PEM
    #[arg(long, value_name = "FILE")]
    pub peer_cert: PathBuf,

    /// Key of the client certificate, PEM
    #[arg(long, value_name = "FILE")]
    pub peer_key: PathBuf,

    /// Authorities that the other processes' certificates must come from, PEM
    #[arg(long, value_name = "FILE")]
    pub peer_ca: PathBuf,
}

/// What Secrets are sealed and opened with.
#[derive(Clone, Debug, Args)]
pub struct SecretArgs {
    /// File with the keys of sealed Secrets, mode 0600; `horchestra-api secret-keys new FILE` makes one. Read again
    /// when it changes. Without it Secrets can be neither read nor written through this process
    #[arg(long, value_name = "FILE")]
    pub secret_keys: Option<PathBuf>,
}

/// Who workloads are told apart by.
#[derive(Clone, Debug, Args)]
pub struct TokenArgs {
    /// Key that tokens of workloads are signed with, PEM (EC PRIVATE KEY on P-256), or a folder of such keys
    /// (*.pem), of which all verify and the last in order of names signs. The same for every API replica and
    /// gateway; read again when it changes. The API makes one where there is none. Without it workloads have no tokens
    #[arg(long, value_name = "FILE|FOLDER")]
    pub jwt_signing_key: Option<PathBuf>,

    /// Name of the issuer of tokens; the same for the whole cluster. With a URL under which clients reach the API
    /// it publishes an OpenID configuration. The first process that says one decides, and processes that ran before
    /// have to be started again [default: the cluster's, which is `horchestra` until a process says otherwise]
    #[arg(long, value_name = "NAME|URL", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub jwt_issuer: Option<String>,
}

/// What is logged, and how.
#[derive(Clone, Debug, Args)]
pub struct TelemetryArgs {
    /// What to log besides who did what: a level, or directives such as info,horchestra_store=debug
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,

    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line for people
    Text,
    /// One JSON object per line
    Json,
}

/// How the process ends.
#[derive(Clone, Debug, Args)]
pub struct ShutdownArgs {
    /// After SIGTERM, how long to go on serving while /readyz already says no, so that balancers turn away
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_delay: Duration,

    /// How long requests and tasks may take to end before they are cut off
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub shutdown_timeout: Duration,
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Reads a duration as `1h30m`, `45s`, `250ms`; a unit is required, except for a lone 0.
pub fn duration(text: &str) -> Result<Duration, String> {
    let complain = || format!("{text:?} is not a duration such as 45s, 250ms or 1h30m");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(complain)?;
        let count: u64 = rest[..digits].parse().map_err(|_| complain())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let milliseconds: u64 = match &rest[..unit_end] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(complain()),
        };
        rest = &rest[unit_end..];
        let part = count.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(complain)?;
        total = total.checked_add(part).ok_or_else(complain)?;
    }
    if text.is_empty() { Err(complain()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Everything {
        #[command(flatten)]
        database: DatabaseArgs,
        #[command(flatten)]
        metrics: MetricsArgs<9001>,
        #[command(flatten)]
        internal: InternalArgs<9002>,
        #[command(flatten)]
        tls: TlsArgs,
        #[command(flatten)]
        peer: PeerArgs,
        #[command(flatten)]
        secrets: SecretArgs,
        #[command(flatten)]
        tokens: TokenArgs,
        #[command(flatten)]
        telemetry: TelemetryArgs,
        #[command(flatten)]
        shutdown: ShutdownArgs,
    }

    #[test]
    fn durations_need_units_and_add_up() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("45s", Some(45_000)),
            ("1h30m", Some(5_400_000)),
            ("90d", Some(7_776_000_000)),
            ("", None),
            ("45", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("1s1", None),
            ("18446744073709551615h", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn defaults_are_loopback_and_shown_in_the_help() {
        let args = Everything::try_parse_from([
            "test",
            "--database-url=postgres://u:secret@h/d",
            "--tls-cert=c",
            "--tls-key=k",
            "--tls-ca=a",
            "--peer-cert=c",
            "--peer-key=k",
            "--peer-ca=a",
        ])
        .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(args.metrics.metrics_addr, loopback(9001));
        assert_eq!(args.internal.internal_addr, loopback(9002));
        assert_eq!(args.tls.tls_reload_interval, Duration::from_secs(5));
        assert_eq!(args.peer.peer_ca, PathBuf::from("a"));
        assert_eq!(args.secrets.secret_keys, None);
        assert_eq!(args.tokens.jwt_signing_key, None);
        assert_eq!(args.telemetry.log_format, LogFormat::Text);
        assert_eq!(args.shutdown.shutdown_timeout, Duration::from_secs(20));
        assert!(!format!("{:?}", args.database).contains("secret"));

        let help = <Everything as clap::CommandFactory>::command().render_long_help().to_string();
        for default in ["127.0.0.1:9001", "127.0.0.1:9002", "5s", "20s", "[default: 10]", "[default: info]"] {
            assert!(help.contains(default), "no {default} in {help}");
        }
    }
}
