//! What the status of a set says.
//!
//! Counts are of the children as they were listed, before anything that the same pass does to them. Conditions
//! say why a set does not go on; the first of them that is false gives the phase its name. Everything here is a
//! function of what was found and of what was refused, so that the same state gives the same words and a steady
//! one is not written again.

use std::time::Duration;

use horchestra_core::kinds::application_set::{
    CONDITION_APPLIED, CONDITION_AVAILABLE, CONDITION_CONVERGED, CONDITION_INITIALIZED,
    CONDITION_PROGRESSING, CONDITION_RENDERED, ChildStatus,
};
use horchestra_core::kinds::meta::{Condition, ConditionStatus, condition};
use horchestra_core::reasons::{self, EventReason};
use horchestra_service::{SetReport, SetVerdict};
use jiff::{SignedDuration, Timestamp};

use super::plan::Outlook;
use super::situation::{Child, Situation, Standing};

/// How many refusals a message tells of.
const TOLD: usize = 3;

/// Something that a set makes and that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    /// Such as `application "web-a"`.
    pub what: String,
    /// Whether the name belongs to somebody else.
    pub conflict: bool,
    pub why: String,
}

/// How writing went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub refused: Vec<Refused>,
    /// Steps that were not done for now, and say nothing about the set.
    pub put_off: usize,
}

/// A report, and what comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    pub report: SetReport,
    /// When time alone makes a difference.
    pub again_in: Option<Duration>,
    /// What to tell people once the report is stored.
    pub events: Vec<(&'static EventReason, String)>,
}

/// The children in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    current: i64,
    scheduled: i64,
    running: i64,
    available: i64,
    /// Of those that run to their end, how many have succeeded.
    succeeded: i64,
}

/// Words for the condition `Progressing` that are looked for again.
const COMPLETE: &str = "Complete";
const ROLLING: &str = "Progressing";
const EXCEEDED: &str = "ProgressDeadlineExceeded";
/// Why children that differ are not changed.
const HELD: [&str; 2] = ["RolloutHeld", "RolloutPaused"];

pub fn report(situation: &Situation, outlook: &Outlook, outcome: &Outcome) -> Reported {
    let terminating = situation.entry.deleting;
    let (counts, children, maturing) = count(situation, terminating);
    let mut report = SetReport {
        generation: situation.entry.generation,
        desired: outlook.desired.map(number),
        current: counts.current,
        scheduled: counts.scheduled,
        running: counts.running,
        available: counts.available,
        updated: number(outlook.updated),
        children,
        ..SetReport::default()
    };
    let mut again_in = maturing;
    if terminating {
        report.conditions.extend(applied(situation, outcome).filter(is_false));
        report.phase = "Terminating".to_owned();
    } else if let Some(why) = &outlook.render_error {
        // What cannot be rendered is not touched, so nothing changes that was said of it.
        report.updated = situation.set.status.updated;
        report.conditions.push(no(CONDITION_RENDERED, "RenderError", why.clone()));
        report.phase = "RenderError".to_owned();
    } else {
        let rest = conditions(situation, outlook, outcome, counts, &mut report);
        again_in = [again_in, rest].into_iter().flatten().min();
        report.phase = phase(situation, &report).to_owned();
    }
    let events = events(situation, &report);
    Reported { report, again_in: again_in.map(duration), events }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn duration(left: SignedDuration) -> Duration {
    Duration::try_from(left).unwrap_or_default()
}

fn count(situation: &Situation, terminating: bool) -> (Counts, Vec<ChildStatus>, Option<SignedDuration>) {
    let mut counts = Counts::default();
    let mut maturing: Option<SignedDuration> = None;
    let mut children = Vec::with_capacity(situation.children.len());
    for (name, child) in &situation.children {
        let standing = if terminating { Standing::Down } else { situation.standing(child) };
        let phase = if child.app.is_job() {
            counts.succeeded += i64::from(child.app.status.phase == "Succeeded");
            own_phase(child).to_owned()
        } else {
            counts.current += 1;
            counts.scheduled += i64::from(!child.node().is_empty());
            counts.running += i64::from(standing != Standing::Down);
            counts.available += i64::from(standing == Standing::Available);
            if let Standing::Maturing(left) = standing {
                maturing = Some(maturing.map_or(left, |least| least.min(left)));
            }
            match standing {
                _ if child.node().is_empty() => "Pending",
                Standing::Down => "Scheduled",
                Standing::Maturing(_) | Standing::Available => "Running",
            }
            .to_owned()
        };
        children.push(ChildStatus { name: name.clone(), node: child.node().to_owned(), phase });
    }
    (counts, children, maturing)
}

fn own_phase(child: &Child) -> &str {
    if child.app.status.phase.is_empty() { "Pending" } else { &child.app.status.phase }
}

/// Everything but what a set that cannot be rendered or is being deleted says. Answers when time alone makes a
/// difference.
fn conditions(
    situation: &Situation,
    outlook: &Outlook,
    outcome: &Outcome,
    counts: Counts,
    report: &mut SetReport,
) -> Option<SignedDuration> {
    report.conditions.push(yes(CONDITION_RENDERED, "Expanded", String::new()));
    report.conditions.extend(applied(situation, outcome));
    report.conditions.push(match &outlook.held {
        Some(hold) => no(CONDITION_CONVERGED, hold.reason, hold.message.clone()),
        None => yes(CONDITION_CONVERGED, "Converged", String::new()),
    });
    if let Some(hold) = &outlook.initializing {
        report.conditions.push(no(CONDITION_INITIALIZED, hold.reason, hold.message.clone()));
    }
    let desired = outlook.desired.unwrap_or_default();
    report.conditions.push(available(situation, desired, counts.available));
    let (progressing, last_progress, again_in) = progress(situation, outlook, outcome, counts);
    report.conditions.push(progressing);
    report.last_progress = last_progress;
    again_in
}

fn yes(kind: &'static str, reason: &'static str, message: String) -> SetVerdict {
    SetVerdict { kind, status: ConditionStatus::True, reason, message }
}

fn no(kind: &'static str, reason: &'static str, message: String) -> SetVerdict {
    SetVerdict { kind, status: ConditionStatus::False, reason, message }
}

fn is_false(verdict: &SetVerdict) -> bool {
    verdict.status == ConditionStatus::False
}

fn stored<'a>(situation: &'a Situation, kind: &str) -> Option<&'a Condition> {
    condition(&situation.set.status.conditions, kind)
}

/// Whether everything was taken. While something was put off, an earlier refusal stands.
fn applied(situation: &Situation, outcome: &Outcome) -> impl Iterator<Item = SetVerdict> + use<> {
    let verdict = if outcome.refused.is_empty() {
        let before = stored(situation, CONDITION_APPLIED);
        match before.filter(|it| outcome.put_off > 0 && it.status == ConditionStatus::False) {
            Some(before) => {
                let reason = if before.reason == "NameConflict" { "NameConflict" } else { "Refused" };
                no(CONDITION_APPLIED, reason, before.message.clone())
            }
            None => yes(CONDITION_APPLIED, "Applied", String::new()),
        }
    } else {
        let mut refused = outcome.refused.clone();
        refused.sort();
        let conflict = refused.iter().any(|it| it.conflict);
        let reason = if conflict { "NameConflict" } else { "Refused" };
        let more = refused.len().saturating_sub(TOLD);
        let mut told: Vec<String> =
            refused.into_iter().take(TOLD).map(|it| format!("{}: {}", it.what, it.why)).collect();
        if more > 0 {
            told.push(format!("and {more} more"));
        }
        no(CONDITION_APPLIED, reason, told.join("; "))
    };
    std::iter::once(verdict)
}

fn available(situation: &Situation, desired: usize, available: i64) -> SetVerdict {
    let least = number(desired.saturating_sub(situation.set.spec.max_unavailable().unwrap_or(0)));
    let message = format!("{available} of {desired} children are available");
    if available >= least {
        yes(CONDITION_AVAILABLE, "MinimumAvailable", message)
    } else {
        no(CONDITION_AVAILABLE, "MinimumUnavailable", format!("{message}, at least {least} should be"))
    }
}

fn is_complete(outlook: &Outlook, outcome: &Outcome, counts: Counts) -> bool {
    let desired = number(outlook.desired.unwrap_or_default());
    let all = [counts.current, counts.running, counts.available, number(outlook.updated)];
    outlook.held.is_none()
        && outlook.initializing.is_none()
        && outcome.refused.is_empty()
        && outcome.put_off == 0
        && all.into_iter().all(|count| count == desired)
}

fn progress(
    situation: &Situation,
    outlook: &Outlook,
    outcome: &Outcome,
    counts: Counts,
) -> (SetVerdict, Option<Timestamp>, Option<SignedDuration>) {
    let rollout = situation.set.spec.rollout();
    let kind = CONDITION_PROGRESSING;
    for (stopped, reason) in [(situation.set.spec.frozen, "Frozen"), (rollout.paused, "RolloutPaused")] {
        if stopped {
            let status = ConditionStatus::Unknown;
            return (SetVerdict { kind, status, reason, message: String::new() }, None, None);
        }
    }
    let before = stored(situation, kind);
    let same_generation = before.is_some_and(|it| it.observed_generation == Some(situation.entry.generation));
    let desired = number(outlook.desired.unwrap_or_default());
    let was_complete = same_generation && before.is_some_and(|it| it.reason == COMPLETE);
    let nothing_to_do = number(outlook.updated) == desired && counts.current == desired;
    if is_complete(outlook, outcome, counts) || (was_complete && nothing_to_do) {
        let message = "every child is as the set says".to_owned();
        return (yes(kind, COMPLETE, message), None, None);
    }
    let rolling = || yes(kind, ROLLING, "children are on their way to what the set says".to_owned());
    let Some(deadline) = rollout.progress_deadline_seconds else { return (rolling(), None, None) };
    let deadline = SignedDuration::from_secs(deadline.into());
    let going_on =
        same_generation && before.is_some_and(|it| [ROLLING, EXCEEDED].contains(&it.reason.as_str()));
    let old = &situation.set.status;
    let finished = old.children.iter().filter(|child| child.phase == "Succeeded").count();
    let got_on = number(outlook.updated) > old.updated
        || counts.current > old.current
        || counts.scheduled > old.scheduled
        || counts.available > old.available
        || counts.succeeded > number(finished);
    let last = match old.last_progress_time {
        Some(last) if going_on && !got_on => last.timestamp(),
        _ => situation.now,
    };
    let left = deadline - situation.now.duration_since(last);
    if left.is_positive() {
        (rolling(), Some(last), Some(left))
    } else {
        let message = format!("nothing has got on for longer than {} s", deadline.as_secs());
        (no(kind, EXCEEDED, message), Some(last), None)
    }
}

fn phase(situation: &Situation, report: &SetReport) -> &'static str {
    if situation.set.spec.frozen {
        return "Frozen";
    }
    let of = |kind: &str| report.conditions.iter().find(|verdict| verdict.kind == kind);
    let order = [CONDITION_RENDERED, CONDITION_APPLIED, CONDITION_CONVERGED, CONDITION_INITIALIZED];
    let refused = order.into_iter().filter_map(of).find(|verdict| is_false(verdict));
    if let Some(verdict) = refused {
        return verdict.reason;
    }
    let counts = [report.current, report.running, report.available, report.updated];
    if counts.into_iter().all(|count| Some(count) == report.desired) {
        return "Ready";
    }
    match of(CONDITION_PROGRESSING) {
        Some(verdict) if is_false(verdict) => verdict.reason,
        _ => "Progressing",
    }
}

/// What is news compared with what is stored.
fn events(situation: &Situation, report: &SetReport) -> Vec<(&'static EventReason, String)> {
    let warnings: [(&str, &str, &'static EventReason); 5] = [
        (CONDITION_RENDERED, "RenderError", &reasons::RENDER_FAILED),
        (CONDITION_APPLIED, "NameConflict", &reasons::APPLY_REFUSED),
        (CONDITION_APPLIED, "Refused", &reasons::APPLY_REFUSED),
        (CONDITION_INITIALIZED, "InitFailed", &reasons::INIT_FAILED),
        (CONDITION_PROGRESSING, EXCEEDED, &reasons::ROLLOUT_STALLED),
    ];
    let mut events = Vec::new();
    for verdict in &report.conditions {
        let before = stored(situation, verdict.kind);
        let known = before.is_some_and(|it| it.reason == verdict.reason && it.message == verdict.message);
        let warning =
            warnings.iter().find(|(kind, reason, _)| *kind == verdict.kind && *reason == verdict.reason);
        if let (false, Some((_, _, reason))) = (known, warning) {
            events.push((*reason, verdict.message.clone()));
        }
        // How many have to wait changes with every child that is changed, and is no news.
        let held = verdict.kind == CONDITION_CONVERGED && HELD.contains(&verdict.reason);
        if held && before.is_none_or(|it| it.reason != verdict.reason) {
            events.push((&reasons::ROLLOUT_HELD, verdict.message.clone()));
        }
        if verdict.kind == CONDITION_PROGRESSING {
            let same_generation = before.is_some_and(|it| it.observed_generation == Some(report.generation));
            let before = before.map_or("", |it| it.reason.as_str());
            let begins =
                verdict.reason == ROLLING && !(same_generation && [ROLLING, EXCEEDED].contains(&before));
            if begins {
                events.push((&reasons::ROLLOUT_STARTED, verdict.message.clone()));
            } else if verdict.reason == COMPLETE && !before.is_empty() && before != COMPLETE {
                events.push((&reasons::ROLLOUT_COMPLETE, verdict.message.clone()));
            }
        }
    }
    events
}
