//! `pki`: the certificates of an installation, made on an operator's machine.
//!
//! One folder holds the authority and what belongs to the servers; it is the operator's alone (mode 0700), no
//! link in it is followed, and keys are readable by nobody else. What is there and good is kept, so every
//! command can be run again. Certificates for people, programs and nodes are written where the caller says, since
//! they go elsewhere.
//!
//! Keys are ECDSA on P-256 in SEC1 PEM, and the configurations are kubeconfigs with everything inline: both are what
//! the agents and tools of existing fleets read. The authority's key is needed by nothing that runs, unless
//! workers are to renew the certificates of nodes: it can be kept offline, and `sign` does by hand what they would.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use horchestra_auth::identity::NODES;
use horchestra_auth::pki::{
    Authority, CertificateRequest, HostName, Issued, Kubeconfig, Lifetime, LocalPki, Process, write_file,
};
use horchestra_core::values::decode_base64;
use horchestra_runtime::args::duration;
use serde_json::Value;

use crate::say;

#[derive(Args, Clone, Debug)]
pub struct PkiArgs {
    /// Folder of the authority and of the servers' certificates.
    #[arg(long, default_value = "pki", value_name = "FOLDER", global = true)]
    pub pki_dir: PathBuf,
    #[command(subcommand)]
    pub command: PkiCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum PkiCommand {
    /// Make the authority, the serving certificate, the administrator's kubeconfig and the identities of the control
    /// plane's processes; what is there and good is kept.
    Init(InitArgs),
    /// Make the serving certificate anew, e.g. for other hosts.
    Serving(HostArgs),
    /// Make the identity of a process of the control plane anew.
    Controller(ControllerArgs),
    /// Make the configuration of a node's agent (node.conf).
    Node(NodeArgs),
    /// Make a client certificate and its key.
    Cert(CertArgs),
    /// Make a kubeconfig for a client.
    Kubeconfig(KubeconfigArgs),
    /// Sign what a node asks for: a request in PEM, or a CertificateSigningRequest in JSON.
    Sign(SignArgs),
}

#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Name or address that clients reach the control plane by; repeat it for several, the most important first.
    /// The names of the loopback are always in.
    #[arg(long = "host", required = true, value_name = "NAME|ADDRESS")]
    pub hosts: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Where the administrator's kubeconfig points [default: https://HOST:8443, the first host].
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ControllerArgs {
    /// Which process.
    pub process: ControllerName,
    #[command(flatten)]
    pub hosts: HostArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ControllerName {
    Api,
    Workers,
    Nodegate,
}

impl ControllerName {
    fn process(self) -> Process {
        match self {
            ControllerName::Api => Process::Api,
            ControllerName::Workers => Process::Workers,
            ControllerName::Nodegate => Process::Nodegate,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// Name of the node.
    pub name: String,
    /// Where the agent finds its gateway.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// File to write [default: NAME.conf].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How long the certificate is valid.
    #[arg(long, default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub ttl: Duration,
}

#[derive(Args, Clone, Debug)]
pub struct CertArgs {
    /// Name of the client, the CN of its certificate.
    pub name: String,
    /// Groups of the client, the O of its certificate, separated by commas.
    #[arg(long = "group", value_delimiter = ',', value_name = "GROUPS")]
    pub groups: Vec<String>,
    /// Files to write, without their endings .crt and .key [default: NAME].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How long the certificate is valid.
    #[arg(long, default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub ttl: Duration,
}

#[derive(Args, Clone, Debug)]
pub struct KubeconfigArgs {
    /// Name of the client, the CN of its certificate.
    pub name: String,
    /// Groups of the client, the O of its certificate, separated by commas.
    #[arg(long = "group", value_delimiter = ',', value_name = "GROUPS")]
    pub groups: Vec<String>,
    /// Where the API is.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// Name of cluster and context in the file.
    #[arg(long = "name", default_value = Kubeconfig::CLUSTER, value_name = "NAME")]
    pub cluster: String,
    /// File to write [default: NAME.conf].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How long the certificate is valid.
    #[arg(long, default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub ttl: Duration,
}

#[derive(Args, Clone, Debug)]
pub struct SignArgs {
    /// The request; - reads it from standard input.
    #[arg(value_name = "FILE")]
    pub request: PathBuf,
    /// File to write the certificate to.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// How long the certificate is valid.
    #[arg(long, default_value = "90d", value_parser = duration, value_name = "DURATION")]
    pub ttl: Duration,
}

/// Runs the command.
pub fn run(args: &PkiArgs) -> Result<()> {
    let folder = &args.pki_dir;
    match &args.command {
        PkiCommand::Init(args) => init(folder, args),
        PkiCommand::Serving(args) => {
            let pki = LocalPki::open(folder)?;
            let issued = pki.signer().server(&hosts(&args.hosts)?, Lifetime::SERVER)?;
            wrote(&pki.replace(&pki.serving(), &issued)?);
            Ok(())
        }
        PkiCommand::Controller(args) => {
            let (pki, process) = (LocalPki::open(folder)?, args.process.process());
            let hosts = hosts(&args.hosts.hosts)?;
            let issued = pki.signer().controller(process.name(), &hosts, Lifetime::CONTROLLER)?;
            wrote(&pki.replace(&pki.controller(process), &issued)?);
            Ok(())
        }
        PkiCommand::Node(args) => {
            let authority = LocalPki::open(folder)?;
            let issued = authority.signer().node(&args.name, Lifetime::of(args.ttl)?)?;
            let out = out(args.out.as_deref(), &args.name, ".conf")?;
            configuration(authority.signer(), &args.server, Kubeconfig::CLUSTER, &args.name, &issued, &out)
        }
        PkiCommand::Cert(args) => {
            let pki = LocalPki::open(folder)?;
            let issued = client(pki.signer(), &args.name, &args.groups, args.ttl)?;
            let base = out(args.out.as_deref(), &args.name, "")?;
            let (certificate, key) = (with_ending(&base, ".crt"), with_ending(&base, ".key"));
            write_file(&key, issued.key.as_bytes(), 0o600)?;
            write_file(&certificate, issued.certificate.as_bytes(), 0o644)?;
            wrote(&[certificate, key]);
            Ok(())
        }
        PkiCommand::Kubeconfig(args) => {
            let pki = LocalPki::open(folder)?;
            let issued = client(pki.signer(), &args.name, &args.groups, args.ttl)?;
            let out = out(args.out.as_deref(), &args.name, ".conf")?;
            configuration(pki.signer(), &args.server, &args.cluster, &args.name, &issued, &out)
        }
        PkiCommand::Sign(args) => sign(folder, args),
    }
}

fn init(folder: &Path, args: &InitArgs) -> Result<()> {
    let hosts = hosts(&args.hosts.hosts)?;
    let pki = LocalPki::ensure(folder, &hosts)?;
    let server = match (&args.server, args.hosts.hosts.first()) {
        (Some(server), _) => server.clone(),
        (None, Some(first)) if first.contains(':') => format!("https://[{first}]:8443"),
        (None, Some(first)) => format!("https://{first}:8443"),
        (None, None) => bail!("name at least one --host"),
    };
    check_server(&server)?;
    let admin = folder.join("admin.conf");
    write_file(&admin, pki.kubeconfig(&server, "admin", &pki.admin())?.as_bytes(), 0o600)?;
    wrote(&[pki.authority(), pki.serving().certificate, admin]);
    say(
        "Give the servers their own .crt and .key, and ca.crt. Keep ca.key where none can read it, unless workers are to sign with it.",
    );
    Ok(())
}

fn sign(folder: &Path, args: &SignArgs) -> Result<()> {
    let pki = LocalPki::open(folder)?;
    let lifetime = Lifetime::of(args.ttl)?;
    let text = read(&args.request)?;
    let pem = if text.trim_ascii_start().starts_with(b"{") { of_object(&text)? } else { text };
    let request = CertificateRequest::from_pem(&pem)
        .map_err(|error| anyhow::anyhow!("the request {error}"))
        .with_context(|| format!("reading {}", args.request.display()))?;
    let certificate = pki.signer().sign(&request, lifetime)?;
    write_file(&args.out, certificate.as_bytes(), 0o644)?;
    say(&format!("Signed for {} in {NODES}.", request.common_name));
    wrote(std::slice::from_ref(&args.out));
    Ok(())
}

/// The request in a CertificateSigningRequest, as `kubectl get csr <name> -o json` shows it.
fn of_object(text: &[u8]) -> Result<Vec<u8>> {
    let object: Value = serde_json::from_slice(text).context("the file is neither PEM nor JSON")?;
    if object["kind"] != "CertificateSigningRequest" {
        bail!("the object in the file is no CertificateSigningRequest");
    }
    decode_base64(object["spec"]["request"].as_str().unwrap_or_default())
        .context("spec.request of the object is not base64")
}

/// Longest request that is read, in bytes.
const REQUEST_LIMIT: u64 = 1 << 20;

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().take(REQUEST_LIMIT).read_to_end(&mut text).context("reading standard input")?;
    } else {
        let file = fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        file.take(REQUEST_LIMIT)
            .read_to_end(&mut text)
            .with_context(|| format!("reading {}", path.display()))?;
    }
    Ok(text)
}

fn client(authority: &Authority, name: &str, groups: &[String], ttl: Duration) -> Result<Issued> {
    Ok(authority.member(name, groups, Lifetime::of(ttl)?)?)
}

fn configuration(
    authority: &Authority,
    server: &str,
    cluster: &str,
    user: &str,
    client: &Issued,
    out: &Path,
) -> Result<()> {
    check_server(server)?;
    let authority = &authority.pem().certificate;
    let text = Kubeconfig { server, cluster, authority, user, client }.yaml();
    write_file(out, text.as_bytes(), 0o600)?;
    wrote(&[out.to_owned()]);
    Ok(())
}

fn check_server(server: &str) -> Result<()> {
    if server.strip_prefix("https://").is_none_or(str::is_empty) {
        bail!("{server:?} is not an address such as https://fleet.example:8443");
    }
    Ok(())
}

fn hosts(names: &[String]) -> Result<Vec<HostName>> {
    names.iter().map(|name| Ok(HostName::parse(name)?)).collect()
}

/// The file that was named, or one in this folder that bears the client's name.
fn out(named: Option<&Path>, name: &str, ending: &str) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    if name.contains('/') || name.starts_with('.') {
        bail!("{name:?} makes no file name: say --out");
    }
    Ok(PathBuf::from(format!("{name}{ending}")))
}

fn with_ending(base: &Path, ending: &str) -> PathBuf {
    let mut path = base.as_os_str().to_owned();
    path.push(ending);
    PathBuf::from(path)
}

fn wrote(paths: &[PathBuf]) {
    for path in paths {
        say(&format!("  {}", path.display()));
    }
}
