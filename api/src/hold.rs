//! The tool around holds on what is sent to nodes.
//!
//! A hold keeps the control plane from destroying what its database has forgotten. Whoever has seen more than the
//! database has engages it by itself, and so does an import. When the files of a database were put back as they are while
//! no process ran that could notice, it is for the operator to engage.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use horchestra_runtime::args::{DatabaseArgs, TelemetryArgs};
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::pushes::{beyond_all, reason};
use horchestra_store::{Backend, BackendError, Hold, Holds};
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
        /// The database was put back to an older state while no process ran that could notice: besides, no revision is
        /// given out again that clients may know from before, and their watches end
        #[arg(long)]
        put_back: bool,
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
        Action::Engage { message, put_back } => {
            let engaged = backend.engage_hold(None, reason::REQUESTED, message).await;
            engaged.context("the hold was not engaged; it can be tried again")?;
            if *put_back {
                begin_epoch(backend).await.context("the hold is engaged, but the rest failed; try again")?;
            }
        }
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

async fn begin_epoch(backend: &dyn Backend) -> Result<(), BackendError> {
    let head = backend.head().await?;
    let known = beyond_all(head.revision, Timestamp::now().as_microsecond());
    backend.begin_epoch(&head.identity, known).await.map(drop)
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
        let message = "a backup comes back".to_owned();
        let engaged = act(Action::Engage { message: message.clone(), put_back: false }).await;
        assert!(engaged.starts_with("all nodes are held since 2"), "{engaged}");
        assert!(engaged.ends_with("(Requested): a backup comes back\n"), "{engaged}");
        let one = act(Action::Release { node: Some("n1".to_owned()) }).await;
        assert_eq!(one, format!("{engaged}  but not n1, which was released\n"));
        backend.engage_hold(Some("n2"), reason::UNEXPLAINED, "odd").await.unwrap();
        assert!(act(Action::Show).await.ends_with("(Unexplained): odd\n"));
        assert_eq!(act(Action::Release { node: None }).await, "no node is held\n");
        assert_eq!(backend.head().await.unwrap().revision, 0);
        act(Action::Engage { message, put_back: true }).await;
        let head = backend.head().await.unwrap();
        assert!(
            head.revision > 0 && head.oldest == head.revision,
            "nobody goes on from an older one: {head:?}"
        );
    }
}
