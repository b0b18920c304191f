//! Telling "this workload is gone" from "this node cannot see its workloads".
//!
//! An agent that cannot ask its init system sees nothing at all and reports everything as failed or
//! terminated. Believing it would release every deleting Application of that node while its processes run
//! on. So a release is held back while *everything* that a node reports in one pass looks gone, and is let
//! through by the first report of the pass that shows something, or by a second pass that says the same.
//! A pass ends with the usage message that agents close it with, with the next heartbeat, or after a quiet
//! time. The second pass is asked for by pushing again (a push makes an agent pass; the same state again is
//! harmless), so a node whose only Application is being deleted waits about a second, not a heartbeat.

use std::collections::{HashMap, HashSet};

use horchestra_proto::node::v1::AppStatus;

use super::inbox::AppName;

/// The reports of the pass that is coming in.
#[derive(Default)]
pub struct Pass {
    /// Terminated, but not believed yet. By name, so that no node can make it grow.
    held: HashMap<AppName, AppStatus>,
    /// Something in this pass is not gone.
    alive: bool,
    /// Anything was reported since the last end: heartbeats come between passes and end nothing then.
    begun: bool,
    /// Held by the pass before this one.
    before: HashSet<AppName>,
}

/// What to do with a report.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// To be worked on now.
    pub through: Vec<AppStatus>,
    /// A second pass would settle what is held.
    pub ask_again: bool,
}

impl Pass {
    /// Takes a report in.
    pub fn report(&mut self, report: AppStatus) -> Verdict {
        self.begun = true;
        if !looks_gone(&report) {
            self.alive = true;
            let mut through: Vec<AppStatus> = std::mem::take(&mut self.held).into_values().collect();
            through.push(report);
            return Verdict { through, ask_again: false };
        }
        if report.phase == "Terminated" && !self.alive {
            self.held.insert(name(&report), report);
            return Verdict { through: Vec::new(), ask_again: false };
        }
        Verdict { through: vec![report], ask_again: false }
    }

    /// The pass is over.
    pub fn end(&mut self) -> Verdict {
        if !std::mem::take(&mut self.begun) {
            return Verdict { through: Vec::new(), ask_again: false };
        }
        let held = std::mem::take(&mut self.held);
        let before = std::mem::take(&mut self.before);
        self.alive = false;
        if held.is_empty() {
            return Verdict { through: Vec::new(), ask_again: false };
        }
        let (through, wait): (Vec<AppStatus>, Vec<AppStatus>) =
            held.into_values().partition(|report| before.contains(&name(report)));
        let ask_again = !wait.is_empty();
        self.before = wait.iter().map(name).collect();
        Verdict { through, ask_again }
    }

    /// Something waits for the end of the pass.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}

fn name(report: &AppStatus) -> AppName {
    (report.namespace.clone(), report.name.clone())
}

/// Nothing in the report shows that the node saw anything of the workload.
fn looks_gone(report: &AppStatus) -> bool {
    match report.phase.as_str() {
        "Terminated" => true,
        "Failed" => without_evidence(report),
        _ => false,
    }
}

/// No finish time, no attempts, exit code 0: what an agent reports of a workload that it cannot see.
fn without_evidence(report: &AppStatus) -> bool {
    report.finished_at_unix_nano == 0 && report.attempts == 0 && report.exit_code == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, phase: &str) -> AppStatus {
        AppStatus {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            phase: phase.to_owned(),
            ..AppStatus::default()
        }
    }

    /// Feeds a pass; returns the names let through, in order, and whether a second pass is asked for.
    fn feed(pass: &mut Pass, reports: &[(&str, &str)]) -> (Vec<String>, bool) {
        let mut names = Vec::new();
        for (name, phase) in reports {
            names.extend(pass.report(report(name, phase)).through.into_iter().map(|r| r.name));
        }
        let end = pass.end();
        names.extend(end.through.into_iter().map(|r| r.name));
        (names, end.ask_again)
    }

    #[test]
    fn one_living_workload_vouches_for_the_pass_wherever_it_comes() {
        for order in [["gone", "web"], ["web", "gone"]] {
            let mut pass = Pass::default();
            let reports: Vec<(&str, &str)> = order
                .iter()
                .map(|name| (*name, if *name == "web" { "Running" } else { "Terminated" }))
                .collect();
            let (mut names, again) = feed(&mut pass, &reports);
            names.sort();
            assert_eq!((names.as_slice(), again), (["gone".to_owned(), "web".to_owned()].as_slice(), false));
        }
    }

    #[test]
    fn a_pass_in_which_all_is_gone_needs_a_second_one() {
        let mut pass = Pass::default();
        let all_gone = [("a", "Terminated"), ("b", "Failed")];
        assert_eq!(feed(&mut pass, &all_gone), (vec!["b".to_owned()], true));
        assert_eq!(feed(&mut pass, &all_gone), (vec!["b".to_owned(), "a".to_owned()], false));
    }

    #[test]
    fn only_two_passes_in_a_row_confirm() {
        let mut pass = Pass::default();
        assert_eq!(feed(&mut pass, &[("a", "Terminated")]), (vec![], true));
        assert_eq!(feed(&mut pass, &[("b", "Terminated")]), (vec![], true), "of another workload");
        assert_eq!(feed(&mut pass, &[("c", "Failed")]), (vec!["c".to_owned()], false), "b no longer said so");
        assert_eq!(feed(&mut pass, &[("b", "Terminated")]), (vec![], true));
        assert_eq!(feed(&mut pass, &[]), (vec![], false), "a heartbeat between passes is no pass");
        assert_eq!(feed(&mut pass, &[("b", "Terminated")]), (vec!["b".to_owned()], false));
    }

    #[test]
    fn a_failure_with_an_exit_code_is_evidence() {
        let mut pass = Pass::default();
        pass.report(report("a", "Terminated"));
        assert!(pass.holds());
        let failed = AppStatus { exit_code: 7, ..report("b", "Failed") };
        assert_eq!(pass.report(failed).through.len(), 2);
        assert!(!pass.holds());
    }
}
