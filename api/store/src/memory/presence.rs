//! Leases, gateways, sessions, heartbeats and samples. Times are microseconds of the database clock.

use std::time::Duration;

use bytes::Bytes;
use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

use super::micros;
use crate::backend::Pruned;
use crate::presence::{
    DeniedCertificates, Heartbeat, HeartbeatRow, Lease, Samples, SamplesRow, SeenSession, SessionClaim,
    SessionGrant, SessionRow, TokenForm,
};

/// No gateway's term is longer.
const LONGEST_TERM: Duration = Duration::from_secs(600);

#[derive(Clone, Default)]
pub(super) struct Presence {
    leases: OrdMap<String, LeaseState>,
    gateways: OrdMap<Uuid, Gateway>,
    sessions: OrdMap<String, Session>,
    heartbeats: OrdMap<String, (Heartbeat, i64)>,
    token_forms: OrdMap<String, TokenForm>,
    samples: OrdMap<String, (Bytes, i64)>,
    last_session_epoch: i64,
    /// By name, with the moment until which they were issued.
    denied_names: OrdMap<String, i64>,
    denied_fingerprints: OrdSet<String>,
}

#[derive(Clone)]
struct LeaseState {
    holder: Option<Uuid>,
    epoch: i64,
    until: i64,
}

#[derive(Clone)]
struct Gateway {
    internal_address: String,
    until: i64,
    /// Since when its term has not lapsed.
    since: i64,
    name: Option<String>,
}

#[derive(Clone)]
struct Session {
    claim: SessionClaim,
    grant: SessionGrant,
    opened_at: i64,
    last_seen: i64,
}

impl Presence {
    pub fn lease_is(&self, name: &str, epoch: i64) -> bool {
        self.leases.get(name).is_some_and(|lease| lease.holder.is_some() && lease.epoch == epoch)
    }

    pub fn session_is(&self, node: &str, epoch: i64, session: Uuid) -> bool {
        self.sessions.get(node).is_some_and(|held| held.grant == SessionGrant { epoch, session })
    }

    pub fn acquire_lease(&mut self, name: &str, holder: Uuid, now: i64, ttl: i64) -> Option<Lease> {
        let until = now.saturating_add(ttl);
        let held = self.leases.get(name).cloned();
        let epoch = match held {
            None => 1,
            Some(lease) if lease.holder == Some(holder) => lease.epoch,
            Some(lease) if lease.holder.is_some() && lease.until > now => return None,
            Some(lease) => lease.epoch + 1,
        };
        self.leases.insert(name.to_owned(), LeaseState { holder: Some(holder), epoch, until });
        Some(Lease { name: name.to_owned(), holder, epoch })
    }

    pub fn lease_left(&self, name: &str, now: i64) -> Option<Duration> {
        let held = self.leases.get(name).filter(|lease| lease.holder.is_some())?;
        Some(Duration::from_micros(u64::try_from(held.until.saturating_sub(now)).unwrap_or(0)))
    }

    fn held(&mut self, lease: &Lease) -> Option<&mut LeaseState> {
        self.leases
            .get_mut(&lease.name)
            .filter(|held| held.holder == Some(lease.holder) && held.epoch == lease.epoch)
    }

    pub fn renew_lease(&mut self, lease: &Lease, now: i64, ttl: i64) -> bool {
        self.held(lease).map(|held| held.until = now.saturating_add(ttl)).is_some()
    }

    pub fn release_lease(&mut self, lease: &Lease) {
        if let Some(held) = self.held(lease) {
            held.holder = None;
        }
    }

    pub fn renew_gateway(&mut self, gateway: Uuid, internal_address: &str, now: i64, ttl: i64) -> bool {
        let before = self.gateways.get(&gateway);
        let lapsed = before.is_some_and(|held| held.until <= now);
        let until = now.saturating_add(ttl);
        // One that comes to end earlier than it did: the clock was set back.
        let unbroken = before.filter(|held| !lapsed && held.until <= until);
        let term = Gateway {
            internal_address: internal_address.to_owned(),
            until,
            since: unbroken.map_or(now, |held| held.since),
            name: before.and_then(|held| held.name.clone()),
        };
        self.gateways.insert(gateway, term);
        !lapsed
    }

    /// Processes do not end here: who bears a name is alive until its term is over.
    pub fn name_gateway(&mut self, gateway: Uuid, name: &str, now: i64) -> bool {
        let bears = |held: &Gateway| held.name.as_deref() == Some(name);
        let bearer = self.gateways.iter().find(|(_, held)| bears(held)).map(|(id, held)| (*id, held.until));
        match bearer {
            Some((id, _)) if id == gateway => return true,
            Some((_, until)) if until > now => return false,
            Some((id, _)) => {
                if let Some(held) = self.gateways.get_mut(&id) {
                    held.name = None;
                }
            }
            None => {}
        }
        self.gateways.get_mut(&gateway).map(|held| held.name = Some(name.to_owned())).is_some()
    }

    pub fn retire_gateway(&mut self, gateway: Uuid) {
        self.gateways.remove(&gateway);
    }

    fn serves(&self, gateway: Uuid, now: i64) -> bool {
        self.gateways.get(&gateway).is_some_and(|held| held.until > now)
    }

    pub fn claim_session(&mut self, claim: SessionClaim, now: i64, stale_after: i64) -> Option<SessionGrant> {
        if let Some(held) = self.sessions.get(&claim.node)
            && self.serves(held.claim.gateway, now)
            && now.saturating_sub(held.last_seen) <= stale_after
        {
            return None;
        }
        self.last_session_epoch += 1;
        let grant = SessionGrant { epoch: self.last_session_epoch, session: Uuid::new_v4() };
        let session = Session { grant: grant.clone(), opened_at: now, last_seen: now, claim };
        self.sessions.insert(session.claim.node.clone(), session);
        Some(grant)
    }

    pub fn release_session(&mut self, node: &str, grant: &SessionGrant) {
        if self.session_is(node, grant.epoch, grant.session) {
            self.sessions.remove(node);
        }
    }

    pub fn touch_sessions(&mut self, gateway: Uuid, sessions: &[SeenSession], now: i64) -> Vec<String> {
        let mut lost = Vec::new();
        for SeenSession { node, grant, .. } in sessions {
            let ours = |held: &&mut Session| held.grant == *grant && held.claim.gateway == gateway;
            match self.sessions.get_mut(node).filter(ours) {
                Some(held) => held.last_seen = now,
                None => lost.push(node.clone()),
            }
        }
        lost
    }

    fn row(&self, session: &Session) -> SessionRow {
        let gateway = self.gateways.get(&session.claim.gateway);
        SessionRow {
            node: session.claim.node.clone(),
            grant: session.grant.clone(),
            gateway: session.claim.gateway,
            internal_address: gateway.map(|held| held.internal_address.clone()).unwrap_or_default(),
            peer: session.claim.peer.clone(),
            certificate: session.claim.certificate.clone(),
            opened_at: session.opened_at,
            last_seen: session.last_seen,
        }
    }

    pub fn session_of(&self, node: &str, now: i64) -> Option<SessionRow> {
        let session = self.sessions.get(node)?;
        self.serves(session.claim.gateway, now).then(|| self.row(session))
    }

    pub fn sessions(&self) -> Vec<SessionRow> {
        self.sessions.values().map(|session| self.row(session)).collect()
    }

    /// `known`: whether there is a Node of the name.
    pub fn prune(&mut self, now: i64, age: i64, limit: usize, known: impl Fn(&str) -> bool) -> Pruned {
        let horizon = now.saturating_sub(age);
        let stale = |session: &Session| {
            !self.serves(session.claim.gateway, now) && session.last_seen.max(session.opened_at) < horizon
        };
        let sessions: Vec<String> = self
            .sessions
            .iter()
            .filter(|(_, session)| stale(session))
            .map(|(node, _)| node.clone())
            .take(limit)
            .collect();
        let ended = self.gateways.iter().filter(|(_, gateway)| gateway.until < horizon);
        let gateways: Vec<Uuid> = ended.map(|(id, _)| *id).take(limit).collect();
        let silent = self.heartbeats.iter().filter(|(node, (_, at))| *at < horizon && !known(node));
        let heartbeats: Vec<String> = silent.map(|(node, _)| node.clone()).take(limit).collect();
        let old = self.samples.iter().filter(|(_, (_, at))| *at < horizon);
        let samples: Vec<String> = old.map(|(node, _)| node.clone()).take(limit).collect();
        for node in &sessions {
            self.sessions.remove(node);
        }
        for id in &gateways {
            self.gateways.remove(id);
        }
        for node in &heartbeats {
            self.heartbeats.remove(node);
        }
        for node in &samples {
            self.samples.remove(node);
        }
        Pruned {
            sessions: sessions.len(),
            gateways: gateways.len(),
            heartbeats: heartbeats.len(),
            samples: samples.len(),
        }
    }

    pub fn denied(&self) -> Vec<DeniedCertificates> {
        let of_name = |(name, begun_until): (&String, &i64)| DeniedCertificates::Name {
            name: name.clone(),
            begun_until: *begun_until,
        };
        // As the database orders them: by name, and without one first.
        let fingerprints = self.denied_fingerprints.iter().cloned().map(DeniedCertificates::Fingerprint);
        fingerprints.chain(self.denied_names.iter().map(of_name)).collect()
    }

    pub fn deny(&mut self, denied: &DeniedCertificates) {
        match denied {
            DeniedCertificates::Name { name, begun_until } => {
                let before = self.denied_names.get(name).copied().unwrap_or(i64::MIN);
                self.denied_names.insert(name.clone(), before.max(*begun_until));
            }
            DeniedCertificates::Fingerprint(fingerprint) => {
                self.denied_fingerprints.insert(fingerprint.clone());
            }
        }
    }

    pub fn allow(&mut self, of: &str) -> bool {
        self.denied_names.remove(of).is_some() | self.denied_fingerprints.remove(of).is_some()
    }

    pub fn record_heartbeats(&mut self, beats: &[Heartbeat], now: i64) {
        for beat in beats {
            self.heartbeats.insert(beat.node.clone(), (beat.clone(), now));
        }
    }

    pub fn record_beats(&mut self, beats: &[(SessionGrant, Heartbeat)], now: i64) -> Vec<String> {
        let mut lost = Vec::new();
        for (grant, beat) in beats {
            match self.sessions.get_mut(&beat.node).filter(|held| held.grant == *grant) {
                Some(held) => {
                    held.last_seen = now;
                    self.heartbeats.insert(beat.node.clone(), (beat.clone(), now));
                }
                None => lost.push(beat.node.clone()),
            }
        }
        lost
    }

    pub fn token_form(&self, node: &str) -> Option<TokenForm> {
        self.token_forms.get(node).copied()
    }

    pub fn choose_token_form(&mut self, node: &str, as_secrets: bool, overrule: bool) -> TokenForm {
        let form = match self.token_form(node) {
            None => TokenForm { as_secrets, salt: Uuid::new_v4() },
            Some(form) if overrule => TokenForm { as_secrets, ..form },
            Some(form) => return form,
        };
        self.token_forms.insert(node.to_owned(), form);
        form
    }

    pub fn heartbeats(&self, now: i64) -> Vec<HeartbeatRow> {
        // A term that ends much later than any would is none: the clock was set back.
        let latest = now.saturating_add(micros(LONGEST_TERM));
        let in_term = self.gateways.values().filter(|gateway| gateway.until > now && gateway.until <= latest);
        let served_since = in_term.map(|gateway| gateway.since).min();
        let row = |(heartbeat, at): &(Heartbeat, i64)| HeartbeatRow {
            heartbeat: heartbeat.clone(),
            at: *at,
            age: Duration::from_micros(u64::try_from(now - at).unwrap_or(0)),
            now,
            served_since,
        };
        self.heartbeats.values().map(row).collect()
    }

    pub fn record_samples(&mut self, samples: &[Samples], now: i64) {
        for Samples { node, grant, body } in samples {
            if self.session_is(node, grant.epoch, grant.session) {
                self.samples.insert(node.clone(), (body.clone(), now));
            }
        }
    }

    pub fn samples(&self, nodes: &[String], now: i64, within: i64) -> Vec<SamplesRow> {
        let fresh = |node: &String| {
            let (body, at) = self.samples.get(node)?;
            let age = now.saturating_sub(*at);
            let row = SamplesRow {
                node: node.clone(),
                age: Duration::from_micros(u64::try_from(age).unwrap_or(0)),
                body: body.clone(),
            };
            (age <= within).then_some(row)
        };
        nodes.iter().filter_map(fresh).collect()
    }
}
