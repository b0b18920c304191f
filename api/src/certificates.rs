//! The tool that takes client certificates back before their time.
//!
//! Certificates of nodes live for weeks, and a stolen one is good for as long. Taking the authority out of the
//! files ends all of its certificates; this ends some. Every API replica and gateway knows within a few
//! seconds, cuts the connections that were made with one, and takes no new ones.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use horchestra_auth::identity::fingerprint;
use horchestra_runtime::args::DatabaseArgs;
use horchestra_store::store::DeniedCertificates;
use jiff::{Timestamp, ToSpan};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::serve;

/// How long before it was made a certificate of horchestra's own authority begins to be valid.
const BEGINS_EARLY_BY: i64 = 1;

#[derive(Clone, Debug, Args)]
pub struct CertificatesArgs {
    #[command(subcommand)]
    pub action: Action,

    #[command(flatten)]
    pub database: DatabaseArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Stop believing certificates, within seconds and on open connections too
    Deny(DenyArgs),
    /// Take back what was denied for a common name or a fingerprint
    Allow {
        #[arg(value_name = "NAME|FINGERPRINT")]
        of: String,
    },
    /// Show what is denied
    List,
}

#[derive(Clone, Debug, Args)]
pub struct DenyArgs {
    /// Every certificate of this common name that was made until now: those that begin to be valid until an hour ago,
    /// as `horchestra-local pki` and the workers make them; and the one of the node's session, if it has one
    #[arg(long, value_name = "NAME", required_unless_present_any = ["fingerprint", "file"])]
    pub name: Option<String>,

    /// With --name: those that begin to be valid until this moment, for authorities that make them otherwise
    #[arg(long, requires = "name", conflicts_with_all = ["fingerprint", "file"], value_name = "TIME")]
    pub begun_until: Option<Timestamp>,

    /// The certificate with this SHA-256, in hexadecimal
    #[arg(long, value_name = "SHA256", value_parser = fingerprint_of, conflicts_with_all = ["name", "file"])]
    pub fingerprint: Option<String>,

    /// The certificate in this file, PEM
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub file: Option<PathBuf>,

    /// Kept beside it, for people
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub reason: String,
}

/// With or without colons, in either case.
fn fingerprint_of(text: &str) -> Result<String, String> {
    let hex: String = text.chars().filter(|c| *c != ':').map(|c| c.to_ascii_lowercase()).collect();
    if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(hex)
    } else {
        Err("a SHA-256 has 64 hexadecimal digits".to_owned())
    }
}

/// Runs a command to its end.
pub async fn run(args: &CertificatesArgs) -> anyhow::Result<ExitCode> {
    let store = serve::open_store(&args.database, None)?;
    let done = act(&store, &args.action).await;
    store.shutdown().await;
    done
}

async fn act(store: &horchestra_store::Store, action: &Action) -> anyhow::Result<ExitCode> {
    match action {
        Action::Deny(args) => {
            for denied in denied_by(store, args).await? {
                store
                    .deny_certificates(&denied, &args.reason)
                    .await
                    .context("the certificates were not denied")?;
                say(&format!("denied: {}", shown(&denied)))?;
            }
        }
        Action::Allow { of } => {
            let name = fingerprint_of(of).unwrap_or_else(|_| of.clone());
            if !store.allow_certificates(&name).await.context("nothing was taken back")? {
                bail!("nothing is denied for {of:?}; `certificates list` shows what is");
            }
        }
        Action::List => {
            for denied in store.denied_certificates().await.context("the list cannot be read")? {
                say(&shown(&denied))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn denied_by(
    store: &horchestra_store::Store,
    args: &DenyArgs,
) -> anyhow::Result<Vec<DeniedCertificates>> {
    if let Some(name) = &args.name {
        let until = args.begun_until.unwrap_or_else(|| Timestamp::now() - BEGINS_EARLY_BY.hours());
        let of_name = DeniedCertificates::Name { name: name.clone(), begun_until: until.as_microsecond() };
        // Also that of a session whose gateway has died: the node will be back with it.
        let sessions = store.sessions().await.context("the sessions of nodes cannot be read")?;
        let session = sessions.into_iter().find(|row| row.node == *name);
        let in_use = session.map(|row| DeniedCertificates::Fingerprint(row.certificate));
        return Ok(std::iter::once(of_name).chain(in_use).collect());
    }
    let of = match (&args.fingerprint, &args.file) {
        (Some(fingerprint), _) => fingerprint.clone(),
        (None, Some(file)) => {
            let certificate = CertificateDer::from_pem_file(file)
                .with_context(|| format!("{} holds no certificate in PEM", file.display()))?;
            fingerprint(&certificate)
        }
        (None, None) => bail!("one of --name, --fingerprint and --file is needed"),
    };
    Ok(vec![DeniedCertificates::Fingerprint(of)])
}

fn shown(denied: &DeniedCertificates) -> String {
    match denied {
        DeniedCertificates::Name { name, begun_until } => {
            let until = Timestamp::from_microsecond(*begun_until).unwrap_or(Timestamp::MAX);
            format!("{name} (valid from {until:.0} or before)")
        }
        DeniedCertificates::Fingerprint(fingerprint) => fingerprint.clone(),
    }
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_tools_write_them() {
        let plain = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        assert_eq!(fingerprint_of(&plain).unwrap(), plain);
        assert_eq!(fingerprint_of(&colons).unwrap(), plain);
        for bad in ["", "ab", &"zz".repeat(32), &"ab".repeat(33)] {
            assert!(fingerprint_of(bad).is_err(), "{bad:?}");
        }
    }
}
