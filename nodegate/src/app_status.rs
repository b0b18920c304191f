//! What a node says about an Application, reduced to what is believed.
//!
//! A report is about an Application that is pinned to the reporting node and that this very session has
//! pushed to it; anything else is dropped, silently where it is ordinary (the object is gone) and with a
//! warning where it is not (another node's Application). Of what remains, numbers are held to what can be:
//! the node cannot have seen a generation that does not exist yet, and within a session it does not go back
//! to an earlier one. The end of a workload is believed
//! only of an object that is being deleted and that the node was told to end. An address is believed if it is the
//! one that was leased to the workload and sent along with it.

use std::net::Ipv4Addr;

use horchestra_core::kinds::application::Application;
use horchestra_proto::node::v1::AppStatus;
use horchestra_service::ApplicationReport;
use horchestra_store::Entry;
use jiff::Timestamp;

use crate::desired::fleet::host_address;
use crate::session::sent::SentAs;

/// Longest message that is kept, in bytes.
pub const MESSAGE_LIMIT: usize = 1024;

/// Longer than any phase that means something, in bytes.
const PHASE_LIMIT: usize = 64;

/// Longer than any address.
const ADDRESS_LIMIT: usize = 64;

/// What an agent does not say of a workload that it cannot start.
const NO_ADDRESS: &str = "there is no address for a network of its own";

/// What to do about a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Store this.
    Store(ApplicationReport),
    /// The node holds nothing of it any more: let go. The report is what is stored if others hold it.
    Release(ApplicationReport),
    /// Nothing is to be done about it.
    Drop(Why),
}

/// Why a report is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// It is not about what this session pushed under that name.
    NotSent,
    /// The Application is not pinned to the reporter.
    NotPinnedHere,
    /// It says that the workload ends or has ended, which the node was not told to do.
    NotDeleting,
    /// The phase is not one that means anything here.
    UnknownPhase,
    /// The stored object cannot be read.
    Unreadable,
}

impl Why {
    /// Whether somebody should hear of it.
    pub fn is_suspicious(self) -> bool {
        self != Why::NotSent
    }

    /// For people.
    pub fn sentence(self) -> &'static str {
        match self {
            Why::NotSent => "this session has not sent it to the node",
            Why::NotPinnedHere => "it is not placed on this node",
            Why::NotDeleting => "the node says that it ends, which it was not told to do",
            Why::UnknownPhase => "its phase means nothing here",
            Why::Unreadable => "the stored object cannot be read",
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Why::NotSent => "not_sent",
            Why::NotPinnedHere => "not_pinned_here",
            Why::NotDeleting => "not_deleting",
            Why::UnknownPhase => "unknown_phase",
            Why::Unreadable => "unreadable",
        }
    }
}

/// Judges a report of `node` about the stored `entry`, of which this session has sent `sent`.
pub fn judge(node: &str, entry: &Entry, sent: Option<SentAs>, report: &AppStatus) -> Verdict {
    if entry.columns.node.as_deref() != Some(node) {
        return Verdict::Drop(Why::NotPinnedHere);
    }
    let Some(sent) = sent.filter(|sent| sent.uid == entry.uid) else {
        return Verdict::Drop(Why::NotSent);
    };
    let Ok(application) = entry.typed::<Application>() else {
        return Verdict::Drop(Why::Unreadable);
    };
    let known = match report.phase.as_str() {
        "Pending" | "Running" | "Succeeded" | "Failed" | "Terminating" | "Terminated" => true,
        "Frozen" => application.spec.frozen,
        _ => false,
    };
    if !known {
        return Verdict::Drop(Why::UnknownPhase);
    }
    let ending = matches!(report.phase.as_str(), "Terminating" | "Terminated");
    if ending && !(entry.deleting && sent.deleting) {
        return Verdict::Drop(Why::NotDeleting);
    }
    let observed = report.observed_generation.max(sent.highest_observed).clamp(0, entry.generation);
    let message = match report.message.as_str() {
        "" if sent.unaddressed && report.phase == "Failed" => NO_ADDRESS.to_owned(),
        message => cut(message),
    };
    let clean = ApplicationReport {
        phase: report.phase.clone(),
        message,
        observed_generation: observed,
        address: sent
            .address
            .filter(|leased| host_address(&report.address) == Some(*leased))
            .map(with_prefix),
        exit_code: Some(report.exit_code),
        finished_at: finished_at(report.finished_at_unix_nano),
        // That it never goes down within a generation is seen to where it is stored.
        attempts: report.attempts.max(0),
    };
    if report.phase == "Terminated" { Verdict::Release(clean) } else { Verdict::Store(clean) }
}

/// The address that a node reports and that is not the workload's.
pub fn foreign_address<'a>(entry: &Entry, sent: Option<SentAs>, report: &'a AppStatus) -> Option<&'a str> {
    let sent = sent.filter(|sent| sent.uid == entry.uid)?;
    let leased = sent.address.is_some() && host_address(&report.address) == sent.address;
    (!leased && !report.address.is_empty()).then_some(report.address.as_str())
}

fn with_prefix(address: Ipv4Addr) -> String {
    format!("{address}/32")
}

fn finished_at(unix_nano: i64) -> Option<Timestamp> {
    (unix_nano > 0).then(|| Timestamp::from_nanosecond(i128::from(unix_nano)).ok()).flatten()
}

/// Takes out of a report what is not looked at, so that one that waits is small whatever the node sent.
pub fn bound(report: &mut AppStatus) {
    report.message = cut(&report.message);
    report.phase = head(&report.phase, PHASE_LIMIT).to_owned();
    report.address = head(&report.address, ADDRESS_LIMIT).to_owned();
}

/// A text of a node's, no longer than is kept.
pub fn cut(text: &str) -> String {
    head(text, MESSAGE_LIMIT).replace('\0', "")
}

/// The beginning of `text`, at most `limit` bytes of whole characters.
fn head(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_waits_is_small() {
        let long = "\u{e9}".repeat(1 << 20);
        let mut report = AppStatus {
            name: "web".to_owned(),
            phase: format!("x{long}"),
            message: format!("x{long}"),
            address: long,
            exit_code: 7,
            ..AppStatus::default()
        };
        bound(&mut report);
        assert_eq!((report.name.as_str(), report.exit_code), ("web", 7));
        assert_eq!((report.phase.len(), report.message.len()), (PHASE_LIMIT - 1, MESSAGE_LIMIT - 1));
        let kept = [&report.phase, &report.message, &report.address].map(String::capacity);
        assert!(kept.iter().sum::<usize>() <= 2 * (PHASE_LIMIT + MESSAGE_LIMIT + ADDRESS_LIMIT), "{kept:?}");
        let mut ordinary = AppStatus {
            phase: "Running".to_owned(),
            message: "up".to_owned(),
            address: "10.244.0.7/32".to_owned(),
            ..report
        };
        let before = ordinary.clone();
        bound(&mut ordinary);
        assert_eq!(ordinary, before);
    }
}
