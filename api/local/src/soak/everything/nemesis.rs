//! What is done, one thing after the other, each when the last one has been got over.
//!
//! Nobody is helped: what was killed comes back because it is supervised, and what stood still goes on.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::super::deck::Deck;
use super::super::gateways::net::Cable;
use super::super::processes::{Processes, until};
use super::faults::{ALL, Fault, Measure};
use super::informers::Informers;
use super::prober::{self, Askers, Prober};
use super::site::{self, AGENTS, APIS, GATEWAYS, Site, WORKERS};
use super::witness;

/// The loop whose leader is the leader.
const LOOP: &str = "scheduler";
/// How long a leader lives after it was seen.
const MERCY: Duration = Duration::from_secs(1);
/// How long a balancer takes to notice that somebody does not answer.
const NOTICE: Duration = Duration::from_secs(2);
/// How long a leader stands still at most: longer than its lease.
const STAND: Duration = Duration::from_secs(60);
/// Of how many nodes of a gateway it is looked whether they run what is new.
const LOOKED_AT: usize = 3;

/// What was done, and what came of it.
#[derive(Clone, Debug)]
pub struct Struck {
    pub fault: Fault,
    pub victim: String,
    /// How long it lasted, for those that last.
    pub lasted: Duration,
    pub measured: Vec<(Measure, Duration)>,
    /// From the end of the fault until everything was in order: every node served, every replica writing, the
    /// scheduler led.
    pub recovered: Duration,
}

/// Draws what happens next.
pub struct Nemesis {
    random: StdRng,
    deck: Deck<Fault>,
}

/// Those who see what comes of it.
pub struct Seers<'a> {
    pub prober: &'a mut Prober,
    pub askers: &'a Askers,
    pub informers: &'a Informers,
}

impl Nemesis {
    pub fn new(seed: u64, networks: bool) -> Nemesis {
        let possible = ALL.into_iter().filter(|fault| networks || !fault.needs_network());
        let deck = Deck::new(possible.collect());
        Nemesis { random: StdRng::seed_from_u64(seed), deck }
    }

    fn draw(&mut self) -> Fault {
        self.deck.draw(&mut self.random)
    }

    fn seconds(&mut self, least: f64, most: f64) -> Duration {
        Duration::from_secs_f64(self.random.random_range(least..most))
    }

    /// Does one thing, and waits until it has been got over.
    pub async fn strike(&mut self, site: &Site, seers: &mut Seers<'_>) -> Result<Struck> {
        let fault = self.draw();
        let mut struck = Struck {
            fault,
            victim: String::new(),
            lasted: Duration::ZERO,
            measured: Vec::new(),
            recovered: Duration::ZERO,
        };
        let outcome = match fault {
            Fault::ApiKilled | Fault::ApiStopped | Fault::ApisRolled | Fault::ClientsCut => {
                Box::pin(self.strike_api(site, seers, &mut struck)).await
            }
            Fault::LeaderKilled | Fault::LeaderStopped | Fault::LeaderResigned => {
                Box::pin(self.strike_leader(site, seers, &mut struck)).await
            }
            Fault::WorkerKilled | Fault::WorkerStopped => {
                Box::pin(self.strike_worker(site, &mut struck)).await
            }
            Fault::GatewayKilled | Fault::GatewayStopped | Fault::NodesCutOff | Fault::GatewayCutOff => {
                Box::pin(self.strike_gateway(site, seers, &mut struck)).await
            }
            Fault::AgentKilled | Fault::AgentStopped => Box::pin(self.strike_agent(site, &mut struck)).await,
            Fault::DatabaseCrashed
            | Fault::DatabaseRestarted
            | Fault::DatabaseStopped
            | Fault::SessionsEnded
            | Fault::ProgramCut
            | Fault::ListenersEnded => Box::pin(self.strike_database(site, seers, &mut struck)).await,
        };
        outcome.with_context(|| format!("{fault} ({})", struck.victim))?;
        let over = Instant::now();
        Box::pin(in_order(site, seers))
            .await
            .with_context(|| format!("after: {fault} ({})", struck.victim))?;
        struck.recovered = over.elapsed();
        Ok(struck)
    }

    async fn strike_api(&mut self, site: &Site, seers: &Seers<'_>, struck: &mut Struck) -> Result<()> {
        let replica = self.random.random_range(0..APIS);
        let process = site::api(replica);
        seers.askers.ask().await?;
        let began = Instant::now();
        let done = async {
            match struck.fault {
                Fault::ApiKilled => {
                    struck.victim.clone_from(&process);
                    let pid = site.signal(&process, Signal::SIGKILL)?;
                    site.replaced(&process, pid).await?;
                    site.answers(replica).await
                }
                Fault::ApiStopped => {
                    struck.victim.clone_from(&process);
                    let still = self.seconds(3.0, 8.0);
                    struck.lasted = still;
                    let _frozen = Frozen::of(&[site.pid(&process).context("no process")?])?;
                    sleep(NOTICE).await;
                    site.apis().mark(replica, false);
                    sleep(still.saturating_sub(NOTICE)).await;
                    Ok(())
                }
                Fault::ApisRolled => {
                    for replica in 0..APIS {
                        let process = site::api(replica);
                        let pid = site.signal(&process, Signal::SIGTERM)?;
                        site.replaced(&process, pid).await?;
                        site.answers(replica).await?;
                    }
                    Ok(())
                }
                _ => {
                    (0..APIS).for_each(|replica| site.apis().mark(replica, false));
                    // Whoever carries a connection has to see it.
                    sleep(Duration::from_millis(50)).await;
                    Ok(())
                }
            }
        };
        let done = done.await;
        (0..APIS).for_each(|replica| site.apis().mark(replica, true));
        done?;
        let balanced = |way: &str| way == "balancer";
        match struck.fault {
            Fault::ApiKilled => {
                let others = |way: &str| way != process && !balanced(way);
                struck.measured.push((Measure::Others, seers.askers.longest(began, others)));
                struck.measured.push((Measure::Balanced, seers.askers.longest(began, balanced)));
            }
            Fault::ApisRolled => {
                struck.measured.push((Measure::Rolled, seers.askers.longest(began, balanced)));
            }
            _ => {}
        }
        seers.askers.quiet();
        Ok(())
    }

    async fn strike_leader(&mut self, site: &Site, seers: &mut Seers<'_>, struck: &mut Struck) -> Result<()> {
        let process = leads(site).await?;
        sleep(MERCY).await;
        struck.victim.clone_from(&process);
        let began = Instant::now();
        match struck.fault {
            Fault::LeaderKilled | Fault::LeaderResigned => {
                let (signal, measure) = match struck.fault {
                    Fault::LeaderKilled => (Signal::SIGKILL, Measure::TakenOver),
                    _ => (Signal::SIGTERM, Measure::HandedOver),
                };
                let pid = site.signal(&process, signal)?;
                struck.measured.push((measure, seers.prober.bound(began).await?));
                site.replaced(&process, pid).await
            }
            _ => {
                let frozen = Frozen::of(&[site.pid(&process).context("no process")?])?;
                let bound = timeout(STAND, seers.prober.bound(began)).await;
                struck.lasted = began.elapsed();
                drop(frozen);
                struck.measured.push((Measure::Overtaken, bound.context("nobody takes over")??));
                Ok(())
            }
        }
    }

    async fn strike_worker(&mut self, site: &Site, struck: &mut Struck) -> Result<()> {
        let leader = leads(site).await?;
        let others: Vec<String> = (0..WORKERS).map(site::worker).filter(|name| *name != leader).collect();
        let process = &others[self.random.random_range(0..others.len())];
        struck.victim.clone_from(process);
        if struck.fault == Fault::WorkerKilled {
            let pid = site.signal(process, Signal::SIGKILL)?;
            return site.replaced(process, pid).await;
        }
        struck.lasted = self.seconds(5.0, 20.0);
        let _frozen = Frozen::of(&[site.pid(process).context("no process")?])?;
        sleep(struck.lasted).await;
        Ok(())
    }

    async fn strike_gateway(
        &mut self,
        site: &Site,
        seers: &mut Seers<'_>,
        struck: &mut Struck,
    ) -> Result<()> {
        // One that serves nodes, if the other does not: what happens to it would hit nobody.
        let mut gateway = self.random.random_range(0..GATEWAYS);
        let mut nodes = prober::nodes_of(&mut site.connect().await?, gateway).await?;
        if nodes.is_empty() {
            gateway = (gateway + 1) % GATEWAYS;
            nodes = prober::nodes_of(&mut site.connect().await?, gateway).await?;
        }
        let process = site::gateway(gateway);
        struck.victim.clone_from(&process);
        match struck.fault {
            Fault::GatewayKilled => {
                nodes.shuffle(&mut self.random);
                // One with an agent of its own, where it served one.
                nodes.sort_by_key(|node| node.starts_with("sim-"));
                nodes.truncate(LOOKED_AT);
                let began = Instant::now();
                let pid = site.signal(&process, Signal::SIGKILL)?;
                let all_back = async {
                    site.all_served().await?;
                    anyhow::Ok(began.elapsed())
                };
                let (run, served) = tokio::join!(seers.prober.runs(&nodes, began), all_back);
                struck.measured.push((Measure::NodesBack, run?.max(served?)));
                site.replaced(&process, pid).await
            }
            Fault::GatewayStopped => {
                struck.lasted = self.seconds(10.0, 25.0);
                let frozen = Frozen::of(&[site.pid(&process).context("no process")?])?;
                sleep(NOTICE).await;
                site.gates().mark(gateway, false);
                sleep(struck.lasted.saturating_sub(NOTICE)).await;
                drop(frozen);
                site.gates().mark(gateway, true);
                Ok(())
            }
            _ => {
                struck.lasted = self.seconds(4.0, 20.0);
                let cable = if struck.fault == Fault::NodesCutOff { Cable::Nodes } else { Cable::Database };
                let network = site.network(gateway).context("there are no networks")?;
                network.pull(cable)?;
                sleep(struck.lasted).await;
                network.plug(cable)
            }
        }
    }

    async fn strike_agent(&mut self, site: &Site, struck: &mut Struck) -> Result<()> {
        let process = site::agent(self.random.random_range(0..AGENTS));
        struck.victim.clone_from(&process);
        if struck.fault == Fault::AgentKilled {
            let pid = site.signal(&process, Signal::SIGKILL)?;
            return site.replaced(&process, pid).await;
        }
        struck.lasted = self.seconds(3.0, 20.0);
        let _frozen = Frozen::of(&[site.pid(&process).context("no process")?])?;
        sleep(struck.lasted).await;
        Ok(())
    }

    async fn strike_database(
        &mut self,
        site: &Site,
        seers: &mut Seers<'_>,
        struck: &mut Struck,
    ) -> Result<()> {
        struck.victim = "postgres".to_owned();
        match struck.fault {
            Fault::DatabaseCrashed | Fault::DatabaseRestarted => {
                let crashes = struck.fault == Fault::DatabaseCrashed;
                let pid = site.signal("postgres", if crashes { Signal::SIGQUIT } else { Signal::SIGINT })?;
                site.replaced("postgres", pid).await?;
                let back = prober::database_answers(site.url()).await?;
                let took = seers.prober.written(site, seers.informers, back).await?;
                struck.measured.push((Measure::WritesBack, took));
                Ok(())
            }
            Fault::DatabaseStopped => {
                struck.lasted = self.seconds(2.0, 8.0);
                let _frozen = Frozen::of(&server(site.pid("postgres").context("no server")?))?;
                sleep(struck.lasted).await;
                Ok(())
            }
            fault => {
                let programs = ["horchestra-api", "horchestra-workers", "horchestra-nodegate"];
                let program = programs[self.random.random_range(0..programs.len())];
                let (whose, query) = match fault {
                    Fault::SessionsEnded => ("horchestra-", ""),
                    Fault::ProgramCut => (program, ""),
                    _ => ("horchestra-", "listen"),
                };
                // Who listens asks whether its connection lives, where nothing was to be heard for long.
                let ending = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                    where starts_with(application_name, $1) \
                    and (starts_with(lower(query), $2) or $2 = 'listen' and query = 'select 1')";
                let mut database = site.connect().await?;
                let ended: i64 =
                    sqlx::query_scalar(ending).bind(whose).bind(query).fetch_one(&mut database).await?;
                struck.victim = format!("{ended} sessions of {whose}*");
                anyhow::ensure!(ended > 0, "there was no session to end");
                Ok(())
            }
        }
    }
}

/// Processes that stand still; they go on with the end of the value.
struct Frozen(Vec<Pid>);

impl Frozen {
    /// Stops them in this order.
    fn of(pids: &[Pid]) -> Result<Frozen> {
        let mut frozen = Frozen(Vec::new());
        for pid in pids {
            // One of PostgreSQL's may have ended by itself.
            if kill(*pid, Signal::SIGSTOP).is_ok() {
                frozen.0.push(*pid);
            }
        }
        anyhow::ensure!(!frozen.0.is_empty(), "there was nobody to stop");
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in self.0.iter().rev() {
            let _ = kill(*pid, Signal::SIGCONT);
        }
    }
}

/// A server with all that it has started. It is stopped first, and starts no more then.
fn server(pid: Pid) -> Vec<Pid> {
    let _ = kill(pid, Signal::SIGSTOP);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok()).map(Pid::from_raw);
    std::iter::once(pid).chain(children).collect()
}

/// The process that leads the scheduler.
async fn leads(site: &Site) -> Result<String> {
    let found = parking_lot::Mutex::new(None);
    let asked = async || {
        let Ok(mut database) = site.connect().await else { return false };
        let Ok(Some((process, _))) = witness::leader(&mut database, LOOP).await else { return false };
        let runs = site.pid(&process).is_some();
        *found.lock() = Some(process);
        runs
    };
    until(Site::PATIENCE, "nobody leads the scheduler", asked).await?;
    found.into_inner().context("nobody leads the scheduler")
}

/// Waits until everything is in order: every replica is ready and writes, every node is served, somebody leads.
async fn in_order(site: &Site, seers: &mut Seers<'_>) -> Result<()> {
    for replica in 0..APIS {
        site.answers(replica).await?;
    }
    seers.prober.written(site, seers.informers, Instant::now()).await?;
    leads(site).await?;
    site.all_served().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_once_before_any_comes_again() {
        let mut nemesis = Nemesis::new(7, true);
        for round in 0..3 {
            let mut drawn: Vec<Fault> = (0..ALL.len()).map(|_| nemesis.draw()).collect();
            if round == 0 {
                assert_eq!(drawn, ALL);
            }
            drawn.sort();
            let mut all = ALL.to_vec();
            all.sort();
            assert_eq!(drawn, all);
        }
        let mut nemesis = Nemesis::new(7, false);
        assert!((0..50).all(|_| !nemesis.draw().needs_network()));
    }
}
