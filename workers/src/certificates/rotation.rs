//! Whether nodes come back with the certificates that they were given.
//!
//! An agent that has got its next certificate ends and relies on being started again. Where nobody does that, the node
//! is gone, and nothing else would say why. So for a while after a renewal was signed the node's session is looked
//! at: one that was opened with the new certificate ends the matter, with an Event; none within a minute is
//! told once, as a warning.
//!
//! All of it follows from what is stored (the certificate, when it was signed, the session), so another leader goes
//! on with it. What is remembered only keeps things from being told twice.

use std::collections::HashMap;
use std::time::Duration;

use horchestra_auth::identity::fingerprint;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::certificate_signing_request::{
    CONDITION_ISSUED, CertificateSigningRequest, PHASE_APPROVED,
};
use horchestra_core::kinds::meta::condition;
use horchestra_core::reasons;
use horchestra_service::{Recorder, Subject};
use horchestra_store::Store;
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use uuid::Uuid;

use super::policy::is_renewal;

/// How long a node may take to come back.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// How long it is looked for.
const LOOKED_FOR: SignedDuration = SignedDuration::from_mins(10);
/// How often.
const PERIOD: Duration = Duration::from_secs(5);

/// A node that was given its next certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub node: String,
    /// SHA-256 of the new certificate.
    pub fingerprint: String,
    pub issued: Timestamp,
}

impl Rotation {
    /// What there is to look for because of this request.
    pub fn of(request: &CertificateSigningRequest) -> Option<Rotation> {
        let issued = condition(&request.status.conditions, CONDITION_ISSUED)?.last_transition_time?;
        if request.status.phase != PHASE_APPROVED || !is_renewal(request) {
            return None;
        }
        let leaf = CertificateDer::from_pem_slice(&request.status.certificate.0).ok()?;
        Some(Rotation {
            node: request.requester().to_owned(),
            fingerprint: fingerprint(&leaf),
            issued: issued.timestamp(),
        })
    }
}

/// What has been told of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Late,
    Back,
}

/// The watch over rotations of one term.
#[derive(Debug, Default)]
pub struct Rotations {
    told: HashMap<Uuid, Told>,
}

impl Rotations {
    /// Looks at the nodes of these rotations (by the uid of the request). Answers when to look again.
    pub async fn look(
        &mut self,
        store: &Store,
        recorder: &Recorder,
        rotations: &[(Uuid, Rotation)],
        now: Timestamp,
    ) -> Option<Duration> {
        // Of several certificates for one node the last one counts.
        let mut newest: HashMap<&str, &(Uuid, Rotation)> = HashMap::new();
        for one in rotations.iter().filter(|(_, one)| now.duration_since(one.issued) < LOOKED_FOR) {
            let held = newest.entry(&one.1.node).or_insert(one);
            if held.1.issued < one.1.issued {
                *held = one;
            }
        }
        self.told.retain(|uid, _| rotations.iter().any(|(known, _)| known == uid));
        let mut again = None;
        for (uid, rotation) in newest.into_values() {
            let told = self.told.get(uid).copied();
            if told == Some(Told::Back) {
                continue;
            }
            again = Some(PERIOD);
            let session = match store.session_of(&rotation.node).await {
                Ok(session) => session,
                Err(error) => {
                    tracing::debug!(node = rotation.node, %error, "could not look whether a node is back");
                    return again;
                }
            };
            let late = now.duration_since(rotation.issued) >= PATIENCE;
            let (reason, message, next) = match session {
                Some(session) if session.certificate == rotation.fingerprint => {
                    let message = "connected with its new certificate";
                    (&reasons::NODE_CERTIFICATE_ROTATED, message, Told::Back)
                }
                _ if !late || told.is_some() => continue,
                Some(_) => {
                    let message = "was given a new certificate a minute ago and is still connected with the old one: \
                                   its agent may have stopped waiting for it, and will ask for another one";
                    (&reasons::NODE_NOT_BACK, message, Told::Late)
                }
                None => {
                    let message = "was given a new certificate a minute ago and has not connected with it: its agent \
                                   ends when it has got one, and something has to start it again";
                    (&reasons::NODE_NOT_BACK, message, Told::Late)
                }
            };
            self.told.insert(*uid, next);
            let key = Key::cluster(Kind::Node, rotation.node.as_str());
            let subject =
                store.snapshot().get(&key).map_or_else(|| Subject::named(&key), |node| Subject::of(&node));
            tracing::info!(node = rotation.node, "the node {message}");
            recorder.record(subject, reason, format!("the node {message}"));
        }
        again
    }
}
