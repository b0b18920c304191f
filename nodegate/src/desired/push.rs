//! Bringing a node what it is to run.
//!
//! A push replaces everything that the node was told before, and the node tears down what it does not name.
//! Hence: nothing is pushed from a view that is incomplete or stale, nothing to a node that does not exist
//! or is not admitted, nothing that an agent could not take in. In all those cases the session goes on and
//! whatever the node was told last stays in force. What a session pushes first is no older than its claim:
//! it waits until the index has everything that was committed by then. The first complete view of a session is always sent, and
//! so is the first after a time without; otherwise only what differs from the last one.

use std::sync::Arc;
use std::time::Duration;

use horchestra_proto::node::v1::{ControllerMessage, DesiredState, controller_message::Body};
use prost::Message;
use rand::Rng;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::form::{Form, Signature};
use super::index::View;
use super::volumes::Own;
use crate::events;
use crate::gate::Gate;
use crate::session::Session;
use crate::session::outbound::Push;
use crate::session::told::Told;

/// Why a node is not pushed to at present.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Withheld {
    Absent,
    Held,
    Blocked(String),
    TooLarge(usize),
    Stale,
}

impl Withheld {
    /// What people are told; `None` where it is the ordinary course of things.
    fn for_people(&self) -> Option<String> {
        match self {
            Withheld::Blocked(why) => {
                Some(format!("nothing is sent, since what runs there cannot be: {why}"))
            }
            Withheld::TooLarge(size) => {
                Some(format!("nothing is sent, since {size} bytes are more than agents accept"))
            }
            Withheld::Absent | Withheld::Held | Withheld::Stale => None,
        }
    }
}

/// What was offered last, and when.
#[derive(Default)]
struct Last {
    signature: Option<Signatures>,
    at: Option<Instant>,
    withheld: Option<Withheld>,
    /// What agents would not decode, as people were told.
    told: Told,
}

/// How long a session waits for the index before it asks the database anew.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Pushes to the node of `session` for as long as it lasts.
pub async fn run(gate: Arc<Gate>, session: Arc<Session>) {
    let settings = &gate.settings;
    catch_up(&gate, &session).await;
    let mut last = Last::default();
    let mut resend_at = next_resend(settings.resend_every);
    session.bell.ring(super::index::Hurry::Urgent);
    loop {
        let rung = tokio::select! {
            rung = session.bell.due(last.at, settings.push_gap, settings.urgent_gap) => rung,
            () = wait_until(resend_at) => {
                resend_at = next_resend(settings.resend_every);
                session.bell.force();
                continue;
            }
        };
        gate.term.until_in_force().await;
        if let Some(offered) = offer(&gate, &session, &mut last, rung.forced) {
            gate.metrics.pushes.inc();
            tracing::debug!(node = %session.node, applications = offered, forced = rung.forced, "pushed");
            resend_at = next_resend(settings.resend_every);
        }
    }
}

/// Waits until the index holds everything that was committed before this call. Another gateway may have
/// told the node of a later state than this process has seen; going back to an earlier one would tear down
/// what was started meanwhile.
async fn catch_up(gate: &Gate, session: &Session) {
    let mut announced = false;
    loop {
        match gate.store.fresh().await {
            // Given up and asked again, since that revision means nothing once the database was replaced.
            Ok(fresh) => {
                let revision = fresh.revision();
                drop(fresh);
                if timeout(CATCH_UP, gate.index.reach(revision)).await.is_ok() {
                    return;
                }
            }
            Err(_) => sleep(CATCH_UP).await,
        }
        if !std::mem::replace(&mut announced, true) {
            gate.metrics.pushes_withheld.inc();
            announce(&session.node, &Withheld::Stale);
        }
    }
}

/// Offers the present state if it has to be; returns how many Applications it names.
fn offer(gate: &Gate, session: &Arc<Session>, last: &mut Last, forced: bool) -> Option<usize> {
    for (key, why) in gate.index.faults(&session.node) {
        if last.told.is_new(&key.to_string(), &why) {
            events::undecodable(gate, &key, &why);
        }
    }
    match build(gate, &session.node) {
        Err(withheld) => {
            if last.withheld.as_ref() != Some(&withheld) {
                announce(&session.node, &withheld);
                if let Some(why) = withheld.for_people() {
                    events::push_withheld(gate, session, why);
                }
                if !matches!(withheld, Withheld::Absent | Withheld::Held) {
                    gate.metrics.pushes_withheld.inc();
                }
            }
            if withheld == Withheld::Stale {
                session.bell.ring(super::index::Hurry::Normal);
                last.at = Some(Instant::now());
            }
            last.withheld = Some(withheld);
            None
        }
        Ok(built) => {
            let resumed = last.withheld.take().is_some_and(|withheld| withheld != Withheld::Stale);
            if !forced && !resumed && last.signature.as_ref() == Some(&built.signature) {
                return None;
            }
            let named = built.forms.len();
            let forms = built.forms;
            let remember = Arc::clone(session);
            session.outbound.offer(Push {
                message: built.message,
                on_taken: Box::new(move || remember.sent.record(&forms)),
            });
            last.signature = Some(built.signature);
            last.at = Some(Instant::now());
            Some(named)
        }
    }
}

/// What makes two pushes differ for the node.
#[derive(PartialEq)]
struct Signatures {
    applications: Vec<Signature>,
    volumes: Vec<Own>,
}

struct Built {
    message: ControllerMessage,
    signature: Signatures,
    forms: Vec<Arc<Form>>,
}

fn build(gate: &Gate, node: &str) -> Result<Built, Withheld> {
    if gate.store.health().disconnected_for > gate.settings.push_staleness {
        return Err(Withheld::Stale);
    }
    let (forms, volumes) = match gate.index.view(node) {
        View::Unknown => return Err(Withheld::Stale),
        View::Absent => return Err(Withheld::Absent),
        View::Held => return Err(Withheld::Held),
        View::Blocked { application, why } => {
            return Err(Withheld::Blocked(format!("{application}: {why}")));
        }
        View::Complete { applications, volumes } => (applications, volumes),
    };
    let desired = DesiredState {
        applications: forms.iter().map(|form| form.bytes()).collect(),
        persistent_volumes: volumes.bytes,
        ..DesiredState::default()
    };
    let message: ControllerMessage = Body::Desired(desired).into();
    let size = message.encoded_len();
    if size > gate.settings.push_limit {
        return Err(Withheld::TooLarge(size));
    }
    let applications = forms.iter().map(|form| form.signature.clone()).collect();
    let signature = Signatures { applications, volumes: volumes.own };
    Ok(Built { message, signature, forms })
}

fn announce(node: &str, withheld: &Withheld) {
    match withheld {
        Withheld::Absent => tracing::warn!(%node, "nothing is sent: the Node object does not exist"),
        Withheld::Held => tracing::info!(%node, "nothing is sent: the Node is not admitted; uncordon it"),
        Withheld::Blocked(why) => tracing::error!(%node, %why, "nothing is sent: what runs there cannot be"),
        Withheld::TooLarge(size) => {
            tracing::error!(%node, size, "nothing is sent: the desired state is larger than agents accept");
        }
        Withheld::Stale => tracing::warn!(%node, "nothing is sent: this gateway's view is not current"),
    }
}

/// Spread by a tenth in both directions.
fn next_resend(every: Option<Duration>) -> Option<Instant> {
    every.map(|every| Instant::now() + every.mul_f64(rand::rng().random_range(0.9..=1.1)))
}

async fn wait_until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
