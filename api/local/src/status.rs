//! `status`: what runs, from the files of the stack.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::layout::Layout;
use crate::process::running;
use crate::{down, say};

/// Prints a line per process.
pub fn status(home: &Path) -> Result<()> {
    let Some(layout) = Layout::open(home) else {
        say("There is no stack here: `make up` starts one.");
        return Ok(());
    };
    let supervisor = running(&layout.pid_of("supervisor"), &["horchestra-local"]);
    let state = match (supervisor, layout.ready().exists()) {
        (Some(_), true) => "ready",
        (Some(_), false) => "starting or stopping",
        (None, _) => "not running",
    };
    say(&format!("stack in {}: {state}", layout.root().display()));
    if let Some(pid) = supervisor {
        say(&format!("{:<14} {:>8}", "supervisor", pid));
    }
    for (name, pid) in down::processes(&layout)? {
        let port = fs::read_to_string(layout.port_of(&name)).unwrap_or_default();
        let address = if port.is_empty() { String::new() } else { format!("127.0.0.1:{}", port.trim()) };
        say(&format!("{name:<14} {pid:>8}  {address}"));
    }
    for (what, name) in [("API", "api"), ("nodes", "nodegate")] {
        if let Ok(port) = fs::read_to_string(layout.port_of(name)) {
            say(&format!("{what:<14} {:>8}  127.0.0.1:{}", "", port.trim()));
        }
    }
    Ok(())
}
