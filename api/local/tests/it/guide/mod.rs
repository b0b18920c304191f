//! Commands of the guide (README.md and the READMEs of the folders), run as they stand there: a block is marked with a
//! name, ```` ```sh name ````, and run by the test that asks for it, in a folder of its own and with the variables that the
//! text speaks of. So what the guide says and what was tried are one text. `rules` sees to it that no block is left out,
//! and `inline` looks at the commands in running text.

mod inline;
mod processes;
mod rules;
mod tour;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use horchestra_testkit::binaries::{self, Account};

use crate::stack::said;

/// Every text that tells people what to type.
const DOCUMENTS: [(&str, &str); 6] = [
    ("README.md", include_str!("../../../../../README.md")),
    ("api/README.md", include_str!("../../../../README.md")),
    ("workers/README.md", include_str!("../../../../../workers/README.md")),
    ("nodegate/README.md", include_str!("../../../../../nodegate/README.md")),
    ("nodegate/agent/README.md", include_str!("../../../../../nodegate/agent/README.md")),
    ("migrations/README.md", include_str!("../../../../../migrations/README.md")),
];

/// What stands between two fences.
struct Block {
    document: &'static str,
    /// What it is marked with: `sh name`.
    mark: &'static str,
    /// Without the indentation of the list that it is in.
    text: String,
}

impl Block {
    /// The language and the name.
    fn words(&self) -> (&'static str, &'static str) {
        self.mark.split_once(' ').unwrap_or((self.mark, ""))
    }
}

/// Every block of every document, in order.
fn blocks() -> Vec<Block> {
    const FENCE: &str = "```";
    let mut blocks = Vec::new();
    for (document, text) in DOCUMENTS {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(mark) = line.trim_start().strip_prefix(FENCE) else { continue };
            let indentation = line.len() - line.trim_start().len();
            let inside = lines.by_ref().take_while(|line| line.trim() != FENCE);
            let text = inside.map(|line| line.get(indentation..).unwrap_or_default()).collect::<Vec<_>>();
            blocks.push(Block { document, mark: mark.trim(), text: text.join("\n") });
        }
    }
    blocks
}

/// The commands of the block of this name.
#[track_caller]
pub fn block(name: &str) -> String {
    marked(&format!("sh {name}"))
}

/// The text of the block with this mark.
#[track_caller]
fn marked(mark: &str) -> String {
    let found = blocks().into_iter().find(|block| block.mark == mark);
    found.unwrap_or_else(|| panic!("the guide has no block {mark:?}")).text
}

/// The commands of a block one by one; a line that goes on is one with the next.
fn commands(name: &str) -> Vec<String> {
    let text = block(name).replace("\\\n", " ");
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// The repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
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
        self.shell(&block(name))
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
            .env_remove("HORCHESTRA_HOME")
            .env_remove("CARGO_TARGET_DIR")
            // Of a `make` that runs the tests.
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
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
