//! What it came to, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::super::checker::Counts;
use super::super::gateways::checker::Counts as OfNodes;
use super::super::gateways::witness::Testimony;
use super::checker::Tried;
use super::faults::{Fault, Measure};
use super::nemesis::Struck;

/// Violations that are shown.
const SHOWN: usize = 40;

/// The outcome.
#[derive(Debug)]
pub struct Report {
    pub nodes: usize,
    pub seed: u64,
    pub elapsed: Duration,
    pub struck: Vec<Struck>,
    pub counts: Counts,
    pub of_nodes: OfNodes,
    pub testimony: Testimony,
    /// Leases that went to another process.
    pub hands: i64,
    pub tried: Tried,
    pub informers: usize,
    pub events: usize,
    pub relists: usize,
    pub reconnects: usize,
    /// From the end of the load until everything was as it was wished for.
    pub rest: Duration,
    pub without_networks: Option<String>,
    pub violations: Vec<String>,
}

impl Report {
    /// What was not tried: rules that nothing could have broken were not kept, they were not asked for.
    pub fn untried(&self) -> Vec<&'static str> {
        let Counts { binds, children, deletions, acknowledged, .. } = self.counts;
        let number = |count: i64| usize::try_from(count).unwrap_or(0);
        let tried = [
            ("nothing happened to anybody", self.struck.len()),
            ("no Application was bound", binds),
            ("no set made a child", children),
            ("nothing was deleted", deletions),
            ("nothing was acknowledged", acknowledged),
            ("no strict write was acknowledged", self.tried.stored),
            ("no informer was told anything", self.events),
            ("no informer had to connect again", self.reconnects),
            ("nothing was written for any node", number(self.testimony.checked)),
            ("no node reported anything", self.of_nodes.reports),
        ];
        tried.into_iter().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect()
    }
}

/// The middle and the largest.
fn middle_and_worst(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.elapsed.as_secs_f64() / 60.0;
        writeln!(f, "storm            {minutes:.1} min over {} nodes, seed {}", self.nodes, self.seed)?;
        writeln!(f, "rounds           {}", self.struck.len())?;
        let mut kinds: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
        let mut measures: BTreeMap<Measure, Vec<Duration>> = BTreeMap::new();
        for struck in &self.struck {
            kinds.entry(struck.fault).or_default().push(struck.recovered);
            for (measure, time) in &struck.measured {
                measures.entry(*measure).or_default().push(*time);
            }
        }
        for (fault, times) in &mut kinds {
            let count = times.len();
            let (middle, worst) = middle_and_worst(times);
            let name = fault.to_string();
            let (middle, worst) = (seconds(middle), seconds(worst));
            writeln!(f, "  {name:<40} {count:>3} times; all in order after {middle}, at most {worst}")?;
        }
        if let Some(why) = &self.without_networks {
            writeln!(f, "not tried        cutting off gateways: {why}")?;
        }
        writeln!(f, "times to recover {:>38} {:>9} {:>9} {:>9}", "", "median", "worst", "goal")?;
        for (measure, times) in &mut measures {
            let (middle, worst) = middle_and_worst(times);
            let (goal, missed) = match measure.goal() {
                Some(goal) => (seconds(goal), if worst > goal { "  missed" } else { "" }),
                None => ("-".to_owned(), ""),
            };
            let (name, middle, worst) = (measure.to_string(), seconds(middle), seconds(worst));
            writeln!(f, "  {name:<53} {middle:>9} {worst:>9} {goal:>9}{missed}")?;
        }
        let Counts { changes, binds, fits, filled, children, disruptions, deletions, acknowledged } =
            self.counts;
        let Tried { stored, refused, unknown_stored, unknown_lost, .. } = self.tried;
        writeln!(f, "writes           {acknowledged} acknowledged")?;
        writeln!(
            f,
            "                 of those tried once {stored} acknowledged, {refused} refused, {} of unknown outcome: \
             {unknown_stored} stored, {unknown_lost} not",
            unknown_stored + unknown_lost
        )?;
        writeln!(f, "changes          {changes} checked one by one, {deletions} Applications and sets gone")?;
        writeln!(
            f,
            "placement        {binds} binds, {fits} placements that had to fit, {filled} filled a node"
        )?;
        writeln!(f, "sets             {children} children made, {disruptions} changed under a budget")?;
        writeln!(
            f,
            "informers        {}; {} events delivered, {} connections anew, {} lists anew (410)",
            self.informers, self.events, self.reconnects, self.relists
        )?;
        let Testimony { checked, claims, taken_over, strays, .. } = &self.testimony;
        writeln!(
            f,
            "fences           {checked} rows looked at, {} by a gateway that did not serve",
            strays.len()
        )?;
        writeln!(f, "                 {} times another process led a loop", self.hands)?;
        writeln!(f, "sessions         {claims} opened, {taken_over} taken over from another gateway")?;
        let OfNodes { reports, stopped, compared, unready, .. } = self.of_nodes;
        writeln!(f, "nodes            {reports} reports changed something, {stopped} units stopped")?;
        writeln!(f, "                 {unready} times judged not ready, {compared} Applications compared")?;
        writeln!(f, "at rest          {} after the end of the load", seconds(self.rest))?;
        write!(f, "violations       {}", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_few_times() {
        let of = |seconds: &[u64]| {
            let mut times: Vec<Duration> = seconds.iter().copied().map(Duration::from_secs).collect();
            let (middle, worst) = middle_and_worst(&mut times);
            (middle.as_secs(), worst.as_secs())
        };
        assert_eq!((of(&[]), of(&[3]), of(&[9, 1, 4]), of(&[2, 1])), ((0, 0), (3, 3), (4, 9), (2, 2)));
    }
}
