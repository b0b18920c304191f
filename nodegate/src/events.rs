//! What people are told of nodes and their workloads.
//!
//! Each function is called at a transition, by whoever has just seen it stored; what was so already is not
//! told. The recorder neither waits nor fails, so nothing here can hold a session up.

use std::net::Ipv4Addr;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::reasons;
use horchestra_service::Subject;
use horchestra_store::Entry;

use crate::desired::networks::Without;
use crate::gate::Gate;
use crate::session::Session;

/// The node of a session, as far as it is known here.
fn node(gate: &Gate, session: &Session) -> Subject {
    let key = Key::cluster(Kind::Node, session.node.as_str());
    gate.store.snapshot().get(&key).map_or_else(|| Subject::named(&key), |entry| Subject::of(&entry))
}

/// A node got its Node.
pub fn registered(gate: &Gate, session: &Session, entry: &Entry) {
    let message = format!("registered from {}; it takes no part until it is uncordoned", session.peer.ip());
    gate.recorder.record(Subject::of(entry), &reasons::NODE_REGISTERED, message);
}

/// A node may not have the Node that it wants.
pub fn registration_refused(gate: &Gate, session: &Session, why: &str) {
    let message = format!("refused from {}: {why}", session.peer.ip());
    gate.recorder.record(node(gate, session), &reasons::REGISTRATION_REFUSED, message);
}

/// What a node says is not believed.
pub fn refused(gate: &Gate, session: &Session, message: String) {
    gate.recorder.record(node(gate, session), &reasons::REPORT_REFUSED, message);
}

/// A node cannot be pushed to.
pub fn push_withheld(gate: &Gate, session: &Session, why: String) {
    gate.recorder.record(node(gate, session), &reasons::PUSH_WITHHELD, why);
}

/// A Secret does not open.
pub fn unopened(gate: &Gate, key: &Key, why: &str) {
    if let Some(entry) = gate.store.snapshot().get(key) {
        let message = format!("not sent to nodes: its contents do not open: {why}");
        gate.recorder.record(Subject::of(&entry), &reasons::SECRET_UNOPENED, message);
    }
}

/// Tokens are missing on a node.
pub fn tokens_wait(gate: &Gate, session: &Session, why: &str) {
    gate.recorder.record(node(gate, session), &reasons::TOKENS_WAIT, why.to_owned());
}

/// Agents would not decode an Application.
pub fn undecodable(gate: &Gate, key: &Key, why: &str) {
    if let Some(entry) = gate.store.snapshot().get(key) {
        gate.recorder.record(Subject::of(&entry), &reasons::UNDECODABLE, format!("not sent: {why}"));
    }
}

/// A workload gets no address of its own.
pub fn no_address(gate: &Gate, key: &Key, without: Without) {
    let why = match without {
        Without::Range => "this cluster has no range of addresses for workloads",
        Without::Room => "all addresses of the range are in use",
    };
    if let Some(entry) = gate.store.snapshot().get(key) {
        gate.recorder.record(Subject::of(&entry), &reasons::NO_ADDRESS, format!("cannot start: {why}"));
    }
}

/// An Application says that it has an address that another one has.
pub fn address_disputed(gate: &Gate, key: &Key, address: Ipv4Addr) {
    if let Some(entry) = gate.store.snapshot().get(key) {
        let message = format!("{address} cannot be leased to it: another one has it, or it has another one");
        gate.recorder.record(Subject::of(&entry), &reasons::ADDRESS_DISPUTED, message);
    }
}

/// Something cannot be among what all nodes are sent, or shares an address.
pub fn left_out(gate: &Gate, key: &Key, why: &str) {
    let reason = match key.kind {
        Kind::Node => &reasons::ADDRESS_CLASH,
        Kind::Service => &reasons::SERVICE_LEFT_OUT,
        _ => &reasons::ADDRESS_DISPUTED,
    };
    tracing::warn!(object = %key, why, "cannot be routed to as it is");
    if let Some(entry) = gate.store.snapshot().get(key) {
        gate.recorder.record(Subject::of(&entry), reason, why.to_owned());
    }
}

/// The kernel killed a part of a workload for its memory.
pub fn oom_killed(gate: &Gate, session: &Session, key: &Key, times: i64) {
    let entry = gate.store.snapshot().get(key);
    if let Some(entry) = entry.filter(|entry| entry.columns.node.as_deref() == Some(&*session.node)) {
        let message = match times {
            1 => format!("a process was killed on node {}: out of memory", session.node),
            times => format!("{times} processes were killed on node {}: out of memory", session.node),
        };
        gate.recorder.record(Subject::of(&entry), &reasons::OOM_KILLED, message);
    }
}

/// A report was stored that turned `before` into `after`.
pub fn reported(gate: &Gate, session: &Session, before: &Entry, after: &Entry, released: bool) {
    let on = &session.node;
    if released {
        let message = format!("node {on} holds nothing of it any more");
        gate.recorder.record(Subject::of(after), &reasons::TORN_DOWN, message);
        return;
    }
    let (Ok(old), Ok(new)) = (before.typed::<Application>(), after.typed::<Application>()) else { return };
    if let Some((reason, message)) = transition(&old, &new, on) {
        gate.recorder.record(Subject::of(after), reason, message);
    }
}

fn transition(
    old: &Application,
    new: &Application,
    on: &str,
) -> Option<(&'static reasons::EventReason, String)> {
    let (before, after) = (old.status.phase.as_str(), new.status.phase.as_str());
    let attempts = |application: &Application| application.status.attempts.unwrap_or(0);
    let same_run = old.status.observed_generation == new.status.observed_generation;
    let again = same_run && attempts(old) > 0 && attempts(new) > attempts(old);
    match after {
        // Without the number of the run, so that one that runs in circles has one Event with a count.
        "Running" if again || (same_run && before == "Failed") => {
            Some((&reasons::RESTARTED, format!("started again on node {on}")))
        }
        "Running" if before != after => Some((&reasons::STARTED, format!("runs on node {on}"))),
        "Failed" if again || before != after => {
            let why = match (new.status.message.as_str(), new.status.exit_code) {
                ("", Some(code)) => format!("failed on node {on} with exit code {code}"),
                ("", None) => format!("failed on node {on}"),
                (why, _) => format!("failed on node {on}: {why}"),
            };
            Some((&reasons::FAILED, why))
        }
        "Succeeded" if before != after => Some((&reasons::FINISHED, format!("ended on node {on}"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn application(phase: &str, attempts: i64, generation: i64) -> Application {
        serde_json::from_value(json!({
            "metadata": {"name": "web"}, "spec": {"image": "x"},
            "status": {"phase": phase, "attempts": attempts, "observedGeneration": generation, "message": ""},
        }))
        .unwrap()
    }

    #[test]
    fn each_transition_is_told_once() {
        let cases = [
            (("Pending", 0, 1), ("Running", 1, 1), Some("Started")),
            (("Running", 1, 1), ("Running", 1, 1), None),
            (("Running", 1, 1), ("Running", 2, 1), Some("Restarted")),
            (("Failed", 1, 1), ("Running", 2, 1), Some("Restarted")),
            (("Failed", 0, 1), ("Running", 0, 1), Some("Restarted")),
            (("Failed", 0, 1), ("Running", 0, 2), Some("Started")),
            (("Running", 5, 1), ("Running", 1, 2), None),
            (("Running", 1, 1), ("Failed", 1, 1), Some("Failed")),
            (("Failed", 1, 1), ("Failed", 1, 1), None),
            (("Failed", 1, 1), ("Failed", 2, 1), Some("Failed")),
            (("Running", 1, 1), ("Succeeded", 1, 1), Some("Finished")),
            (("Succeeded", 1, 1), ("Succeeded", 1, 1), None),
            (("Running", 1, 1), ("Terminating", 1, 1), None),
            (("Running", 1, 1), ("Frozen", 1, 1), None),
        ];
        for (old, new, expected) in cases {
            let told = transition(&application(old.0, old.1, old.2), &application(new.0, new.1, new.2), "n1");
            assert_eq!(told.map(|(reason, _)| reason.word), expected, "{old:?} {new:?}");
        }
    }
}
