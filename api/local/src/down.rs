//! `down`: ends a stack, whoever started it and however it ended.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use crate::layout::Layout;
use crate::process::{running, stop_foreign};
use crate::stack::{PROGRAMS, Programs, Shared};
use crate::{ground, postgres, say};

/// Asks the supervisor to stop its stack; where there is none any more, stops what it left.
pub fn down(home: &Path) -> Result<()> {
    let Some(layout) = ground::existing(home)? else {
        say("There is no stack here.");
        return Ok(());
    };
    if let Some(pid) = running(&layout.pid_of("supervisor"), &["horchestra-local"]) {
        say("Stopping …");
        stop_foreign(pid, Signal::SIGTERM, Duration::from_secs(90)).context("stopping the supervisor")?;
    }
    stop_leftovers(&layout)?;
    let _ = fs::remove_file(layout.ready());
    let _ = fs::remove_file(layout.pid_of("supervisor"));
    say("Nothing runs any more.");
    Ok(())
}

/// Ends processes whose supervisor is gone (agents first, the database last) and the workloads of the
/// agents.
pub fn stop_leftovers(layout: &Layout) -> Result<()> {
    for prefix in ["agent-", "nodegate-", "workers-", "api-"] {
        for (name, pid) in processes(layout)? {
            if name.starts_with(prefix) {
                stop_foreign(pid, Signal::SIGTERM, Duration::from_secs(10))
                    .with_context(|| format!("stopping {name}"))?;
                forget(&layout.pid_of(&name))?;
            }
        }
        if prefix == "agent-" {
            stop_workloads(layout)?;
        }
    }
    if let Some(pid) = running(&layout.pid_of("postgres"), &PROGRAMS) {
        stop_foreign(pid, Signal::SIGINT, Duration::from_secs(30)).context("stopping PostgreSQL")?;
        forget(&layout.pid_of("postgres"))?;
    }
    postgres::tidy(layout);
    Ok(())
}

/// Somebody who starts a stack at the same moment tidies up as well.
fn forget(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn stop_workloads(layout: &Layout) -> Result<()> {
    let Ok(programs) = Programs::find() else { return Ok(()) };
    let nowhere = Path::new("");
    let shared = Shared {
        layout,
        programs: &programs,
        database_url: "",
        authority: nowhere,
        authority_key: nowhere,
        feature_gates: None,
        routed_cidr: None,
    };
    for entry in fs::read_dir(layout.agents())? {
        let node = entry?.file_name().to_string_lossy().into_owned();
        let spec = shared.stop_workloads(&node);
        let done = std::process::Command::new(&spec.program)
            .args(&spec.args)
            .output()
            .with_context(|| format!("stopping the workloads of {node}"))?;
        if !done.status.success() {
            bail!("the workloads of {node} could not be stopped: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
    Ok(())
}

/// Every process of the stack that runs, by name.
pub fn processes(layout: &Layout) -> Result<Vec<(String, i32)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(layout.run())? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".pid")) else {
            continue;
        };
        if name == "supervisor" {
            continue;
        }
        if let Some(pid) = running(&path, &PROGRAMS) {
            found.push((name.to_owned(), pid));
        }
    }
    found.sort();
    Ok(found)
}
