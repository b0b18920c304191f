//! Bringing a node what it is to run.
//!
//! A push replaces everything that the node was told before, and the node tears down what it does not name.
//! Hence: nothing is pushed from a view that is incomplete or stale, nothing to a node that does not exist
//! or is not admitted, nothing that an agent could not take in, nothing without something that the node may hold
//! unless its end is on record ([`super::decision`]). In all those cases the session goes on and
//! whatever the node was told last stays in force. What a session pushes first is no older than its claim:
//! it waits until the index has everything that was committed by then. The first complete view of a session is always sent, and
//! so is the first after a time without; otherwise only what differs from the last one.
//! What has changed for all nodes alike waits for its turn ([`crate::egress`]), unless this node has something of
//! its own to hear of: then that takes it along.

use std::sync::Arc;
use std::time::Duration;

use horchestra_proto::node::v1::DesiredState;
use horchestra_store::store::TokenForm;
use horchestra_store::{Hold, Holding, ReadError};
use jiff::Timestamp;
use rand::Rng;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::account::{Account, Later};
use super::decision::{Decision, Why};
use super::fleet::Part;
use super::form::{Form, Signature};
use super::index::{Hurry, View};
use super::networks::NodeNetworks;
use super::supply::{Missing, SupplySignature, TokenTerms, supply};
use super::tokens::Renewal;
use super::volumes::{List, Own};
use crate::events;
use crate::gate::Gate;
use crate::holds::Standing;
use crate::session::Session;
use crate::session::outbound::Push;
use crate::session::outgoing::Whole;
use crate::session::told::Told;
use crate::session::traced;

/// Why a node is not pushed to at present.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Withheld {
    Absent,
    NotAdmitted,
    /// A hold is in force.
    Held(Hold),
    Blocked(String),
    TooLarge(usize),
    Stale,
    /// How its token volumes are sent is not known yet.
    Undecided,
    /// Addresses of its workloads are being asked for.
    Unleased,
}

impl Withheld {
    /// It is over in a moment, and nothing has happened meanwhile that the node should be told again.
    fn is_passing(&self) -> bool {
        matches!(self, Withheld::Stale | Withheld::Undecided | Withheld::Unleased)
    }

    /// What people are told; `None` where it is the ordinary course of things, or somebody else tells them.
    fn for_people(&self) -> Option<String> {
        match self {
            Withheld::Blocked(why) => {
                Some(format!("nothing is sent, since what runs there cannot be: {why}"))
            }
            Withheld::TooLarge(size) => {
                Some(format!("nothing is sent, since {size} bytes are more than agents accept"))
            }
            Withheld::Absent
            | Withheld::NotAdmitted
            | Withheld::Held(_)
            | Withheld::Stale
            | Withheld::Undecided
            | Withheld::Unleased => None,
        }
    }
}

impl From<Later> for Withheld {
    fn from(Later: Later) -> Withheld {
        Withheld::Stale
    }
}

/// What was offered last, and when.
#[derive(Default)]
struct Last {
    signature: Option<Signatures>,
    forms: Vec<Arc<Form>>,
    networks: NodeNetworks,
    fleet: Arc<Part>,
    at: Option<Instant>,
    withheld: Option<Withheld>,
    /// What agents would not decode, and what could not be had, as people were told.
    told: Told,
    account: Account,
    tokens: TokenTerms,
    renewal: Option<Renewal>,
    /// When something is tried again that the last push had to go without.
    retry_at: Option<Instant>,
}

/// What people are told of: what all nodes are sent.
const TABLES: &str = "the tables";

/// How long a session waits for the index before it asks the database anew.
const CATCH_UP: Duration = Duration::from_millis(500);

/// Pushes to the node of `session` for as long as it lasts.
pub async fn run(gate: Arc<Gate>, session: Arc<Session>) {
    let settings = &gate.settings;
    // What needs much room and is rare gets it while it lasts.
    Box::pin(catch_up(&gate, &session)).await;
    let told = session.first_report.units(settings.first_report).await;
    let mut last = Last { account: Account::of(told), ..Last::default() };
    let mut resend_at = next_resend(settings.resend_every);
    session.bell.ring(Hurry::Urgent);
    loop {
        let rung = tokio::select! {
            rung = session.bell.due(last.at, settings.push_gap, settings.urgent_gap) => rung,
            () = wait_until(resend_at) => {
                resend_at = next_resend(settings.resend_every);
                session.bell.force();
                continue;
            }
            () = wait_until(last.renewal.map(|renewal| renewal.at)) => {
                // All tokens of the node in one push; should that fail, again soon.
                last.tokens.since = Timestamp::now();
                last.renewal = last.renewal.map(|renewal| renewal.put_off(settings.retry_every));
                session.bell.ring(Hurry::Normal);
                continue;
            }
            () = wait_until(last.retry_at) => {
                last.retry_at = None;
                session.bell.ring(Hurry::Normal);
                continue;
            }
        };
        let size = gate.index.published().len;
        let mut paid = false;
        if rung.hurry == Hurry::Fleet && !rung.forced {
            tokio::select! {
                () = gate.egress.turn(size) => paid = true,
                () = session.bell.more_than_fleet() => {}
            }
        }
        gate.term.until_in_force().await;
        Box::pin(decide_token_form(&gate, &session.node, &mut last.tokens)).await;
        if let Some(offered) = Box::pin(offer(&gate, &session, &mut last, rung.forced)).await {
            gate.metrics.pushes.inc();
            if !paid {
                gate.egress.spend(size);
            }
            tracing::debug!(node = %session.node, applications = offered, forced = rung.forced, "pushed");
            resend_at = next_resend(settings.resend_every);
        }
    }
}

/// Waits until the index holds everything that was committed before this call. Another gateway may have
/// told the node of a later state than this process has seen; going back to an earlier one would tear down
/// what was started meanwhile. The same goes for a later state than the database has, which only those who have seen
/// it can tell: they get a moment to do so after the database came back.
async fn catch_up(gate: &Gate, session: &Session) {
    let mut announced = false;
    while let settled = gate.store.health().connected_for
        && settled < gate.settings.settle
    {
        sleep((gate.settings.settle - settled).min(CATCH_UP)).await;
    }
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

/// Sees to it that it is known how this node is sent token volumes, once it is to be sent any.
async fn decide_token_form(gate: &Gate, node: &str, terms: &mut TokenTerms) {
    let (wanted, said) = gate.index.token_volumes(node);
    let settled = |terms: &TokenTerms| {
        terms.decided && said.is_none_or(|said| terms.form.is_some_and(|form| form.as_secrets == said))
    };
    if !wanted || settled(terms) {
        return;
    }
    match token_form(gate, node, said).await {
        Ok(form) => *terms = TokenTerms { form, decided: true, ..*terms },
        // Said once, when the push is withheld for it.
        Err(error) => tracing::debug!(%node, %error, "how token volumes are sent could not be looked up"),
    }
}

/// What was chosen, or is now. A gateway without keys decides nothing.
async fn token_form(gate: &Gate, node: &str, said: Option<bool>) -> Result<Option<TokenForm>, ReadError> {
    let known = gate.store.token_form(node).await?;
    match (known, said) {
        (Some(form), None) => Ok(Some(form)),
        (Some(form), Some(said)) if form.as_secrets == said => Ok(Some(form)),
        (_, Some(said)) => gate.store.choose_token_form(node, said, true).await.map(Some),
        (None, None) if gate.tokens.cache.is_none() => Ok(None),
        (None, None) => {
            let default = gate.tokens.as_secrets_by_default();
            gate.store.choose_token_form(node, default, false).await.map(Some)
        }
    }
}

/// Offers the present state if it has to be; returns how many Applications it names.
async fn offer(gate: &Arc<Gate>, session: &Arc<Session>, last: &mut Last, forced: bool) -> Option<usize> {
    for (key, why) in gate.index.faults(&session.node) {
        if last.told.is_new(&key.to_string(), &why) {
            events::undecodable(gate, &key, &why);
        }
    }
    match build(gate, session, last).await {
        Err(withheld) => {
            if last.withheld.as_ref() != Some(&withheld) {
                announce(&session.node, &withheld);
                if let Some(why) = withheld.for_people() {
                    events::push_withheld(gate, session, why);
                }
                if !matches!(withheld, Withheld::Absent | Withheld::NotAdmitted | Withheld::Unleased) {
                    gate.metrics.pushes_withheld.inc();
                }
            }
            if withheld == Withheld::Undecided {
                last.retry_at = Some(Instant::now() + CATCH_UP);
            }
            if withheld == Withheld::Stale {
                session.bell.ring(Hurry::Normal);
                last.at = Some(Instant::now());
            }
            last.withheld = Some(withheld);
            None
        }
        Ok(built) => {
            let resumed = last.withheld.take().is_some_and(|withheld| !withheld.is_passing());
            tell_what_is_missing(gate, session, last, &built.missing);
            let same = last.signature.as_ref().is_some_and(|last| last.covers(&built));
            if same && (built.superset || !(forced || resumed)) {
                return None;
            }
            for (key, _, without) in &built.networks.without {
                if last.told.is_new(&format!("the address of {key}"), &format!("{without:?}")) {
                    events::no_address(gate, key, *without);
                }
            }
            if built.cut == 0 {
                last.told.forget(TABLES);
            } else if last.told.is_new(TABLES, "cut") {
                let why = "routes and rules of Services are not all sent, since with them it is more than agents accept";
                tracing::error!(node = %session.node, bytes = built.cut, why);
                events::push_withheld(gate, session, why.to_owned());
            }
            let named = built.forms.len();
            let before = last.signature.as_ref().map(|signature| signature.applications.as_slice());
            let brought = traced::brought(gate, session, &built.forms, before);
            let Built { message, signature, forms, ended, networks, fleet, .. } = built;
            last.forms = forms.clone();
            last.networks = networks.clone();
            last.fleet = fleet;
            let (gate_then, session_then) = (Arc::clone(gate), Arc::clone(session));
            let revision = last.account.revision();
            gate.metrics.pushed(message.encoded_len());
            session.outbound.offer(Push {
                message,
                on_taken: Box::new(move || {
                    session_then.sent.record(&forms, &networks);
                    traced::taken(&session_then, brought);
                    let gone = session_then.in_flight.taken_without(ended);
                    if !gone.is_empty() {
                        gate_then.records.remove(&session_then, revision, gone);
                    }
                }),
            });
            last.signature = Some(signature);
            last.at = Some(Instant::now());
            Some(named)
        }
    }
}

/// What a push goes without is told once, and tried again; what it has is renewed in time.
fn tell_what_is_missing(gate: &Gate, session: &Session, last: &mut Last, missing: &Missing) {
    const TOKENS: &str = "tokens";
    for (key, why) in &missing.unopened {
        gate.metrics.secrets_unopened.inc();
        if last.told.is_new(&key.to_string(), why) {
            tracing::error!(node = %session.node, %key, %why, "a Secret is not sent: its contents do not open");
            events::unopened(gate, key, why);
        }
    }
    match &missing.tokens {
        Some(why) if last.told.is_new(TOKENS, why) => {
            tracing::error!(node = %session.node, %why, "workloads are not given all of their tokens");
            events::tokens_wait(gate, session, why);
        }
        Some(_) => {}
        None => last.told.forget(TOKENS),
    }
    last.retry_at = missing.is_any().then(|| Instant::now() + gate.settings.retry_every);
    last.renewal = Renewal::next(last.renewal, missing.oldest_token, gate.settings.token_age);
}

/// What makes two pushes differ for the node.
#[derive(PartialEq)]
struct Signatures {
    applications: Vec<Signature>,
    volumes: Vec<Own>,
    supply: SupplySignature,
    networks: NodeNetworks,
    /// Of what all nodes are sent.
    fleet: u64,
}

impl Signatures {
    /// Whether the node has been told all of it. A superset names no volumes, whatever was named before, and is sent
    /// again only for tokens, which do not last.
    fn covers(&self, built: &Built) -> bool {
        let now = &built.signature;
        if built.superset {
            self.applications == now.applications && self.supply.has_tokens_of(&now.supply)
        } else {
            self == now
        }
    }
}

struct Built {
    message: Whole,
    signature: Signatures,
    forms: Vec<Arc<Form>>,
    /// Goes off the record once this was taken.
    ended: Vec<Holding>,
    /// Of what was sent last, under a hold.
    superset: bool,
    missing: Missing,
    networks: NodeNetworks,
    fleet: Arc<Part>,
    /// Bytes of what all nodes are sent that there is no room for.
    cut: usize,
}

async fn build(gate: &Gate, session: &Session, last: &mut Last) -> Result<Built, Withheld> {
    if gate.store.health().disconnected_for > gate.settings.push_staleness {
        return Err(Withheld::Stale);
    }
    let node = &session.node;
    let hold = match gate.holds.of(node) {
        Standing::Unknown => return Err(Withheld::Stale),
        Standing::Free => None,
        Standing::Held(hold) => Some(hold),
    };
    let holdings = last.account.current(gate, session, hold.as_ref()).await?;
    let (view, unnamed) = gate.index.survey(node, &holdings);
    let (mut forms, mut volumes, mut supplies, mut networks, mut fleet) = match view {
        View::Unknown => return Err(Withheld::Stale),
        View::Absent => return Err(Withheld::Absent),
        View::NotAdmitted => return Err(Withheld::NotAdmitted),
        View::Blocked { application, why } => {
            return Err(Withheld::Blocked(format!("{application}: {why}")));
        }
        View::Unleased(missing) => {
            gate.addresses.want(missing);
            return Err(Withheld::Unleased);
        }
        View::Complete { applications, volumes, supplies, networks, fleet } => {
            (applications, volumes, supplies, networks, fleet)
        }
    };
    let sent_before = last.signature.is_some();
    let (decision, ended) = last.account.judge(gate, node, unnamed, sent_before).await?;
    let (ended, superset) = match decision {
        Decision::Push => (ended, false),
        Decision::Superset => {
            forms = superset(&last.forms, forms);
            volumes = List::default();
            supplies = gate.index.supplies(&forms);
            networks = last.networks.with(networks);
            fleet = Arc::clone(&last.fleet);
            (Vec::new(), true)
        }
        Decision::Nothing(why) => {
            last.account.hold_for(gate, node, &why).await?;
            return Err(match why {
                Why::Held(hold) => Withheld::Held(hold),
                Why::Unsendable(held) => Withheld::Blocked(format!("{}: it may run there", held.key)),
                // The hold that was just engaged is found at the next look.
                Why::RecordAhead(_) | Why::Older | Why::Unexplained(_) => Withheld::Stale,
            });
        }
    };
    let terms = last.tokens;
    if !terms.decided && forms.iter().any(|form| !form.uses.audiences.is_empty()) {
        return Err(Withheld::Undecided);
    }
    let supply = supply(gate, node, &forms, &supplies, terms);
    let own = DesiredState {
        applications: supply.applications,
        secrets: supply.secrets,
        secret_stores: supply.stores,
        workload_tokens: supply.tokens,
        workload_networks: networks.encoded(),
        ..DesiredState::default()
    };
    let mut message = Whole { own, shared: volumes.pieces.clone() };
    let size = message.encoded_len();
    if size > gate.settings.push_limit {
        return Err(Withheld::TooLarge(size));
    }
    // The length of a longer message takes more bytes itself.
    let (tables, cut) = fleet.within((gate.settings.push_limit - size).saturating_sub(4));
    message.shared.extend_from_slice(tables);
    last.account.cover(gate, session, &forms, &volumes).await?;
    // Written, and a hold may have come meanwhile.
    if gate.holds.of(node) != hold.map_or(Standing::Free, Standing::Held) {
        return Err(Withheld::Stale);
    }
    let applications = forms.iter().map(|form| form.signature.clone()).collect();
    let signature = Signatures {
        applications,
        volumes: volumes.own,
        supply: supply.signature,
        networks: networks.clone(),
        fleet: fleet.revision,
    };
    let missing = supply.missing;
    Ok(Built { message, signature, forms, ended, superset, missing, networks, fleet, cut })
}

/// What was sent last, as it was sent, and what has come since under names that nothing of it has.
fn superset(sent: &[Arc<Form>], now: Vec<Arc<Form>>) -> Vec<Arc<Form>> {
    let is_sent = |form: &Arc<Form>| {
        sent.iter().any(|other| other.key == form.key || other.signature.uid == form.signature.uid)
    };
    let new = now.into_iter().filter(|form| !is_sent(form));
    sent.iter().cloned().chain(new).collect()
}

fn announce(node: &str, withheld: &Withheld) {
    match withheld {
        Withheld::Absent => tracing::warn!(%node, "nothing is sent: the Node object does not exist"),
        Withheld::NotAdmitted => {
            tracing::info!(%node, "nothing is sent: the Node is not admitted; uncordon or admit it");
        }
        Withheld::Held(hold) => {
            tracing::warn!(%node, reason = hold.reason, message = hold.message,
                "nothing is sent: pushes are held until an operator admits the Node or releases all of them");
        }
        Withheld::Blocked(why) => tracing::error!(%node, %why, "nothing is sent: what runs there cannot be"),
        Withheld::TooLarge(size) => {
            tracing::error!(%node, size, "nothing is sent: the desired state is larger than agents accept");
        }
        Withheld::Undecided => {
            tracing::warn!(%node, "nothing is sent: how its token volumes are sent is not known yet");
        }
        Withheld::Stale => tracing::warn!(%node, "nothing is sent: this gateway's view is not current"),
        Withheld::Unleased => tracing::debug!(%node, "addresses of its workloads are being asked for"),
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
