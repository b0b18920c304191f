//! What is done to the stack, one blow after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgConnection;
use tokio::time::{Instant, sleep};

use super::leaders;
use super::processes::Processes;
use super::site::Site;

/// How long a leader lives after it was seen.
const MERCY: Duration = Duration::from_secs(3);
/// How long a loop may be without a leader: a lease, the time to notice, and a very busy machine.
const TAKEOVER: Duration = Duration::from_secs(240);
/// How often a leader is looked for that leads for long enough.
const CATCHES: usize = 20;
const LOOK: Duration = Duration::from_millis(50);

/// What can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// Kills the process that leads this loop, three seconds after it was seen.
    KillLeader(&'static str),
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Struck {
    pub process: String,
    /// The loops that it led.
    pub led: Vec<String>,
    /// Microseconds since the epoch, by the clock of the database.
    pub at: i64,
}

/// A process that leads.
struct Caught {
    process: String,
    pid: Pid,
    /// The terms that there are, of whomever.
    terms: BTreeMap<String, i64>,
    /// The loops among them that it leads.
    led: Vec<String>,
}

/// Deals blows, each when the last one has been got over.
pub struct Nemesis<'a> {
    site: &'a Site,
    database: PgConnection,
    dealt: usize,
}

impl<'a> Nemesis<'a> {
    pub async fn begin(site: &'a Site) -> Result<Nemesis<'a>> {
        Ok(Nemesis { site, database: site.connect().await?, dealt: 0 })
    }

    /// The next blow: loops take turns, those with the most to lose more often.
    pub fn choose(&mut self) -> Blow {
        const TURNS: [&str; 6] = [
            "scheduler",
            "applicationset",
            "scheduler",
            "applicationset",
            "garbage-collection",
            "node-lifecycle",
        ];
        self.dealt += 1;
        Blow::KillLeader(TURNS[(self.dealt - 1) % TURNS.len()])
    }

    /// Deals it, and waits until somebody does again what was done before.
    pub async fn strike(&mut self, blow: Blow) -> Result<Struck> {
        let Blow::KillLeader(reconciler) = blow;
        let Caught { process, pid, terms, led } = self.catch(reconciler).await?;
        let at = self.now().await?;
        kill(pid, Signal::SIGKILL).with_context(|| format!("killing {process}"))?;
        self.site.replaced(&process, pid).await?;
        for name in &led {
            self.taken_over(name, terms[name]).await?;
        }
        Ok(Struck { process, led, at })
    }

    /// A leader that still leads after its mercy.
    async fn catch(&mut self, reconciler: &str) -> Result<Caught> {
        for _ in 0..CATCHES {
            let (process, pid) = self.find(reconciler).await?;
            sleep(MERCY).await;
            let terms = leaders::terms(&mut self.database).await?;
            let led = leaders::led_by(self.site, &process, &terms).await;
            if led.iter().any(|name| name == reconciler) {
                return Ok(Caught { process, pid, terms, led });
            }
            // It lost the lease, or is too busy to answer.
        }
        bail!("nobody leads {reconciler} for {MERCY:?}")
    }

    /// The leader as the lease says, and its process.
    async fn find(&mut self, reconciler: &str) -> Result<(String, Pid)> {
        let deadline = Instant::now() + TAKEOVER;
        loop {
            let terms = leaders::terms(&mut self.database).await?;
            if let Some(epoch) = terms.get(reconciler)
                && let Some(process) = leaders::leader(self.site, reconciler, *epoch).await
                && let Some(pid) = self.site.pid(&process)
            {
                return Ok((process, pid));
            }
            if Instant::now() > deadline {
                bail!("nobody leads {reconciler}");
            }
            sleep(LOOK).await;
        }
    }

    async fn taken_over(&mut self, reconciler: &str, epoch: i64) -> Result<()> {
        let deadline = Instant::now() + TAKEOVER;
        while leaders::terms(&mut self.database).await?.get(reconciler).is_none_or(|now| *now <= epoch) {
            if Instant::now() > deadline {
                bail!("nobody took {reconciler} over in {TAKEOVER:?}");
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn now(&mut self) -> Result<i64> {
        let now = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        Ok(sqlx::query_scalar(now).fetch_one(&mut self.database).await?)
    }
}
