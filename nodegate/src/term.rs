//! Whether this gateway may act.
//!
//! A gateway holds its sessions by a term in the database that it has to renew. Other gateways may take its
//! nodes over once that term has ended **by the database's clock**, so this gateway stops to act a margin
//! earlier **by its own monotonic clock**, counted from before the renewal was asked for. Between the two
//! nobody acts. A process that was stopped and continued finds its term over at the first look, since the
//! clock went on.
//!
//! A gateway may have a name that outlives it ([`Settings::name`]). Its next process ends the term of the one that
//! died before the first node is back, so nodes do not wait for it to run out. While a process that bears the name
//! lives, another one under the same name does not get it, and serves without: the two do not fight. Whether it lives is
//! seen by its connections; through a pooler that lends them for single transactions nobody can see that, and its name is
//! free when its term has run out.
//!
//! Suspended means: no push, no new session, no log, no write; streams stay open and reports wait in their
//! slots. A failover of the database within [`Settings::give_up_after`] therefore costs no node its stream.
//! After that time the streams are closed, so that nodes look for a gateway that can serve them. Writes of
//! a suspended gateway that are under way are refused by the database itself: each carries the session as a
//! guard.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::gate::Gate;
use crate::settings::Settings;

/// What a gateway may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The term has not begun, or could not be renewed in time.
    Suspended,
    Active,
    /// Shutting down: no new sessions; those that are open are served until they are sent away.
    Draining,
}

/// The term of this gateway as this process knows it.
pub struct Term {
    /// Until when this gateway may act; `None` before the first renewal.
    until: Mutex<Option<Instant>>,
    standing: watch::Sender<Standing>,
}

impl Default for Term {
    fn default() -> Term {
        Term { until: Mutex::new(None), standing: watch::Sender::new(Standing::Suspended) }
    }
}

impl Term {
    /// Whether sessions may be served.
    pub fn in_force(&self) -> bool {
        self.until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Whether new sessions may be opened.
    pub fn open_to_newcomers(&self) -> bool {
        self.in_force() && *self.standing.borrow() == Standing::Active
    }

    pub fn standing(&self) -> Standing {
        match *self.standing.borrow() {
            Standing::Active if !self.in_force() => Standing::Suspended,
            standing => standing,
        }
    }

    /// Waits until sessions may be served.
    pub async fn until_in_force(&self) {
        let mut standing = self.standing.subscribe();
        while !self.in_force() {
            // The sender lives as long as `self`.
            let _ = standing.changed().await;
        }
    }

    fn prolong(&self, until: Instant) {
        *self.until.lock() = Some(until);
        self.standing.send_modify(|standing| {
            if *standing == Standing::Suspended {
                *standing = Standing::Active;
            }
        });
    }

    pub fn drain(&self) {
        self.standing.send_replace(Standing::Draining);
    }

    fn deadline(&self) -> Option<Instant> {
        *self.until.lock()
    }

    fn suspend(&self) {
        self.standing.send_if_modified(|standing| {
            let changes = *standing == Standing::Active;
            if changes {
                *standing = Standing::Suspended;
            }
            changes
        });
    }
}

/// Renews the term until `stop`.
pub async fn renew(gate: Arc<Gate>, stop: CancellationToken) {
    let settings = &gate.settings;
    let mut known_sessions_checked = true;
    let mut name = Name::new(settings);
    loop {
        let asked = Instant::now();
        let lost_time = !gate.term.in_force();
        // One connection on which nothing is answered must not cost the term. Once it is lost, a database that is slow
        // to take connections is not to be asked from the beginning again and again.
        let patience = if lost_time { settings.term } else { settings.term * 3 / 8 };
        let renewal = tokio::select! {
            () = stop.cancelled() => return,
            renewal = timeout(patience, renew_once(&gate)) => renewal,
        };
        let wait = match renewal {
            Ok(Ok(unbroken)) => {
                if !unbroken {
                    name.lost();
                }
                name.bear(&gate).await;
                known_sessions_checked &= unbroken && !lost_time;
                if !known_sessions_checked {
                    known_sessions_checked =
                        matches!(timeout(settings.term, reconcile(&gate)).await, Ok(Ok(())));
                }
                if known_sessions_checked {
                    gate.term.prolong(asked + settings.term.saturating_sub(settings.margin));
                    if name.is_awaited() { retry_delay(settings) } else { settings.renew_every }
                } else {
                    retry_delay(settings)
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the gateway's term could not be renewed");
                retry_delay(settings)
            }
            Err(_) => {
                tracing::warn!("the renewal of the gateway's term got no answer");
                retry_delay(settings)
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(wait) => {}
        }
    }
}

/// The name of this gateway, and whether it bears it.
struct Name {
    name: Option<String>,
    borne: bool,
    /// How long the predecessor may seem to be alive: its term, after which it is, and its name is taken.
    patience: Instant,
    warned: bool,
}

impl Name {
    fn new(settings: &Settings) -> Name {
        let patience = Instant::now() + settings.term;
        Name { name: settings.name.clone(), borne: false, patience, warned: false }
    }

    /// The term has lapsed, and maybe somebody had ended it.
    fn lost(&mut self) {
        self.borne = false;
    }

    /// The predecessor may still be about to vanish.
    fn is_awaited(&self) -> bool {
        self.name.is_some() && !self.borne && Instant::now() < self.patience
    }

    /// Takes the name, unless it is borne already.
    async fn bear(&mut self, gate: &Gate) {
        let Some(name) = self.name.as_deref().filter(|_| !self.borne) else { return };
        // Not for longer than the term can spare.
        match timeout(gate.settings.margin, gate.store.name_gateway(gate.id, name)).await {
            Ok(Ok(true)) => {
                self.borne = true;
                self.warned = false;
            }
            Ok(Ok(false)) if Instant::now() >= self.patience && !self.warned => {
                self.warned = true;
                tracing::error!(name, "another gateway runs under this name: give each its own --name");
            }
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the gateway could not take its name"),
            Err(_) => tracing::debug!("the gateway got no answer to taking its name"),
        }
    }
}

async fn renew_once(gate: &Gate) -> Result<bool, horchestra_store::ReadError> {
    gate.store.renew_gateway(gate.id, &gate.settings.internal_address, gate.settings.term).await
}

fn retry_delay(settings: &Settings) -> Duration {
    settings.renew_every / 6
}

/// Ends every session that the database no longer knows as ours.
async fn reconcile(gate: &Gate) -> Result<(), horchestra_store::ReadError> {
    let local = gate.sessions.all();
    if local.is_empty() {
        return Ok(());
    }
    let rows = gate.store.sessions().await?;
    let ours: std::collections::HashMap<&str, &horchestra_store::store::SessionGrant> =
        rows.iter().filter(|row| row.gateway == gate.id).map(|row| (row.node.as_str(), &row.grant)).collect();
    for session in local {
        if ours.get(session.node.as_str()) != Some(&&session.grant) {
            session.lost();
        }
    }
    Ok(())
}

/// Suspends the gateway when its term runs out, and closes the streams when that lasts.
pub async fn supervise(gate: Arc<Gate>, stop: CancellationToken) {
    let mut standing = gate.term.standing.subscribe();
    loop {
        standing.borrow_and_update();
        let Some(deadline) = gate.term.deadline() else {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = standing.changed() => continue,
            }
        };
        if Instant::now() < deadline {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(deadline) => continue,
            }
        }
        gate.term.suspend();
        tracing::warn!(sessions = gate.sessions.len(), "suspended: the database cannot be reached");
        tokio::select! {
            () = stop.cancelled() => return,
            () = gate.term.until_in_force() => {
                tracing::info!(sessions = gate.sessions.len(), "the database is back");
            }
            () = sleep_until(deadline + gate.settings.give_up_after) => {
                tracing::warn!(sessions = gate.sessions.len(), "sending the nodes to other gateways");
                send_away(&gate, gate.settings.give_up_over, "this gateway cannot reach the database").await;
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = gate.term.until_in_force() => {}
                }
            }
        }
    }
}

/// Ends all sessions at random moments within `over`, so that the nodes do not come back all at once.
pub async fn send_away(gate: &Gate, over: Duration, why: &'static str) {
    let mut leaving: Vec<_> = gate
        .sessions
        .all()
        .into_iter()
        .map(|session| (over.mul_f64(rand::rng().random::<f64>()), session))
        .collect();
    leaving.sort_by_key(|(delay, _)| *delay);
    let start = Instant::now();
    for (delay, session) in leaving {
        sleep_until(start + delay).await;
        session.end(Err(Status::unavailable(why)));
    }
}
