//! What a storm came to, for people.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use super::checker::Counts;
use super::nemesis::Struck;

/// Loops for which the load always has something to do, so that their first write tells when they are back.
const BUSY: [&str; 2] = ["scheduler", "applicationset"];
/// Within this time after a kill no lease can have run out: what is written was under way.
const UNDER_WAY: i64 = 1_000_000;
/// Violations that are shown.
const SHOWN: usize = 20;

/// The outcome.
#[derive(Debug)]
pub struct Report {
    pub elapsed: Duration,
    pub struck: Vec<Struck>,
    pub counts: Counts,
    /// By loop: from a kill to the next write of the loop.
    pub hand_overs: BTreeMap<String, Vec<Duration>>,
    pub violations: Vec<String>,
}

/// From each kill of a leader to the next write of the loops that it led; `writes` in ascending order.
pub fn hand_overs(struck: &[Struck], writes: &HashMap<String, Vec<i64>>) -> BTreeMap<String, Vec<Duration>> {
    let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for blow in struck {
        for name in blow.led.iter().filter(|name| BUSY.contains(&name.as_str())) {
            let writes = writes.get(name).map_or(&[][..], Vec::as_slice);
            let next = writes.partition_point(|at| *at <= blow.at + UNDER_WAY);
            if let Some(at) = writes.get(next) {
                let micros = u64::try_from(at - blow.at).unwrap_or_default();
                times.entry(name.clone()).or_default().push(Duration::from_micros(micros));
            }
        }
    }
    times.values_mut().for_each(|times| times.sort());
    times
}

impl Report {
    /// What the storm did not try: rules that nothing could have broken were not kept, they were not asked for.
    pub fn untried(&self) -> Vec<&'static str> {
        let counts = &self.counts;
        let tried = [
            ("no Application was bound", counts.binds),
            ("no node was ever full", counts.filled),
            ("no set made a child", counts.children),
            ("no available child was changed under a budget", counts.disruptions),
            ("nothing was deleted", counts.deletions),
            ("nothing was acknowledged", counts.acknowledged),
            ("nobody was killed", self.struck.len()),
        ];
        tried.into_iter().filter(|(_, count)| *count == 0).map(|(what, _)| what).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { changes, binds, fits, filled, children, disruptions, deletions, acknowledged } =
            self.counts;
        let mut victims: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.struck.iter().flat_map(|blow| &blow.led) {
            *victims.entry(name).or_default() += 1;
        }
        let victims: Vec<String> = victims.iter().map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(f, "storm            {:.1} min", self.elapsed.as_secs_f64() / 60.0)?;
        writeln!(f, "leaders killed   {} ({})", self.struck.len(), victims.join(", "))?;
        writeln!(f, "changes checked  {changes}, one by one; {acknowledged} acknowledged to clients")?;
        writeln!(
            f,
            "placement        {binds} binds, {fits} placements that had to fit, {filled} filled a node"
        )?;
        writeln!(f, "sets             {children} children made, {disruptions} changed under a budget")?;
        writeln!(f, "deletions        {deletions} Applications and sets gone")?;
        for (name, times) in &self.hand_overs {
            let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) else { continue };
            let (count, median, longest) = (times.len(), median.as_secs_f64(), longest.as_secs_f64());
            writeln!(f, "hand-over        {name}: p50 {median:.1} s, max {longest:.1} s ({count} kills)")?;
        }
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
    fn a_hand_over_lasts_from_the_kill_to_the_next_write_of_who_took_over() {
        let blow = |at, led: &[&str]| Struck {
            process: "workers-0".to_owned(),
            led: led.iter().map(|name| (*name).to_owned()).collect(),
            at,
        };
        let second = 1_000_000;
        let writes = HashMap::from([
            // The second is of the one that was killed, and was under way.
            (
                "scheduler".to_owned(),
                vec![9 * second, 10 * second + 1, 22 * second, 23 * second, 60 * second],
            ),
            ("compaction".to_owned(), vec![11 * second]),
        ]);
        let struck = [
            blow(10 * second, &["scheduler", "compaction"]),
            blow(50 * second, &["scheduler", "applicationset"]),
        ];
        let expected = BTreeMap::from([(
            "scheduler".to_owned(),
            vec![Duration::from_secs(10), Duration::from_secs(12)],
        )]);
        assert_eq!(hand_overs(&struck, &writes), expected);
    }
}
