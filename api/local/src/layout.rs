//! Where a local stack keeps what it knows: one folder, `HORCHESTRA_HOME`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use horchestra_auth::pki::{HostName, LocalPki, private_folder};
use horchestra_auth::sealing::RingFile;
use horchestra_auth::tokens::KeyFiles;
use nix::fcntl::{Flock, FlockArg};

/// The folder of a stack and the places in it.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Makes the folders that are missing.
    pub fn create(root: &Path) -> io::Result<Layout> {
        fs::create_dir_all(root)?;
        let root = fs::canonicalize(root)?;
        let layout = Layout { root };
        for folder in [layout.logs(), layout.run(), layout.agents()] {
            fs::create_dir_all(folder)?;
        }
        layout.forget_other_boots()?;
        Ok(layout)
    }

    /// Pids of before the machine was started anew are those of others by now.
    fn forget_other_boots(&self) -> io::Result<()> {
        let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return Ok(()) };
        let kept = self.run().join("boot");
        match fs::read_to_string(&kept) {
            Ok(last) if last == boot => return Ok(()),
            Ok(_) => {
                for entry in fs::read_dir(self.run())?.flatten() {
                    if entry.path().extension().is_some_and(|ending| ending == "pid") {
                        fs::remove_file(entry.path())?;
                    }
                }
            }
            Err(_) => {}
        }
        fs::write(kept, boot)
    }

    /// Held by the one supervisor that works on this folder.
    pub fn lock(&self) -> Result<Flock<fs::File>> {
        let path = self.run().join("lock");
        let file = fs::File::options().create(true).append(true).open(&path)?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error).with_context(|| {
            format!(
                "somebody else is starting or stopping a stack here ({} is locked): wait for it",
                path.display()
            )
        })
    }

    /// What a stack proves and keeps secret with: its certificates, the keys of Secrets and the folder of keys for
    /// tokens, all made where they are missing. No process of a stack starts without them.
    pub fn ensure_keys(&self) -> Result<LocalPki> {
        RingFile::ensure(&self.secret_keys())?;
        private_folder(&self.token_keys())?;
        KeyFiles::new(self.token_keys()).ensure()?;
        Ok(LocalPki::ensure(&self.pki(), &[HostName::parse("localhost")?])?)
    }

    /// The stack in this folder, if there is one.
    pub fn open(root: &Path) -> Option<Layout> {
        let root = fs::canonicalize(root).ok()?;
        root.join("run").is_dir().then_some(Layout { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub fn database_url(&self) -> PathBuf {
        self.root.join("database-url")
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// What Secrets are sealed with.
    pub fn secret_keys(&self) -> PathBuf {
        self.root.join("secret-keys")
    }

    /// What tokens of workloads are signed with, a folder.
    pub fn token_keys(&self) -> PathBuf {
        self.root.join("token-keys")
    }

    /// The data of the private PostgreSQL (a link where the folder cannot be reached by its user).
    pub fn postgres(&self) -> PathBuf {
        self.root.join("pg")
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn log_of(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    pub fn pid_of(&self, process: &str) -> PathBuf {
        self.run().join(format!("{process}.pid"))
    }

    pub fn port_of(&self, process: &str) -> PathBuf {
        self.run().join(format!("{process}.port"))
    }

    pub fn agents(&self) -> PathBuf {
        self.root.join("agents")
    }

    /// What an agent keeps of its workloads.
    pub fn agent_state(&self, node: &str) -> PathBuf {
        self.agents().join(node)
    }

    /// Written when everything is ready, removed when the stack goes down: the pid of its supervisor.
    pub fn ready(&self) -> PathBuf {
        self.run().join("ready")
    }

    /// Whether the stack of this supervisor is ready. One that was killed leaves the word of its own behind.
    pub fn is_ready(&self, supervisor: i32) -> bool {
        fs::read_to_string(self.ready()).is_ok_and(|pid| pid.trim() == supervisor.to_string())
    }
}

/// Writes a file that only its owner can read, replacing it in one step.
pub fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, contents)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600))?;
    fs::rename(&temporary, path)
}
