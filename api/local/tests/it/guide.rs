//! Commands of the guide (README.md), run as they stand there: a block that is marked with a name, ```` ```sh name ````,
//! is run by the test that asks for it, in a folder of its own and with the variables that the text speaks of. So what
//! the guide says and what was tried are one text.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use horchestra_testkit::binaries::{self, Account};

use crate::stack::said;

const README: &str = include_str!("../../../../README.md");

/// Every named block of commands, in order.
fn blocks() -> Vec<(&'static str, &'static str)> {
    let marked = README.split("```sh ").skip(1);
    marked.filter_map(|rest| rest.split("```").next()?.split_once('\n')).collect()
}

/// The commands of the block of this name.
#[track_caller]
pub fn block(name: &str) -> &'static str {
    let named = blocks().into_iter().find(|(other, _)| *other == name);
    named.unwrap_or_else(|| panic!("the guide has no block {name:?}")).1.trim_end()
}

/// Where the product's programs lie.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_horchestra-local")).parent().unwrap().to_owned()
}

/// Somebody who does what the guide says.
#[derive(Clone)]
pub struct Reader {
    folder: PathBuf,
    variables: Vec<(&'static str, String)>,
    account: Option<Account>,
}

impl Reader {
    /// One who works in this folder.
    pub fn new(folder: &Path) -> Reader {
        Reader { folder: folder.to_owned(), variables: Vec::new(), account: None }
    }

    /// With a variable that the text leaves to the reader.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Reader {
        self.variables.retain(|(other, _)| *other != name);
        self.variables.push((name, value.into()));
        self
    }

    /// As the user that PostgreSQL runs as.
    pub fn on_the_server(mut self) -> Reader {
        self.account = Some(Account::find().unwrap());
        self
    }

    /// The commands of a block, to be run.
    pub fn command(&self, name: &str) -> Command {
        self.shell(block(name))
    }

    /// As [`Reader::command`], for a single command that is to be ended by a signal.
    pub fn program(&self, name: &str) -> Command {
        self.shell(&format!("exec {}", block(name)))
    }

    /// A line that is no part of the guide, to be run.
    pub fn shell(&self, text: &str) -> Command {
        let shell = Path::new("/bin/sh");
        let mut command = self.account.map_or_else(|| Command::new(shell), |account| account.command(shell));
        // All of the server's programs are where it lies itself, and not where a link to it does.
        let server = std::fs::canonicalize(binaries::folder().unwrap().join("postgres")).unwrap();
        let mut folders = vec![programs(), server.parent().unwrap().to_owned()];
        folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command
            .args(["-eu", "-c", text])
            .env("PATH", std::env::join_paths(folders).unwrap())
            .env_remove("DATABASE_URL")
            .env_remove("KUBECONFIG")
            .env("RUST_BACKTRACE", "0")
            .env("KUBECACHEDIR", self.folder.join("kubectl-cache"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.folder);
        command
    }

    /// Runs the commands of a block; they must succeed. Answers what they printed.
    #[track_caller]
    pub fn run(&self, name: &str) -> String {
        printed(name, &self.command(name).output().unwrap())
    }

    /// Runs a line that is no part of the guide.
    #[track_caller]
    pub fn line(&self, line: &str) -> String {
        printed(line, &self.shell(line).output().unwrap())
    }
}

#[track_caller]
fn printed(what: &str, output: &Output) -> String {
    assert!(output.status.success(), "{what}: {}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn named_blocks_of_the_guide_have_one_name_each() {
    let blocks = blocks();
    let mut names: Vec<&str> = blocks.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert!(all > 0 && names.len() == all, "{names:?}");
    assert!(blocks.iter().all(|(name, text)| !name.contains(' ') && !text.trim().is_empty()), "{blocks:?}");
}
