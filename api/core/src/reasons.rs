//! Why Events are written: every reason that the control plane gives, in one table.
//!
//! An Event is written once per transition, by the component that makes or sees it, never per heartbeat and
//! never because something still is as it was. Its reason is one of these; the message says the particulars.
//! The file EVENTS.md beside this package's manifest shows the table to people, and a test keeps it current.

use std::fmt::Write as _;

use crate::kind::Kind;

/// The scheduler loop.
pub const SCHEDULER: &str = "horchestra-scheduler";
/// The loop that judges the readiness of nodes.
pub const NODE_LIFECYCLE: &str = "horchestra-node-lifecycle";
/// The loop that shows which nodes are held.
pub const PUSH_HOLDS: &str = "horchestra-push-holds";
/// The loop that keeps ApplicationSets.
pub const APPLICATION_SETS: &str = "horchestra-applicationset";
/// The loop that signs the certificates of nodes.
pub const NODE_CSR: &str = "horchestra-node-csr";
/// The gateways that nodes are connected to.
pub const NODEGATE: &str = "horchestra-nodegate";

/// One reason for Events.
#[derive(Debug, PartialEq, Eq)]
pub struct EventReason {
    /// As in `reason`.
    pub word: &'static str,
    /// Whether somebody should look at it.
    pub warning: bool,
    /// As in `action`: what was done, or failed to be done.
    pub action: &'static str,
    /// The kind of object that it is about.
    pub about: Kind,
    /// The component that writes it.
    pub by: &'static str,
    /// When it is written.
    pub when: &'static str,
}

impl EventReason {
    /// As in `type`.
    pub const fn event_type(&self) -> &'static str {
        if self.warning { "Warning" } else { "Normal" }
    }
}

macro_rules! reasons {
    ($($name:ident = $word:literal, $kind:ident, $action:literal, $about:ident, $by:ident, $when:literal;)*) => {
        $(
            #[doc = $when]
            pub static $name: EventReason = EventReason {
                word: $word,
                warning: is_warning(stringify!($kind)),
                action: $action,
                about: Kind::$about,
                by: $by,
                when: $when,
            };
        )*

        /// Every reason.
        pub static ALL: &[&EventReason] = &[$(&$name),*];
    };
}

const fn is_warning(kind: &str) -> bool {
    matches!(kind.as_bytes(), b"Warning")
}

reasons! {
    SCHEDULED = "Scheduled", Normal, "Binding", Application, SCHEDULER,
        "An Application was bound to a node.";
    FAILED_SCHEDULING = "FailedScheduling", Warning, "Scheduling", Application, SCHEDULER,
        "No node takes an Application, or the reason why none does is another than before.";

    CHILD_CREATED = "ChildCreated", Normal, "Creating", Application, APPLICATION_SETS,
        "An ApplicationSet has made the Application.";
    CHILD_UPDATED = "ChildUpdated", Normal, "Updating", Application, APPLICATION_SETS,
        "An ApplicationSet has changed the Application to what it says now.";
    CHILD_DELETED = "ChildDeleted", Normal, "Deleting", Application, APPLICATION_SETS,
        "An ApplicationSet has deleted the Application.";
    RENDER_FAILED = "RenderFailed", Warning, "Rendering", ApplicationSet, APPLICATION_SETS,
        "An ApplicationSet cannot be expanded on the nodes that there are now; its children stay as they are.";
    APPLY_REFUSED = "ApplyRefused", Warning, "Applying", ApplicationSet, APPLICATION_SETS,
        "Something that an ApplicationSet makes is refused, or for another reason than before.";
    SERVICE_SHARED = "ServiceShared", Warning, "Applying", ApplicationSet, APPLICATION_SETS,
        "Children of an ApplicationSet join a Service that does not belong to it.";
    INIT_FAILED = "InitFailed", Warning, "Initializing", ApplicationSet, APPLICATION_SETS,
        "A component that runs to its end has failed, and what comes after it waits.";
    ROLLOUT_STARTED = "RolloutStarted", Normal, "RollingOut", ApplicationSet, APPLICATION_SETS,
        "Children of an ApplicationSet are on their way to what it says now.";
    ROLLOUT_HELD = "RolloutHeld", Normal, "RollingOut", ApplicationSet, APPLICATION_SETS,
        "Children of an ApplicationSet are to be changed and have to wait: for others to be available, or for the end of a pause.";
    ROLLOUT_COMPLETE = "RolloutComplete", Normal, "RollingOut", ApplicationSet, APPLICATION_SETS,
        "Every child is as the ApplicationSet says and available.";
    ROLLOUT_STALLED = "RolloutStalled", Warning, "RollingOut", ApplicationSet, APPLICATION_SETS,
        "A rollout has got on no further for longer than its deadline. Nothing is undone.";

    NODE_READY = "NodeReady", Normal, "Judging", Node, NODE_LIFECYCLE,
        "A node is judged ready that was not.";
    NODE_NOT_READY = "NodeNotReady", Warning, "Judging", Node, NODE_LIFECYCLE,
        "A node says of itself that it is not ready.";
    NODE_SILENT = "NodeSilent", Warning, "Judging", Node, NODE_LIFECYCLE,
        "A node has not reported for longer than the ready timeout.";
    VERDICTS_FROZEN = "VerdictsFrozen", Warning, "Judging", Node, NODE_LIFECYCLE,
        "Most of the ready nodes fell silent at once, so no node is judged silent for a while. Told once, about the one that was silent first.";
    NODE_LOST = "NodeLost", Warning, "Judging", Node, NODE_LIFECYCLE,
        "A node has been silent for long: the catalog counts what is on it as dead. Nothing is moved.";

    PUSH_HELD = "PushHeld", Warning, "Holding", Node, PUSH_HOLDS,
        "Nothing is sent to a node that could stop what it runs, until an operator has looked and admits it.";
    PUSH_RELEASED = "PushReleased", Normal, "Releasing", Node, PUSH_HOLDS,
        "A node that was held is sent what it is to run again.";

    CERTIFICATE_ISSUED = "CertificateIssued", Normal, "Signing", CertificateSigningRequest, NODE_CSR,
        "A certificate was signed that somebody had asked for, other than a node for itself.";
    CERTIFICATE_DENIED = "CertificateDenied", Warning, "Judging", CertificateSigningRequest, NODE_CSR,
        "A certificate request was turned down: by an operator, or because nobody could sign it.";
    CERTIFICATE_HELD = "CertificateHeld", Warning, "Judging", CertificateSigningRequest, NODE_CSR,
        "A certificate request waits for an operator who approves or denies it.";
    SIGNING_FAILED = "SigningFailed", Warning, "Signing", CertificateSigningRequest, NODE_CSR,
        "A certificate could not be signed; it will be tried again.";
    RENEWAL_HELD = "RenewalHeld", Warning, "Judging", Node, NODE_CSR,
        "A node asks for its next certificate, and an operator has to approve that.";
    NODE_CERTIFICATE_ROTATED = "NodeCertificateRotated", Normal, "Rotating", Node, NODE_CSR,
        "A node has connected with the new certificate that it was given.";
    NODE_NOT_BACK = "NodeNotBack", Warning, "Rotating", Node, NODE_CSR,
        "A node was given a new certificate and has not connected with it within a minute.";

    NODE_REGISTERED = "NodeRegistered", Normal, "Registering", Node, NODEGATE,
        "A node without a Node object has connected and got one. It takes no part until it is uncordoned.";
    REGISTRATION_REFUSED = "RegistrationRefused", Warning, "Registering", Node, NODEGATE,
        "A node has connected under a name that it may not register.";
    REPORT_REFUSED = "ReportRefused", Warning, "Reporting", Node, NODEGATE,
        "What a node reports is not believed.";
    PUSH_WITHHELD = "PushWithheld", Warning, "Pushing", Node, NODEGATE,
        "A node cannot be sent what it is to run; whatever it was told last stays in force.";
    SECRET_UNOPENED = "SecretUnopened", Warning, "Pushing", Secret, NODEGATE,
        "A Secret does not open, so the nodes that use it are not sent it. What runs with it goes on; nothing is started with it.";
    TOKENS_WAIT = "TokensWait", Warning, "Pushing", Node, NODEGATE,
        "Workloads of a node cannot be given a token that they are to have.";
    UNDECODABLE = "Undecodable", Warning, "Pushing", Application, NODEGATE,
        "Agents would not decode an Application, so it is not sent to its node.";
    NO_ADDRESS = "NoAddress", Warning, "Pushing", Application, NODEGATE,
        "There is no address for a workload that is to have a network of its own, so its node cannot start it.";
    ADDRESS_DISPUTED = "AddressDisputed", Warning, "Routing", Application, NODEGATE,
        "A workload has an address that is not one to route to, or that is another one's.";
    SERVICE_LEFT_OUT = "ServiceLeftOut", Warning, "Routing", Service, NODEGATE,
        "Nodes cannot route to a Service as it is, so they are not told of it.";
    ADDRESS_CLASH = "AddressClash", Warning, "Routing", Node, NODEGATE,
        "A node has an address that nobody can route to, or that a workload or a Service has as well.";

    STARTED = "Started", Normal, "Running", Application, NODEGATE,
        "The node reports that the workload runs, which it did not before.";
    RESTARTED = "Restarted", Warning, "Running", Application, NODEGATE,
        "The node has started the workload again.";
    FAILED = "Failed", Warning, "Running", Application, NODEGATE,
        "The node reports that the workload has failed.";
    OOM_KILLED = "OOMKilled", Warning, "Running", Application, NODEGATE,
        "The kernel has killed a process of the workload because its memory limit was reached.";
    FINISHED = "Finished", Normal, "Running", Application, NODEGATE,
        "The workload has ended successfully.";
    TORN_DOWN = "TornDown", Normal, "Stopping", Application, NODEGATE,
        "The node holds nothing of a deleted Application any more.";
}

/// The table as Markdown.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Events\n\nEvery reason for which the control plane writes an Event, kept current by a test.\n\n\
         | reason | type | about | written by | when |\n|---|---|---|---|---|\n",
    );
    for reason in ALL {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            reason.word,
            reason.event_type(),
            reason.about,
            reason.by,
            reason.when
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::qualified_name_fault;

    #[test]
    fn the_page_shows_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/EVENTS.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(page, markdown(), "write this to {path}");
    }

    #[test]
    fn every_reason_is_a_word_of_its_own() {
        let mut words: Vec<&str> = ALL.iter().map(|reason| reason.word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), ALL.len());
        for reason in ALL {
            assert!(reason.word.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{}", reason.word);
            assert!(reason.word.starts_with(|first: char| first.is_ascii_uppercase()));
            assert!(qualified_name_fault(reason.by).is_none());
            assert!(!reason.action.is_empty() && reason.when.ends_with('.'));
        }
    }
}
