//! Traces, from a change to the push that brings it to the node, and on to what the node first says of it.
//!
//! The protocol of nodes knows no traces. But what a node says of an Application comes of what it was pushed, so the
//! first report that says whether the Application runs goes on with the push; or with the change itself, where another
//! gateway pushed it. What is remembered here is only needed for that: without it the trace has a link less.

use std::collections::HashMap;
use std::sync::Arc;

use horchestra_core::kinds::application::Application;
use horchestra_service::ApplicationReport;
use horchestra_store::{Entry, Trace};
use horchestra_trace::{Role, Span, attribute};
use parking_lot::Mutex;
use uuid::Uuid;

use super::Session;
use crate::desired::form::{Form, Signature};
use crate::gate::Gate;

/// The pushes that the node has not said anything about, by the Application.
#[derive(Default)]
pub struct Pushed(Mutex<HashMap<Uuid, Trace>>);

impl Pushed {
    /// The node has said what has become of it.
    pub fn forget(&self, uid: Uuid) {
        self.0.lock().remove(&uid);
    }
}

/// An Application on its way to the node, in the trace of its last change.
pub struct Brought {
    uid: Uuid,
    span: Span,
}

/// What a push brings news of; `before` is what was pushed before it.
pub fn brought(
    gate: &Gate,
    session: &Session,
    forms: &[Arc<Form>],
    before: Option<&[Signature]>,
) -> Vec<Brought> {
    if !horchestra_trace::enabled() {
        return Vec::new();
    }
    session.pushed.0.lock().retain(|uid, _| forms.iter().any(|form| form.signature.uid == *uid));
    let news = forms.iter().filter(|form| before.is_none_or(|before| !before.contains(&form.signature)));
    let on_its_way = |form: &Arc<Form>| {
        let trace = gate.store.trace_of(form.core_revision())?;
        let span = horchestra_trace::child("push", Role::Producer, Some(trace));
        span.set(|| {
            [
                attribute("horchestra.node", session.node.clone()),
                attribute("horchestra.namespace", form.key.namespace.clone()),
                attribute("horchestra.name", form.key.name.clone()),
                attribute("horchestra.generation", form.signature.generation),
                attribute("horchestra.push.applications", forms.len() as i64),
            ]
        });
        span.is_recorded().then_some(Brought { uid: form.signature.uid, span })
    };
    news.filter_map(on_its_way).collect()
}

/// The transport has taken the push.
pub fn taken(session: &Session, brought: Vec<Brought>) {
    for Brought { uid, span } in brought {
        span.set(|| [attribute("horchestra.push.taken", true)]);
        if let Some(trace) = span.trace() {
            session.pushed.0.lock().insert(uid, trace);
        }
    }
}

/// The span of a report, and the trace that its write belongs to: of the first that says whether the Application, as it
/// is now, runs. Other reports have none.
pub fn report(
    gate: &Gate,
    session: &Session,
    stored: &Entry,
    report: &ApplicationReport,
) -> (Span, Option<Trace>) {
    let says = matches!(report.phase.as_str(), "Running" | "Succeeded" | "Failed");
    if !says || !is_news(stored, report) {
        return (Span::none(), None);
    }
    let pushed = session.pushed.0.lock().get(&stored.uid).copied();
    let cause = pushed.or_else(|| gate.store.trace_of(stored.core_revision));
    let span = horchestra_trace::child("report", Role::Consumer, cause);
    span.set(|| {
        [
            attribute("horchestra.node", session.node.clone()),
            attribute("horchestra.namespace", stored.key.namespace.clone()),
            attribute("horchestra.name", stored.key.name.clone()),
            attribute("horchestra.phase", report.phase.clone()),
            attribute("horchestra.generation", report.observed_generation),
        ]
    });
    let trace = span.trace().or(cause);
    (span, trace)
}

/// Nothing of the kind was stored since the Application is as it is.
fn is_news(stored: &Entry, report: &ApplicationReport) -> bool {
    stored.typed::<Application>().is_ok_and(|application| {
        let status = &application.status;
        let said = matches!(status.phase.as_str(), "Running" | "Succeeded" | "Failed");
        report.observed_generation == stored.generation
            && !(said && status.observed_generation == stored.generation)
    })
}
