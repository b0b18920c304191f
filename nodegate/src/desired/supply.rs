//! What goes along with the Applications of a push: Secrets in the clear, stores, tokens.
//!
//! All of it belongs to one message and is chosen from one moment of the index. What cannot be had is not sent, and
//! what is sent instead is such that nothing that runs is touched by it: of an Application whose Secret does not open
//! its node is told in a way that makes it leave the Application alone (see [`super::rewrite`]), until the Secret opens.
//! So one broken Secret holds up those who use it and nobody else, and keys that have not arrived yet stop nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::Key;
use horchestra_proto::node::v1::WorkloadToken;
use horchestra_store::store::TokenForm;
use jiff::Timestamp;

use super::form::Form;
use super::rewrite::{Rewrite, wire};
use super::secrets::{SecretSignature, StoreSignature, Supplies, WantedToken};
use super::tokens::{Issued, TokenSignature};
use crate::gate::Gate;

/// What makes two pushes differ for the node, beside the Applications themselves.
#[derive(Debug, Default, PartialEq)]
pub struct SupplySignature {
    secrets: Vec<Arc<SecretSignature>>,
    closed: Vec<Arc<SecretSignature>>,
    stores: Vec<StoreSignature>,
    tokens: Vec<TokenSignature>,
    /// Token volumes are sent as Secrets.
    tokens_as_secrets: bool,
    /// The authorities in those.
    agent_ca: Option<Bytes>,
}

impl SupplySignature {
    pub fn has_tokens_of(&self, other: &SupplySignature) -> bool {
        self.tokens == other.tokens
    }
}

/// A part of a push.
#[derive(Default)]
pub struct Supply {
    pub applications: Vec<Bytes>,
    pub secrets: Vec<Bytes>,
    pub stores: Vec<Bytes>,
    pub tokens: Vec<WorkloadToken>,
    pub signature: SupplySignature,
    pub missing: Missing,
}

/// What could not be had, and what will not be good for ever.
#[derive(Debug, Default)]
pub struct Missing {
    /// Secrets that do not open, and why.
    pub unopened: Vec<(Key, String)>,
    /// Why workloads go without tokens.
    pub tokens: Option<String>,
    /// When the oldest token was made.
    pub oldest_token: Option<Timestamp>,
}

impl Missing {
    /// Something should be tried again.
    pub fn is_any(&self) -> bool {
        !self.unopened.is_empty() || self.tokens.is_some()
    }
}

/// How a node is served with tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenTerms {
    /// Tokens from before this moment are renewed.
    pub since: Timestamp,
    /// How token volumes are sent; `None`: as they are.
    pub form: Option<TokenForm>,
    /// `form` is the last word.
    pub decided: bool,
}

impl Default for TokenTerms {
    fn default() -> TokenTerms {
        TokenTerms { since: Timestamp::MIN, form: None, decided: false }
    }
}

/// Puts together what goes along with these Applications.
pub fn supply(
    gate: &Gate,
    node: &str,
    forms: &[Arc<Form>],
    supplies: &Supplies,
    terms: TokenTerms,
) -> Supply {
    let mut supply = Supply::default();
    let mut open = Vec::new();
    let mut closed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for secret in &supplies.secrets {
        match gate.opened.get(&gate.service, &secret.entry) {
            Ok(bytes) => {
                supply.secrets.push(bytes);
                supply.signature.secrets.push(Arc::clone(secret.signature()));
                open.push(Arc::clone(secret));
            }
            Err(why) => {
                let key = &secret.entry.key;
                closed.entry(&key.namespace).or_default().insert(key.name.clone());
                supply.signature.closed.push(Arc::clone(secret.signature()));
                supply.missing.unopened.push((key.clone(), why.to_string()));
            }
        }
    }
    for store in supplies.stores_of(&open) {
        supply.stores.push(store.bytes());
        supply.signature.stores.push(store.signature());
    }
    let salt = terms.form.filter(|form| form.as_secrets).map(|form| form.salt);
    supply.signature.tokens_as_secrets = salt.is_some();
    issue(gate, node, forms, supplies.tokens(forms, &open), terms, &mut supply);
    let written = |form: &Arc<Form>| {
        let needed = closed.get(form.key.namespace.as_str());
        wire(form, Rewrite { needed, tokens_as_secrets: salt })
    };
    supply.applications = forms.iter().map(written).collect();
    supply
}

fn issue(
    gate: &Gate,
    node: &str,
    forms: &[Arc<Form>],
    wanted: Vec<WantedToken>,
    terms: TokenTerms,
    supply: &mut Supply,
) {
    let Some(cache) = &gate.tokens.cache else { return };
    let count = wanted.len();
    let issued = Issued::of(cache, node, wanted, terms.since);
    if issued.failed > 0 {
        supply.missing.tokens = Some(format!("{} of {count} tokens could not be made", issued.failed));
        gate.metrics.tokens_failed.inc_by(issued.failed as u64);
    }
    supply.tokens = issued.on_the_wire();
    supply.signature.tokens = issued.signatures();
    supply.missing.oldest_token = issued.oldest();
    let Some(form) = terms.form.filter(|form| form.as_secrets) else { return };
    let mounting: BTreeSet<(uuid::Uuid, &str)> = forms
        .iter()
        .flat_map(|form| form.uses.audiences.iter().map(|audience| (form.signature.uid, audience.as_str())))
        .collect();
    if mounting.is_empty() {
        return;
    }
    match gate.tokens.agent_ca() {
        Some(ca) => {
            let mounted = |wanted: &WantedToken| mounting.contains(&(wanted.uid, wanted.audience.as_str()));
            supply.secrets.extend(issued.as_secrets(form.salt, &ca, mounted));
            supply.signature.agent_ca = Some(ca);
        }
        None => {
            let why =
                "its token volumes are sent as Secrets, and this gateway was started without --agent-ca";
            supply.missing.tokens = Some(why.to_owned());
        }
    }
}
