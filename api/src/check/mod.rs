//! `check`: whether a replica can be started here, and whether what it would stand on can be relied on.
//!
//! Nothing is changed. Every finding says what was looked at; one that is not well says what to do about it. What does
//! not keep anything from working today, and will (a certificate that ends next week), is a warning.

mod database;
mod files;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs};
use serde::Serialize;

#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,

    /// Certificate of the listener, as `serve` takes it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Authorities of clients
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Certificate that is shown to gateways
    #[arg(long, value_name = "FILE", requires = "peer_key")]
    pub peer_cert: Option<PathBuf>,

    /// Its key
    #[arg(long, value_name = "FILE", requires = "peer_cert")]
    pub peer_key: Option<PathBuf>,

    /// Authorities of the control plane's own processes
    #[arg(long, value_name = "FILE")]
    pub peer_ca: Option<PathBuf>,

    /// A name or address under which clients reach the listener; may be repeated
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,

    /// Keys of Secrets
    #[arg(long, value_name = "FILE")]
    pub secret_keys: Option<PathBuf>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    pub output: Form,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

/// For people, or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Warning,
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    /// What, in a word or two.
    check: String,
    verdict: Verdict,
    /// How it is.
    found: String,
    /// What to do; empty where all is well.
    #[serde(skip_serializing_if = "str::is_empty")]
    advice: &'static str,
}

impl Finding {
    fn good(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { check: check.into(), verdict: Verdict::Good, found: found.into(), advice: "" }
    }

    fn warning(check: impl Into<String>, found: impl Into<String>, advice: &'static str) -> Finding {
        Finding { check: check.into(), verdict: Verdict::Warning, found: found.into(), advice }
    }

    fn bad(check: impl Into<String>, found: impl Into<String>, advice: &'static str) -> Finding {
        Finding { check: check.into(), verdict: Verdict::Bad, found: found.into(), advice }
    }
}

/// An error with all that stands behind it.
fn because(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

/// Looks at everything, and says what was found. Fails when anything is bad.
pub async fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let mut findings = files::look(args, std::time::SystemTime::now());
    findings.extend(database::look(args).await);
    let well = findings.iter().all(|finding| finding.verdict != Verdict::Bad);
    let text = match args.output {
        Form::Json => {
            serde_json::to_string_pretty(&serde_json::json!({"well": well, "findings": findings}))? + "\n"
        }
        Form::Text => show(&findings),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("the findings could not be shown")?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { check, verdict, found, advice } in findings {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Warning => "WARN",
            Verdict::Bad => "BAD ",
        };
        let _ = writeln!(text, "{mark}  {check:<width$}  {found}");
        if !advice.is_empty() {
            let _ = writeln!(text, "      {:<width$}  -> {advice}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_well_says_what_to_do() {
        let findings = [Finding::good("a", "fine"), Finding::bad("clock", "an hour off", "set it")];
        assert_eq!(show(&findings), "ok    a      fine\nBAD   clock  an hour off\n             -> set it\n");
    }
}
