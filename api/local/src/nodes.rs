//! `nodes`: makes Nodes as an operator does, so that their agents are admitted when they come. A Node that registers
//! itself is sent nothing until somebody admits it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use hyper::{Method, StatusCode};
use serde_json::json;

use crate::client::Client;
use crate::say;

#[derive(Args, Clone, Debug)]
pub struct NodesArgs {
    /// Names of the nodes, which are those of their certificates.
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Where the API is.
    #[arg(long, value_name = "HOST:PORT")]
    pub server: String,
    /// Folder with ca.crt, admin.crt and admin.key.
    #[arg(long, default_value = "pki", value_name = "FOLDER")]
    pub pki_dir: PathBuf,
    /// How long to go on trying while the API is not there yet.
    #[arg(long, default_value = "60s", value_parser = horchestra_runtime::args::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Makes those that are missing.
pub async fn run(args: NodesArgs) -> Result<()> {
    horchestra_runtime::crypto::install()?;
    let file = |name: &str| args.pki_dir.join(name);
    let client = Client::to(&args.server, &file("ca.crt"), &file("admin.crt"), &file("admin.key"))?;
    let deadline = tokio::time::Instant::now() + args.timeout;
    for name in &args.names {
        loop {
            match create(&client, name).await {
                Ok(()) => break,
                Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        say(&format!("  {name}"));
    }
    Ok(())
}

/// Makes a Node; one that is there is left as it is.
pub async fn create(client: &Client, node: &str) -> Result<()> {
    let body = json!({
        "apiVersion": "horchestra.io/v1", "kind": "Node", "metadata": {"name": node}, "spec": {},
    });
    let (status, answer) = client.call(Method::POST, "/apis/horchestra.io/v1/nodes", Some(&body)).await?;
    if status.is_success() || status == StatusCode::CONFLICT {
        return Ok(());
    }
    bail!("making Node {node}: {status}: {}", answer["message"].as_str().unwrap_or("no message"))
}
