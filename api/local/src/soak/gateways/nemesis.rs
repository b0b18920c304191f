//! What is done to the gateways, one thing after the other, each when the last one has been got over.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

use super::super::deck::Deck;
use super::super::processes::Processes;
use super::net::Cable;
use super::site::{GATEWAYS, Site};
use super::witness;

/// Longer than a gateway may act without the database.
const TERM: Duration = Duration::from_secs(12);
/// Longest time that a process stands still: nodes are judged after less than that.
const LONGEST_STAND: Duration = Duration::from_secs(90);
const SHORTEST_CUT: Duration = Duration::from_secs(3);
/// How long a balancer takes to notice that a gateway does not answer.
const NOTICE: Duration = Duration::from_secs(2);
/// How long what waited in a gateway that stood still may take to come out.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// How long everybody is left alone in between.
const MERCY: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A gateway stands still, its nodes move on, and it goes on.
    Stand,
    /// A gateway cannot reach the database.
    NoDatabase,
    /// A gateway is killed.
    Kill,
    /// PostgreSQL crashes and starts again.
    Database,
    /// Nodes cannot reach a gateway.
    NoNodes,
}

/// In this order for the first time, so that a short storm has those of which most can come.
const ALL: [Fault; 5] = [Fault::Stand, Fault::NoDatabase, Fault::Kill, Fault::Database, Fault::NoNodes];

impl Fault {
    fn needs_network(self) -> bool {
        matches!(self, Fault::NoDatabase | Fault::NoNodes)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Stand => "stood still",
            Fault::NoDatabase => "cut off from the database",
            Fault::Kill => "killed",
            Fault::Database => "PostgreSQL crashed",
            Fault::NoNodes => "cut off from nodes",
        })
    }
}

/// What was done, and what came of it.
#[derive(Clone, Debug)]
pub struct Struck {
    pub fault: Fault,
    pub gateway: Option<usize>,
    /// How long it lasted, for those that last.
    pub lasted: Duration,
    /// From the end of the fault until every node was served.
    pub recovered: Duration,
    /// Sessions that changed hands.
    pub taken_over: i64,
    /// Nodes that had moved on when a gateway that stood still went on.
    pub moved: i64,
}

/// Draws what happens next.
pub struct Nemesis {
    random: StdRng,
    longest: Duration,
    deck: Deck<Fault>,
}

impl Nemesis {
    /// What lasts, lasts no longer than this.
    pub fn new(seed: u64, longest: Duration, networks: bool) -> Nemesis {
        let possible = ALL.into_iter().filter(|fault| networks || !fault.needs_network());
        let deck = Deck::new(possible.collect());
        Nemesis { random: StdRng::seed_from_u64(seed), longest, deck }
    }

    fn draw(&mut self) -> Fault {
        self.deck.draw(&mut self.random)
    }

    /// A time between these two; short ones come as often as long ones.
    fn between(&mut self, least: Duration, most: Duration) -> Duration {
        if most <= least {
            return least;
        }
        let (least, most) = (least.as_secs_f64().ln(), most.as_secs_f64().ln());
        Duration::from_secs_f64(self.random.random_range(least..most).exp())
    }

    /// A gateway, one that serves nodes if the other does not: what happens to it would hit nobody.
    async fn victim(&mut self, site: &Site) -> Result<usize> {
        let gateways = usize::from(GATEWAYS);
        let first = self.random.random_range(0..gateways);
        for gateway in (0..gateways).map(|turn| (first + turn) % gateways) {
            if site.served_by(gateway).await? > 0 {
                return Ok(gateway);
            }
        }
        Ok(first)
    }

    /// Does one thing, and waits until it has been got over.
    pub async fn strike(&mut self, site: &Site) -> Result<Struck> {
        let fault = self.draw();
        let gateway = self.victim(site).await?;
        let before = witness::taken_over(&mut site.connect().await?).await?;
        let mut struck = Struck {
            fault,
            gateway: (fault != Fault::Database).then_some(gateway),
            lasted: Duration::ZERO,
            recovered: Duration::ZERO,
            taken_over: 0,
            moved: 0,
        };
        match fault {
            Fault::Kill => {
                let process = process(gateway);
                let pid = site.signal(&process, Signal::SIGKILL)?;
                site.replaced(&process, pid).await?;
            }
            Fault::Database => {
                // What PostgreSQL calls immediate: nothing is ended, nothing is written.
                let pid = site.signal("postgres", Signal::SIGQUIT)?;
                site.replaced("postgres", pid).await?;
            }
            Fault::Stand => {
                struck.lasted = self.between(TERM, self.longest.min(LONGEST_STAND));
                struck.moved = stand(site, gateway, struck.lasted).await?;
            }
            Fault::NoDatabase | Fault::NoNodes => {
                struck.lasted = self.between(SHORTEST_CUT, self.longest);
                let cable = if fault == Fault::NoNodes { Cable::Nodes } else { Cable::Database };
                // Some balancers notice, others look at nothing.
                let noticed = fault == Fault::NoNodes && self.random.random();
                cut(site, gateway, cable, struck.lasted, noticed).await?;
            }
        }
        let over = Instant::now();
        site.all_served().await?;
        struck.recovered = over.elapsed();
        sleep(MERCY).await;
        struck.taken_over = witness::taken_over(&mut site.connect().await?).await? - before;
        Ok(struck)
    }
}

fn process(gateway: usize) -> String {
    format!("nodegate-{gateway}")
}

/// Answers how many nodes had moved to another gateway by the time that this one went on.
async fn stand(site: &Site, gateway: usize, time: Duration) -> Result<i64> {
    let process = process(gateway);
    let served = site.served_by(gateway).await?;
    let pid = site.signal(&process, Signal::SIGSTOP)?;
    let still = async {
        sleep(NOTICE).await;
        site.front().mark(gateway, false);
        let end = Instant::now() + time;
        // Not before its nodes have gone: what it holds for them is what it must not write.
        loop {
            sleep(Duration::from_millis(500)).await;
            let left = site.served_by(gateway).await?;
            let now = Instant::now();
            if now >= end && (left == 0 || now >= end + LONGEST_STAND) {
                return anyhow::Ok(served - left);
            }
        }
    };
    let moved = still.await;
    nix::sys::signal::kill(pid, Signal::SIGCONT).context("letting a gateway go on")?;
    site.front().mark(gateway, true);
    sleep(AFTERWARDS).await;
    moved
}

async fn cut(site: &Site, gateway: usize, cable: Cable, time: Duration, noticed: bool) -> Result<()> {
    let network = site.network(gateway).context("there are no networks")?;
    network.pull(cable)?;
    if noticed && time > NOTICE {
        sleep(NOTICE).await;
        site.front().mark(gateway, false);
        sleep(time - NOTICE).await;
    } else {
        sleep(time).await;
    }
    network.plug(cable)?;
    site.front().mark(gateway, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_once_before_any_comes_again() {
        let mut nemesis = Nemesis::new(7, Duration::from_secs(60), true);
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
        let mut nemesis = Nemesis::new(7, Duration::from_secs(60), false);
        assert!((0..20).all(|_| !nemesis.draw().needs_network()));
        for _ in 0..100 {
            let time = nemesis.between(SHORTEST_CUT, Duration::from_secs(60));
            assert!(time >= SHORTEST_CUT.mul_f64(0.999) && time < Duration::from_secs(61), "{time:?}");
        }
        assert_eq!(nemesis.between(TERM, SHORTEST_CUT), TERM);
    }
}
