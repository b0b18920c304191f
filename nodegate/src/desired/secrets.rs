//! The Secrets and SecretStores of the fleet, and which of them a node is sent.
//!
//! A node is sent a Secret if an Application names it that the node is sent too, of the same namespace, in a volume or
//! in a variable; and a SecretStore if such a Secret names it. Nothing else: not what Applications of other nodes use,
//! and not what a job used that has ended.
//!
//! All of them are kept, sealed as they come. Only of those that are in use is more looked at than the name, and
//! nothing is opened here ([`super::opened`]). Who uses a Secret is known, so that a change of it reaches the nodes that
//! have it and no other. A change counts when a node could tell: the contents, the type, and the annotations that say
//! where values are fetched from, which move no generation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::secret::{STORE_ANNOTATION, TYPE_VAULT};
use horchestra_core::kinds::secret_store::SecretStore;
use horchestra_core::sealed::CLEAR_ANNOTATIONS;
use horchestra_store::Entry;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::form::{Form, without_bookkeeping};

/// How nodes log in to a store that wants to know the workload.
const BY_WORKLOAD: &str = "kubernetes";

/// What makes two pushes of a Secret differ for the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSignature {
    pub key: Key,
    uid: Uuid,
    generation: i64,
    /// Says whether the contents are the same, and nothing else about them.
    contents: String,
    type_: String,
    sources: BTreeMap<String, String>,
}

impl SecretSignature {
    /// The store that a node fetches the values from.
    fn store(&self) -> Option<Key> {
        let name = self.sources.get(STORE_ANNOTATION).filter(|_| self.type_ == TYPE_VAULT)?;
        Some(Key::namespaced(Kind::SecretStore, self.key.namespace.as_str(), name.as_str()))
    }
}

/// A stored Secret.
#[derive(Debug)]
pub struct HeldSecret {
    pub entry: Arc<Entry>,
    signature: OnceLock<Arc<SecretSignature>>,
}

/// A stored SecretStore.
#[derive(Debug)]
pub struct HeldStore {
    entry: Arc<Entry>,
    facts: OnceLock<StoreFacts>,
}

#[derive(Debug)]
struct StoreFacts {
    /// As nodes are sent it.
    bytes: Bytes,
    signature: StoreSignature,
    by_workload: bool,
}

/// What makes two pushes of a SecretStore differ: whatever it says. It holds no value that would be secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSignature {
    key: Key,
    uid: Uuid,
    says: Bytes,
}

/// What the Applications of a node use, as of one moment.
#[derive(Debug, Default)]
pub struct Supplies {
    /// In the order of their keys.
    pub secrets: Vec<Arc<HeldSecret>>,
    /// Those that the Secrets name.
    stores: BTreeMap<Key, Arc<HeldStore>>,
}

/// A token that an Application is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedToken {
    pub namespace: String,
    pub name: String,
    pub uid: Uuid,
    pub audience: String,
}

impl HeldSecret {
    fn new(entry: &Arc<Entry>) -> Arc<HeldSecret> {
        Arc::new(HeldSecret { entry: Arc::clone(entry), signature: OnceLock::new() })
    }

    pub fn signature(&self) -> &Arc<SecretSignature> {
        self.signature.get_or_init(|| Arc::new(signature(&self.entry)))
    }
}

impl HeldStore {
    fn new(entry: &Arc<Entry>) -> Arc<HeldStore> {
        Arc::new(HeldStore { entry: Arc::clone(entry), facts: OnceLock::new() })
    }

    fn facts(&self) -> &StoreFacts {
        self.facts.get_or_init(|| store_facts(&self.entry))
    }

    pub fn bytes(&self) -> Bytes {
        self.facts().bytes.clone()
    }

    pub fn signature(&self) -> StoreSignature {
        self.facts().signature.clone()
    }
}

impl Supplies {
    /// The stores that these Secrets name.
    pub fn stores_of(&self, secrets: &[Arc<HeldSecret>]) -> Vec<Arc<HeldStore>> {
        let named: BTreeSet<Key> = secrets.iter().filter_map(|secret| secret.signature().store()).collect();
        named.iter().filter_map(|key| self.stores.get(key).cloned()).collect()
    }

    /// The tokens that Applications are to have when these Secrets are sent, in a fixed order: one for each audience
    /// of a volume, and one to log in with where a store wants to know the workload.
    pub fn tokens(&self, forms: &[Arc<Form>], secrets: &[Arc<HeldSecret>]) -> Vec<WantedToken> {
        let by_workload: BTreeSet<&Key> = secrets
            .iter()
            .filter(|secret| {
                let store = secret.signature().store().and_then(|key| self.stores.get(&key));
                store.is_some_and(|store| store.facts().by_workload)
            })
            .map(|secret| &secret.entry.key)
            .collect();
        let mut tokens = Vec::new();
        for form in forms {
            let mut audiences: BTreeSet<&str> = form.uses.audiences.iter().map(String::as_str).collect();
            if form.secrets().any(|key| by_workload.contains(&key)) {
                audiences.insert(horchestra_auth::tokens::VAULT_AUDIENCE);
            }
            tokens.extend(audiences.into_iter().map(|audience| WantedToken {
                namespace: form.key.namespace.clone(),
                name: form.key.name.clone(),
                uid: form.signature.uid,
                audience: audience.to_owned(),
            }));
        }
        tokens.sort_by_cached_key(|token| {
            (format!("{}_{}", token.namespace, token.name), token.audience.clone())
        });
        tokens
    }
}

/// All of them, and who uses which.
#[derive(Default)]
pub(super) struct Secrets {
    secrets: BTreeMap<Key, Arc<HeldSecret>>,
    stores: BTreeMap<Key, Arc<HeldStore>>,
    /// By Secret, whether it exists or not: the Applications that nodes are sent and that name it.
    users: HashMap<Key, BTreeSet<Key>>,
}

impl Secrets {
    /// Takes a Secret in (`None`: it is gone); answers the Applications whose nodes have to hear of it.
    pub fn put(&mut self, key: &Key, entry: Option<&Arc<Entry>>) -> Vec<Key> {
        let after = entry.map(HeldSecret::new);
        let before = match &after {
            Some(secret) => self.secrets.insert(key.clone(), Arc::clone(secret)),
            None => self.secrets.remove(key),
        };
        let Some(users) = self.users.get(key) else { return Vec::new() };
        let same = match (before, after) {
            (Some(before), Some(after)) => before.signature() == after.signature(),
            (before, after) => before.is_none() && after.is_none(),
        };
        if same { Vec::new() } else { users.iter().cloned().collect() }
    }

    /// The same of a SecretStore.
    pub fn put_store(&mut self, key: &Key, entry: Option<&Arc<Entry>>) -> Vec<Key> {
        let after = entry.map(HeldStore::new);
        let before = match &after {
            Some(store) => self.stores.insert(key.clone(), Arc::clone(store)),
            None => self.stores.remove(key),
        };
        let mut users = BTreeSet::new();
        for (secret, applications) in &self.users {
            let names_it = |secret: &Arc<HeldSecret>| secret.signature().store().as_ref() == Some(key);
            if secret.namespace == key.namespace && self.secrets.get(secret).is_some_and(names_it) {
                users.extend(applications.iter().cloned());
            }
        }
        let same = match (before, after) {
            _ if users.is_empty() => true,
            (Some(before), Some(after)) => before.signature() == after.signature(),
            (before, after) => before.is_none() && after.is_none(),
        };
        if same { Vec::new() } else { users.into_iter().collect() }
    }

    /// A node is sent this Application from now on.
    pub fn used_by(&mut self, form: &Form) {
        for secret in form.secrets() {
            self.users.entry(secret).or_default().insert(form.key.clone());
        }
    }

    /// No node is sent it any more.
    pub fn unused_by(&mut self, form: &Form) {
        for secret in form.secrets() {
            if let Some(users) = self.users.get_mut(&secret) {
                users.remove(&form.key);
                if users.is_empty() {
                    self.users.remove(&secret);
                }
            }
        }
    }

    /// What these Applications use.
    pub fn supplies(&self, forms: &[Arc<Form>]) -> Supplies {
        let named: BTreeSet<Key> = forms.iter().flat_map(|form| form.secrets()).collect();
        let secrets: Vec<Arc<HeldSecret>> =
            named.iter().filter_map(|key| self.secrets.get(key).cloned()).collect();
        let stores = secrets.iter().filter_map(|secret| {
            let key = secret.signature().store()?;
            self.stores.get(&key).map(|store| (key, Arc::clone(store)))
        });
        Supplies { stores: stores.collect(), secrets }
    }
}

/// The part of a stored Secret that everybody may read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Clear {
    metadata: ClearMetadata,
    #[serde(rename = "type")]
    type_: Value,
    sealed: ClearSeal,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClearMetadata {
    annotations: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClearSeal {
    digest: String,
}

fn signature(entry: &Entry) -> SecretSignature {
    let clear: Clear = serde_json::from_slice(&entry.body).unwrap_or_default();
    let annotations = clear.metadata.annotations.as_object().into_iter().flatten();
    let sources = annotations.filter(|(name, _)| name.starts_with(CLEAR_ANNOTATIONS));
    // Without a digest every version is another one.
    let contents = Some(clear.sealed.digest).filter(|digest| !digest.is_empty());
    SecretSignature {
        key: entry.key.clone(),
        uid: entry.uid,
        generation: entry.generation,
        contents: contents.unwrap_or_else(|| entry.revision.to_string()),
        type_: clear.type_.as_str().unwrap_or_default().to_owned(),
        sources: sources
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect(),
    }
}

fn store_facts(entry: &Entry) -> StoreFacts {
    let wire = |entry: &Entry| {
        let mut object = entry.object().ok()?;
        without_bookkeeping(&mut object);
        let bytes = Bytes::from(Value::Object(object.0.clone()).to_string());
        object.metadata_mut().remove("resourceVersion");
        Some((bytes, Bytes::from(Value::Object(object.0).to_string())))
    };
    // What does not decode here, agents do not decode either.
    let (bytes, says) = wire(entry).unwrap_or_else(|| (entry.encoded(), entry.body.clone()));
    let by_workload = entry.typed::<SecretStore>().is_ok_and(|store| store.spec.auth.method == BY_WORKLOAD);
    let signature = StoreSignature { key: entry.key.clone(), uid: entry.uid, says };
    StoreFacts { bytes, signature, by_workload }
}
