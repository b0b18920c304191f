//! Taking a node's reports to the database.
//!
//! What is already stored is not written again: an agent repeats everything with every heartbeat, so nearly
//! all reports end here. A report equals what was last written if it says the same and nobody has touched the
//! object since. What cannot be written now goes back into its slot unless a newer report has come, so an
//! outage of the database costs nothing but time. Every write carries the session as a guard; the first one
//! that is refused for it ends the session.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::status::Status;
use horchestra_proto::node::v1::AppStatus;
use horchestra_service::{ApplicationReport, Caller, DoorError, Outcome, RequestContext};
use horchestra_store::{Entry, Revision};
use parking_lot::Mutex;
use uuid::Uuid;

use super::Session;
use super::inbox::AppName;
use super::told::Told;
use super::traced;
use crate::app_status::{Verdict, Why, foreign_address, judge};
use crate::events;
use crate::gate::Gate;
use crate::node_status::NodeReport;

/// Pause after a report could not be written, growing up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What reports are about, where it is no Application.
const NODE: &str = "the node's status";
const REGISTRATION: &str = "the registration";

/// What was last written, to tell what need not be written again.
#[derive(Default)]
struct Written {
    /// Of which history all this is: what was written in another may be what was lost.
    era: AtomicU64,
    /// As text, which takes a fraction of the room.
    node: Mutex<Option<(Uuid, Revision, String)>>,
    apps: Mutex<HashMap<AppName, (Uuid, Revision, ApplicationReport)>>,
    /// What people have been told of, so that a node that repeats itself does not.
    told: Told,
}

impl Written {
    /// Forgets what was written in another history.
    fn is_of(&self, era: u64) {
        if self.era.swap(era, Ordering::Relaxed) != era {
            *self.node.lock() = None;
            self.apps.lock().clear();
        }
    }
}

/// Something could not be written now.
struct Later;

/// Writes reports until the session ends.
pub async fn run(gate: Arc<Gate>, session: Arc<Session>) {
    let written = Written::default();
    let mut pause = FIRST_PAUSE;
    loop {
        session.inbox.filled().await;
        gate.term.until_in_force().await;
        let (node, apps) = session.inbox.take();
        written.is_of(gate.store.era());
        let mut later = false;
        // Writes need much room while they run, and nearly always there are none: it is not kept for them.
        if let Some(report) = node.filter(|report| !is_node_written(&gate, &session, &written, report)) {
            later |= Box::pin(write_node(&gate, &session, &written, report)).await.is_err();
        }
        let news: Vec<News> =
            apps.into_iter().filter_map(|report| news(&gate, &session, &written, report)).collect();
        if !news.is_empty() {
            later |= Box::pin(write_apps(&gate, &session, &written, news)).await;
        }
        if later {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        } else {
            pause = FIRST_PAUSE;
        }
    }
}

fn context(gate: &Gate, session: &Session) -> RequestContext {
    RequestContext::new(Caller::Node {
        name: session.node.clone(),
        grant: session.grant.clone(),
        gateway: gate.id,
    })
}

/// Whether this is what was written last, and nobody has touched it since.
fn is_node_written(gate: &Gate, session: &Session, written: &Written, report: &NodeReport) -> bool {
    let Some(stored) = gate.store.snapshot().get(&Key::cluster(Kind::Node, session.node.as_str())) else {
        return false;
    };
    let said = report.status.to_string();
    let same = written
        .node
        .lock()
        .as_ref()
        .is_some_and(|(uid, revision, status)| is_untouched(&stored, *uid, *revision) && *status == said);
    if same {
        gate.metrics.reports_suppressed.inc();
    }
    same
}

async fn write_node(
    gate: &Gate,
    session: &Session,
    written: &Written,
    report: NodeReport,
) -> Result<(), Later> {
    let stored = gate.store.snapshot().get(&Key::cluster(Kind::Node, session.node.as_str()));
    let permit = gate.writes.acquire().await;
    let context = context(gate, session);
    let outcome = if stored.is_some() {
        match gate.service.report_node(&context, &session.node, &report.status).await {
            // Deleted a moment ago: the node is here, so it registers again.
            Err(DoorError::Gone | DoorError::NoNode) => {
                register(gate, session, &written.told, &context, &report).await
            }
            outcome => outcome,
        }
    } else {
        register(gate, session, &written.told, &context, &report).await
    };
    drop(permit);
    match outcome {
        Ok(outcome) => {
            if stored.is_none() && outcome.changed {
                tracing::warn!(node = %session.node, peer = %session.peer,
                    "a new node has registered; it takes no part until it is uncordoned");
                events::registered(gate, session, &outcome.entry);
            }
            gate.metrics.wrote(outcome.changed);
            written.told.forget(NODE);
            *written.node.lock() =
                Some((outcome.entry.uid, outcome.entry.revision, report.status.to_string()));
            Ok(())
        }
        Err(error) => {
            let told = &written.told;
            refused(gate, session, told, NODE, error, || session.inbox.put_back_node(report))
        }
    }
}

async fn register(
    gate: &Gate,
    session: &Session,
    told: &Told,
    context: &RequestContext,
    report: &NodeReport,
) -> Result<Outcome, DoorError> {
    if let Some(names) = &gate.settings.strict_registration
        && let Err(why) = names.check(&session.node, session.peer.ip()).await
    {
        if told.is_new(REGISTRATION, &why.to_string()) {
            events::registration_refused(gate, session, &why.to_string());
        }
        return Err(DoorError::Refused(Status::forbidden(Kind::Node, &session.node, why)));
    }
    gate.service.register_node(context, &session.node, &report.status).await
}

/// A report that says something else than what is stored.
struct News {
    report: AppStatus,
    name: AppName,
    key: Key,
    stored: Arc<Entry>,
    clean: ApplicationReport,
    /// The node has nothing of it any more.
    release: bool,
}

/// What there is to write of a report, if anything.
fn news(gate: &Gate, session: &Session, written: &Written, report: AppStatus) -> Option<News> {
    let name: AppName = (report.namespace.clone(), report.name.clone());
    let key = Key::namespaced(Kind::Application, name.0.as_str(), name.1.as_str());
    let Some(stored) = gate.store.snapshot().get(&key) else {
        written.apps.lock().remove(&name);
        return None;
    };
    let (clean, release) = match judge(&session.node, &stored, session.sent.get(&name), &report) {
        Verdict::Store(clean) => (clean, false),
        Verdict::Release(clean) => (clean, true),
        Verdict::Drop(why) => {
            dropped(gate, session, written, &stored, why);
            return None;
        }
    };
    odd_address(gate, session, written, &stored, foreign_address(&stored, session.sent.get(&name), &report));
    session.sent.observe(&name, clean.observed_generation);
    if let Some((uid, revision, before)) = written.apps.lock().get(&name)
        && is_untouched(&stored, *uid, *revision)
        && *before == clean
    {
        gate.metrics.reports_suppressed.inc();
        return None;
    }
    Some(News { report, name, key, stored, clean, release })
}

/// Writes reports, several at a time; says whether any could not be written now.
async fn write_apps(gate: &Gate, session: &Session, written: &Written, news: Vec<News>) -> bool {
    let refused = futures::stream::iter(news)
        .map(|news| write_app(gate, session, written, news))
        .buffer_unordered(gate.settings.writes_per_session.max(1))
        .filter(|result| futures::future::ready(result.is_err()))
        .count()
        .await;
    refused > 0
}

async fn write_app(gate: &Gate, session: &Session, written: &Written, news: News) -> Result<(), Later> {
    let News { report, name, key, stored, clean, release } = news;
    let permit = gate.writes.acquire().await;
    let (span, trace) = traced::report(gate, session, &stored, &clean);
    let context = RequestContext { trace, ..context(gate, session) };
    let outcome = if release {
        release_and_report(gate, &context, &key, stored.uid, &clean).await
    } else {
        gate.service.report_application(&context, &key, stored.uid, clean.clone()).await
    };
    drop(permit);
    if let Err(error) = &outcome {
        span.fail(|| error.to_string().into());
    }
    drop(span);
    match outcome {
        Ok(outcome) => {
            gate.metrics.wrote(outcome.changed);
            if trace.is_some() {
                session.pushed.forget(stored.uid);
            }
            if outcome.changed {
                events::reported(gate, session, &stored, &outcome.entry, release);
            }
            let mut apps = written.apps.lock();
            if outcome.erased {
                tracing::info!(node = %session.node, application = %key, "torn down");
                apps.remove(&name);
            } else {
                apps.insert(name, (outcome.entry.uid, outcome.entry.revision, clean));
            }
            Ok(())
        }
        Err(error) => {
            let what = format!("the status of Application {key}");
            refused(gate, session, &written.told, &what, error, || session.inbox.put_back_app(report))
        }
    }
}

/// Gives up the node's hold, which erases the object if nothing else holds it; else the report is stored.
async fn release_and_report(
    gate: &Gate,
    context: &RequestContext,
    key: &Key,
    uid: Uuid,
    report: &ApplicationReport,
) -> Result<Outcome, DoorError> {
    let released = gate.service.release_teardown(context, key, uid).await?;
    if released.erased {
        return Ok(released);
    }
    gate.service.report_application(context, key, uid, report.clone()).await
}

/// Nobody has changed the object since it was at `revision`. A cache that lags behind our own write shows an
/// older revision.
fn is_untouched(stored: &Entry, uid: Uuid, revision: Revision) -> bool {
    stored.uid == uid && stored.revision <= revision
}

fn dropped(gate: &Gate, session: &Session, written: &Written, stored: &Entry, why: Why) {
    gate.metrics.dropped(why.text());
    if why.is_suspicious() {
        tracing::warn!(node = %session.node, application = %stored.key, why = why.text(),
            pinned_to = stored.columns.node.as_deref().unwrap_or(""), "a node's report was dropped");
        let about = format!("Application {}", stored.key);
        if written.told.is_new(&about, why.text()) {
            let message = format!("a report about {about} was dropped: {}", why.sentence());
            events::refused(gate, session, message);
        }
    }
}

/// A node says that a workload has an address that is not the one leased to it: not believed, and told of.
fn odd_address(gate: &Gate, session: &Session, written: &Written, stored: &Entry, reported: Option<&str>) {
    let about = format!("the address of {}", stored.key);
    let Some(reported) = reported else { return written.told.forget(&about) };
    gate.metrics.dropped("foreign_address");
    if written.told.is_new(&about, reported) {
        tracing::warn!(node = %session.node, application = %stored.key, reported, "not the address that it was given");
        events::refused(gate, session, format!("{about} is not {reported:?}, as the node reports"));
    }
}

fn refused(
    gate: &Gate,
    session: &Session,
    told: &Told,
    what: &str,
    error: DoorError,
    put_back: impl FnOnce(),
) -> Result<(), Later> {
    match error {
        DoorError::Fenced => {
            gate.metrics.fenced.inc();
            session.lost();
            Ok(())
        }
        // The object went away or became another one meanwhile: the next report will fit.
        DoorError::Gone | DoorError::NoNode | DoorError::Changed => Ok(()),
        DoorError::Unavailable(status) => {
            tracing::debug!(node = %session.node, what, error = %status.message, "not written yet");
            put_back();
            Err(Later)
        }
        error => {
            gate.metrics.dropped("refused");
            tracing::warn!(node = %session.node, what, %error, "a node's report was refused");
            if told.is_new(what, &error.to_string()) {
                events::refused(gate, session, format!("{what} was not stored: {error}"));
            }
            Ok(())
        }
    }
}
