//! What a node was told in this session, and hence what it may speak about.
//!
//! A status report names an Application by namespace and name only. An agent reports nothing before the
//! first push of a session, and afterwards only what it was pushed; so a report is believed only of the
//! very object (uid) that this session has sent under that name, and its end only if it was sent *with* the
//! deletion mark. A report about an earlier bearer of a name thus never touches a later one.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::inbox::AppName;
use crate::desired::form::Form;
use crate::desired::networks::NodeNetworks;

/// How long what is no longer pushed may still be spoken about.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What was sent under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentAs {
    pub uid: Uuid,
    /// It was sent with the deletion mark.
    pub deleting: bool,
    /// The address that it was sent with.
    pub address: Option<Ipv4Addr>,
    /// It was sent without an address, although it is to have one.
    pub unaddressed: bool,
    /// Highest generation that the node said it runs since the last push.
    pub highest_observed: i64,
    last: Instant,
}

/// Everything sent in one session.
#[derive(Default)]
pub struct Sent {
    names: Mutex<HashMap<AppName, SentAs>>,
}

impl Sent {
    /// A push was handed to the transport.
    pub fn record(&self, forms: &[Arc<Form>], networks: &NodeNetworks) {
        let now = Instant::now();
        let addresses: HashMap<Uuid, Ipv4Addr> = networks.addresses.iter().copied().collect();
        let mut names = self.names.lock();
        for form in forms {
            let name = (form.key.namespace.clone(), form.key.name.clone());
            let before = names.get(&name).filter(|before| before.uid == form.signature.uid);
            let deleting = form.signature.deleting || before.is_some_and(|before| before.deleting);
            let uid = form.signature.uid;
            // What the node says may be of a push before this one.
            let address = addresses.get(&uid).copied().or(before.and_then(|before| before.address));
            let unaddressed = networks.without.iter().any(|(_, without, _)| *without == uid);
            let sent = SentAs { uid, deleting, address, unaddressed, highest_observed: 0, last: now };
            names.insert(name, sent);
        }
        names.retain(|_, sent| now.saturating_duration_since(sent.last) < REMEMBERED);
    }

    pub fn get(&self, name: &AppName) -> Option<SentAs> {
        self.names.lock().get(name).copied()
    }

    pub fn contains(&self, name: &AppName) -> bool {
        self.names.lock().contains_key(name)
    }

    /// Notes the generation that the node says it runs; returns the highest one since the last push.
    pub fn observe(&self, name: &AppName, generation: i64) -> i64 {
        match self.names.lock().get_mut(name) {
            Some(sent) => {
                sent.highest_observed = sent.highest_observed.max(generation);
                sent.highest_observed
            }
            None => generation,
        }
    }
}
