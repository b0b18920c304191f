//! Which processes a stack consists of, and how each is started: the one place that knows the command lines
//! of the product's binaries.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use horchestra_auth::pki::PairFiles;

use crate::layout::Layout;
use crate::process::Spec;

/// The product's programs, which lie beside this one.
#[derive(Clone, Debug)]
pub struct Programs {
    pub api: PathBuf,
    pub workers: PathBuf,
    pub nodegate: PathBuf,
    pub agent: PathBuf,
}

/// Names of every program that a stack runs, as the process table shows them.
pub const PROGRAMS: [&str; 6] = [
    "horchestra-api",
    "horchestra-workers",
    "horchestra-nodegate",
    "horchestra-agent",
    "horchestra-local",
    "postgres",
];

impl Programs {
    pub fn find() -> Result<Programs> {
        let own = std::env::current_exe().context("finding this program")?;
        let folder = own.parent().context("this program has no folder")?;
        let beside = |name: &str| {
            let path = folder.join(name);
            if path.is_file() {
                Ok(path)
            } else {
                bail!("{} is not built: run `cargo build --workspace` first", path.display())
            }
        };
        Ok(Programs {
            api: beside("horchestra-api")?,
            workers: beside("horchestra-workers")?,
            nodegate: beside("horchestra-nodegate")?,
            agent: beside("horchestra-agent")?,
        })
    }
}

/// What every process of a stack shares.
pub struct Shared<'a> {
    pub layout: &'a Layout,
    pub programs: &'a Programs,
    pub database_url: &'a str,
    /// CA certificate file.
    pub authority: &'a Path,
    /// CA key file.
    pub authority_key: &'a Path,
    /// Of all processes alike.
    pub feature_gates: Option<&'a str>,
    /// Said by the API, which starts first; the others take it over.
    pub routed_cidr: Option<&'a str>,
}

fn loopback(port: u16) -> String {
    SocketAddr::from(([127, 0, 0, 1], port)).to_string()
}

impl Shared<'_> {
    /// Brings the schema up to date and ends.
    pub fn migrate(&self) -> Spec {
        Spec::new("migrate", &self.programs.api).args(["migrate"]).env("DATABASE_URL", self.database_url)
    }

    /// `serving` is what clients see, `internal` what it shows to gateways.
    pub fn api(
        &self,
        index: u16,
        port: u16,
        metrics: u16,
        serving: &PairFiles,
        internal: &PairFiles,
    ) -> Spec {
        Spec::new(format!("api-{index}"), &self.programs.api)
            .args(["serve", "--listen", &loopback(port), "--metrics-addr", &loopback(metrics)])
            .args(files("--tls-cert", &serving.certificate, "--tls-key", &serving.key))
            .args(files("--peer-cert", &internal.certificate, "--peer-key", &internal.key))
            .args(["--tls-ca", &self.authority.display().to_string()])
            .args(["--peer-ca", &self.authority.display().to_string()])
            // Gateways pass clients on, and everything here is on loopback.
            .args(["--proxy-from", "127.0.0.1"])
            .args(["--secret-keys", &self.layout.secret_keys().display().to_string()])
            .args(["--jwt-signing-key", &self.layout.token_keys().display().to_string()])
            .args(self.gates())
            .args(self.routed_cidr.map(|range| format!("--routed-cidr={range}")))
            .env("DATABASE_URL", self.database_url)
    }

    pub fn workers(&self, index: u16, metrics: u16) -> Spec {
        Spec::new(format!("workers-{index}"), &self.programs.workers)
            .args(["--metrics-addr", &loopback(metrics)])
            .args(files("--cluster-ca", self.authority, "--cluster-ca-key", self.authority_key))
            .args(self.gates())
            .env("DATABASE_URL", self.database_url)
    }

    fn gates(&self) -> Option<String> {
        self.feature_gates.map(|gates| format!("--feature-gates={gates}"))
    }

    /// `replicas` are those of the API, for clients that come to the gateway.
    pub fn nodegate(
        &self,
        index: u16,
        ports: GatewayPorts,
        replicas: &[SocketAddr],
        serving: &PairFiles,
        internal: &PairFiles,
    ) -> Spec {
        Spec::new(format!("nodegate-{index}"), &self.programs.nodegate)
            .args(["--listen", &ports.at(ports.nodes), "--metrics-addr", &ports.at(ports.metrics)])
            .args(["--internal-addr", &ports.at(ports.internal)])
            .args(replicas.iter().map(|replica| format!("--api-backend={replica}")))
            .args(files("--tls-cert", &serving.certificate, "--tls-key", &serving.key))
            .args(files("--peer-cert", &internal.certificate, "--peer-key", &internal.key))
            .args(["--tls-ca", &self.authority.display().to_string()])
            .args(["--peer-ca", &self.authority.display().to_string()])
            .args(["--secret-keys", &self.layout.secret_keys().display().to_string()])
            .args(["--jwt-signing-key", &self.layout.token_keys().display().to_string()])
            .args(self.gates())
            .env("DATABASE_URL", self.database_url)
    }

    pub fn agent(
        &self,
        index: usize,
        node: &str,
        gateway: u16,
        heartbeat: u64,
        identity: &PairFiles,
    ) -> Spec {
        let name = format!("agent-{index}");
        let own_log = self.layout.log_of(&name).display().to_string();
        let mut spec = Spec::new(name, &self.programs.agent)
            .args(["--server", &loopback(gateway), "--heartbeat", &format!("{heartbeat}s")])
            .args(files("--cert", &identity.certificate, "--key", &identity.key))
            .args(["--ca", &self.authority.display().to_string()])
            .args(["--state-dir", &self.layout.agent_state(node).display().to_string()])
            .args(["--own-log", &own_log]);
        spec.stop_within = Duration::from_secs(5);
        spec
    }

    /// Ends the workloads that an agent left running.
    pub fn stop_workloads(&self, node: &str) -> Spec {
        Spec::new(format!("stop-{node}"), &self.programs.agent).args([
            "stop-units",
            "--state-dir",
            &self.layout.agent_state(node).display().to_string(),
        ])
    }
}

/// Where a gateway listens.
#[derive(Clone, Copy, Debug)]
pub struct GatewayPorts {
    pub host: Ipv4Addr,
    pub nodes: u16,
    pub internal: u16,
    pub metrics: u16,
}

impl GatewayPorts {
    fn at(&self, port: u16) -> String {
        SocketAddr::from((self.host, port)).to_string()
    }
}

fn files(certificate: &str, path: &Path, key: &str, key_path: &Path) -> [String; 4] {
    [certificate.to_owned(), path.display().to_string(), key.to_owned(), key_path.display().to_string()]
}
