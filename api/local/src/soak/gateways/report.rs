//! What a storm over gateways came to, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::checker::Counts;
use super::nemesis::{Fault, Struck};
use super::witness::Testimony;

/// Violations that are shown.
const SHOWN: usize = 20;

/// The outcome.
#[derive(Debug)]
pub struct Report {
    pub nodes: u32,
    pub seed: u64,
    pub elapsed: Duration,
    pub struck: Vec<Struck>,
    pub changes: usize,
    pub acknowledged: usize,
    pub counts: Counts,
    pub testimony: Testimony,
    pub without_networks: Option<String>,
    pub violations: Vec<String>,
}

impl Report {
    /// What the storm did not try: rules that nothing could have broken were not kept, they were not asked for.
    pub fn untried(&self) -> Vec<&'static str> {
        let moved: i64 = self.struck.iter().map(|struck| struck.moved).sum();
        let checked = usize::try_from(self.testimony.checked).unwrap_or(0);
        let tried = [
            ("nothing happened to anybody", self.struck.len()),
            ("no node moved on from a gateway that stood still", usize::try_from(moved).unwrap_or(0)),
            ("nothing was written for any node", checked),
            ("no node reported anything", self.counts.reports),
            ("no unit was stopped", self.counts.stopped),
            ("no address was reported", self.counts.addresses),
            ("no Application was compared", self.counts.compared),
        ];
        tried.into_iter().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.elapsed.as_secs_f64() / 60.0;
        writeln!(f, "storm            {minutes:.1} min over {} nodes, seed {}", self.nodes, self.seed)?;
        let mut kinds: BTreeMap<Fault, Vec<&Struck>> = BTreeMap::new();
        for struck in &self.struck {
            kinds.entry(struck.fault).or_default().push(struck);
        }
        writeln!(f, "faults           {}", self.struck.len())?;
        for (fault, all) in &kinds {
            let longest =
                |of: fn(&Struck) -> Duration| all.iter().map(|struck| of(struck)).max().unwrap_or_default();
            let lasted = longest(|struck| struck.lasted);
            let lasted = if lasted.is_zero() {
                String::new()
            } else {
                format!(" for up to {:.0} s", lasted.as_secs_f64())
            };
            writeln!(
                f,
                "  {:<28} {:>3} times{lasted}; all nodes served again after {:.1} s at most",
                fault.to_string(),
                all.len(),
                longest(|struck| struck.recovered).as_secs_f64()
            )?;
        }
        if let Some(why) = &self.without_networks {
            writeln!(f, "not tried        cutting off: {why}")?;
        }
        let Counts { reports, stopped, volumes_gone, addresses, compared, unready } = self.counts;
        let Testimony { checked, claims, taken_over, strays, leases } = &self.testimony;
        let moved: i64 = self.struck.iter().map(|struck| struck.moved).sum();
        writeln!(f, "sessions         {claims} opened, {taken_over} taken over from another gateway")?;
        writeln!(f, "                 {moved} nodes had moved on when a gateway that stood still went on")?;
        writeln!(
            f,
            "writes           {checked} rows for nodes, {} by a gateway that did not serve them",
            strays.len()
        )?;
        writeln!(
            f,
            "changes          {} checked, {} acknowledged to clients",
            self.changes, self.acknowledged
        )?;
        writeln!(
            f,
            "reports          {reports} changed something; {compared} Applications compared with their nodes"
        )?;
        writeln!(f, "torn down        {stopped} units, {volumes_gone} volumes, each for a reason on record")?;
        writeln!(f, "addresses        {addresses} reported, {} leased in the end", leases.len())?;
        writeln!(f, "not ready        {unready} times that a node was judged so")?;
        write!(f, "violations       {}", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}
