//! `status`: what runs, from the files of the stack, and what its database says. Of any database the second half alone.

mod database;
mod show;

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::layout::Layout;
use crate::process::running;
use crate::{down, ground, say};
use database::Database;

/// Which database, and in which form.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// URL of a PostgreSQL database to ask instead of the stack's; a user in the role horchestra_reader will do.
    #[arg(long, hide_env_values = true)]
    pub database_url: Option<String>,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    pub output: Form,
}

/// For people, or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
}

/// What there is to say.
#[derive(Debug, Serialize)]
struct Status {
    /// The stack on this machine, unless another database was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<Stack>,
    #[serde(skip_serializing_if = "Option::is_none")]
    database: Option<Database>,
    /// Why the database says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Stack {
    folder: String,
    state: &'static str,
    processes: Vec<Process>,
    /// Addresses that are shared by several processes.
    addresses: Vec<Process>,
}

#[derive(Debug, Serialize)]
struct Process {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

/// Prints how things stand. Fails when a database was named and cannot be asked.
pub async fn run(home: &Path, args: &StatusArgs) -> Result<()> {
    let stack = match &args.database_url {
        Some(_) => None,
        None => ground::existing(home)?
            .map(|layout| Stack::of(&layout).map(|stack| (layout, stack)))
            .transpose()?,
    };
    let url = match (&args.database_url, &stack) {
        (Some(url), _) => Some(url.clone()),
        (None, Some((layout, stack))) if stack.state != NOT_RUNNING => {
            fs::read_to_string(layout.database_url()).ok()
        }
        _ => None,
    };
    let asked = match url {
        Some(url) => Some(database::ask(url.trim()).await),
        None => None,
    };
    if let (Some(_), Some(Err(error))) = (&args.database_url, &asked) {
        bail!("{error:#}");
    }
    let (database, problem) = match asked {
        Some(Ok(database)) => (Some(database), None),
        Some(Err(error)) => (None, Some(format!("{error:#}"))),
        None => (None, None),
    };
    let status = Status { stack: stack.map(|(_, stack)| stack), database, problem };
    match args.output {
        Form::Json => say(&serde_json::to_string_pretty(&status)?),
        Form::Text => say(show::text(&status).trim_end()),
    }
    Ok(())
}

const NOT_RUNNING: &str = "not running";

impl Stack {
    fn of(layout: &Layout) -> Result<Stack> {
        let supervisor = running(&layout.pid_of("supervisor"), &["horchestra-local"]);
        let state = match supervisor {
            Some(pid) if layout.is_ready(pid) => "ready",
            Some(_) => "starting or stopping",
            None => NOT_RUNNING,
        };
        let address = |name: &str| {
            let port = fs::read_to_string(layout.port_of(name)).ok()?;
            Some(format!("127.0.0.1:{}", port.trim()))
        };
        let mut processes = Vec::new();
        if supervisor.is_some() {
            processes.push(Process { name: "supervisor".to_owned(), pid: supervisor, address: None });
        }
        for (name, pid) in down::processes(layout)? {
            processes.push(Process { address: address(&name), pid: Some(pid), name });
        }
        let shared = [("API", "api"), ("nodes", "nodegate")].into_iter().filter_map(|(what, name)| {
            Some(Process { name: what.to_owned(), pid: None, address: Some(address(name)?) })
        });
        Ok(Stack {
            folder: layout.root().display().to_string(),
            state,
            processes,
            addresses: shared.collect(),
        })
    }
}
