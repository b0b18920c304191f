//! The tool around holds on what is sent to nodes.
//!
//! A hold keeps the control plane from destroying what its database has forgotten. Whoever has seen more than the
//! database has engages it by itself. Before a database is put back while no process runs that could notice, and
//! before objects are imported, it is for the operator to engage.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs};
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::pushes::reason;
use horchestra_store::{Backend, Hold, Holds};
use jiff::Timestamp;

#[derive(Clone, Debug, Args)]
pub struct HoldArgs {
    #[command(subcommand)]
    pub action: Action,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub telemetry: TelemetryArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Say which nodes are held, and why
    Show,
    /// Send nothing to any node that could stop what it runs, until that is released; nodes that were released before
    /// are held again
    Engage {
        /// Why, for people
        #[arg(long, default_value = "an operator asked for it", value_name = "TEXT")]
        message: String,
    },
    /// Release every node, or the one that is named; what runs there and is not in the database is stopped, and data of
    /// volumes that are not is deleted
    Release {
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}

/// Shows or changes the holds, and says how they stand then.
pub async fn run(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    let options = Options { application: "horchestra-hold".to_owned(), ..Options::default() };
    let backend =
        PostgresBackend::open(&args.database.database_url, options).context("the database cannot be used")?;
    let done = act(&*backend, &args.action).await;
    backend.close().await;
    let text = done?;
    std::io::stdout().lock().write_all(text.as_bytes()).context("the holds could not be shown")?;
    Ok(ExitCode::SUCCESS)
}

async fn act(backend: &dyn Backend, action: &Action) -> anyhow::Result<String> {
    match action {
        Action::Show => {}
        Action::Engage { message } => backend
            .engage_hold(None, reason::REQUESTED, message)
            .await
            .context("the hold was not engaged; it can be tried again")?,
        Action::Release { node } => {
            let held = backend
                .release_hold(node.as_deref())
                .await
                .context("nothing was released; it can be tried again")?;
            if !held {
                tracing::warn!("there was nothing to release");
            }
        }
    }
    let holds = backend.holds().await.context("the holds could not be read")?;
    Ok(told(&holds))
}

fn told(holds: &Holds) -> String {
    let mut lines = Vec::new();
    match &holds.cluster {
        None if holds.nodes.is_empty() => lines.push("no node is held".to_owned()),
        None => {}
        Some(hold) => {
            lines.push(format!("all nodes are held {}", particulars(hold)));
            for node in &holds.released {
                lines.push(format!("  but not {node}, which was released"));
            }
        }
    }
    lines.extend(holds.nodes.iter().map(|(node, hold)| format!("{node} is held {}", particulars(hold))));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn particulars(hold: &Hold) -> String {
    let since = Timestamp::from_microsecond(hold.since).unwrap_or_default();
    format!("since {since:.0} ({}): {}", hold.reason, hold.message)
}

#[cfg(test)]
mod tests {
    use horchestra_store::MemoryDatabase;

    use super::*;

    #[tokio::test]
    async fn what_is_held_is_shown_and_released() {
        let backend = MemoryDatabase::new().connect();
        let act = async |action| act(&*backend, &action).await.unwrap();
        assert_eq!(act(Action::Show).await, "no node is held\n");
        let engaged = act(Action::Engage { message: "a backup comes back".to_owned() }).await;
        assert!(engaged.starts_with("all nodes are held since 2"), "{engaged}");
        assert!(engaged.ends_with("(Requested): a backup comes back\n"), "{engaged}");
        let one = act(Action::Release { node: Some("n1".to_owned()) }).await;
        assert_eq!(one, format!("{engaged}  but not n1, which was released\n"));
        backend.engage_hold(Some("n2"), reason::UNEXPLAINED, "odd").await.unwrap();
        assert!(act(Action::Show).await.ends_with("(Unexplained): odd\n"));
        assert_eq!(act(Action::Release { node: None }).await, "no node is held\n");
    }
}
