//! What is to be written: judged as a whole before any of it is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use horchestra_core::admit;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::registry::KindSpec;
use horchestra_core::status::Status;
use horchestra_store::{Draft, Entry, KnownAddress, Op, numbers};
use serde_json::Value;
use uuid::Uuid;

use super::dump::Dump;
use crate::admission::{Claimed, claims_of};
use crate::write::draft::{columns, draft, spec_of};

/// Kinds in the order in which they are written: what others speak of comes before them.
const ORDER: [Kind; 13] = [
    Kind::Namespace,
    Kind::Node,
    Kind::ClusterRole,
    Kind::ClusterRoleBinding,
    Kind::Role,
    Kind::RoleBinding,
    Kind::SecretStore,
    Kind::Secret,
    Kind::PersistentVolume,
    Kind::Service,
    Kind::ApplicationSet,
    Kind::Application,
    Kind::CertificateSigningRequest,
];

/// Members of the metadata that belong to the other control plane's storage.
const LEFT_OUT: [&str; 3] = ["resourceVersion", "managedFields", "selfLink"];

/// An object that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub object: String,
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

/// Items in the order in which they are to be committed.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub items: Vec<Vec<Op>>,
    pub present: usize,
    /// Addresses that workloads have, those that run first: whoever runs keeps what somebody else claims as well.
    pub addresses: Vec<KnownAddress>,
}

struct Judge<'a> {
    stored: HashMap<&'a Key, &'a Entry>,
    /// Who has a name already, of what was read.
    seen: HashSet<Key>,
    uids: HashMap<Uuid, Key>,
    namespaces: HashSet<&'a str>,
    /// Holders of values that are one object's alone, by space and value.
    holders: HashMap<(String, String), Key>,
    /// Holders of ranges that must not overlap, by space and the last number.
    ranges: BTreeMap<(String, i64), (i64, Key)>,
    faults: Vec<Fault>,
}

pub(super) fn plan(dump: &Dump, stored: &[Arc<Entry>]) -> Result<Plan, Vec<Fault>> {
    let stored: HashMap<&Key, &Entry> = stored.iter().map(|entry| (&entry.key, &**entry)).collect();
    let of_dump = dump.objects.iter().filter(|(kind, _)| *kind == Kind::Namespace);
    let namespaces = of_dump.map(|(_, object)| object.name());
    let there = stored.keys().filter(|key| key.kind == Kind::Namespace).map(|key| key.name.as_str());
    let namespaces = namespaces.chain(there).collect();
    let mut judge = Judge {
        stored,
        seen: HashSet::new(),
        uids: HashMap::new(),
        namespaces,
        holders: HashMap::new(),
        ranges: BTreeMap::new(),
        faults: Vec::new(),
    };
    let mut plan = Plan::default();
    for kind in ORDER {
        for (_, object) in dump.objects.iter().filter(|(of, _)| *of == kind) {
            let key = object.key(kind);
            match judge.judge(&key, object.clone()) {
                Ok(Some(mut items)) => plan.items.append(&mut items),
                Ok(None) => plan.present += 1,
                Err(why) => judge.faults.push(Fault { object: key.to_string(), why }),
            }
        }
    }
    let strangers = judge.stored.iter().filter(|(key, _)| !judge.seen.contains(**key));
    let strangers = strangers.filter(|(key, _)| !is_default(key) && key.kind != Kind::Event);
    let strangers: Vec<Fault> = strangers
        .map(|(key, _)| Fault {
            object: key.to_string(),
            why: "it is in the database and not in what is imported; an import needs a database of its own"
                .to_owned(),
        })
        .collect();
    judge.faults.extend(strangers);
    judge.faults.sort_by(|a, b| a.object.cmp(&b.object));
    plan.addresses = addresses(dump);
    if judge.faults.is_empty() { Ok(plan) } else { Err(judge.faults) }
}

fn addresses(dump: &Dump) -> Vec<KnownAddress> {
    let apps = dump.objects.iter().filter(|(kind, _)| *kind == Kind::Application);
    let mut known: Vec<(bool, KnownAddress)> = apps
        .filter(|(_, object)| object.at(&["spec", "hostNetwork"]).and_then(Value::as_bool) == Some(false))
        .filter_map(|(kind, object)| {
            let reported = object.str_at(&["status", "address"]);
            let address = reported.strip_suffix("/32").unwrap_or(reported).parse().ok()?;
            let uid = Uuid::parse_str(object.uid()).ok()?;
            let runs = object.str_at(&["status", "phase"]) == "Running";
            Some((!runs, KnownAddress { key: object.key(*kind), uid, address }))
        })
        .collect();
    known.sort_by_key(|(idle, _)| *idle);
    known.into_iter().map(|(_, known)| known).collect()
}

impl Judge<'_> {
    /// What has to be written for one object; `None`: it is there.
    fn judge(&mut self, key: &Key, mut object: Object) -> Result<Option<Vec<Vec<Op>>>, String> {
        if key.name.is_empty() {
            return Err("it has no name".to_owned());
        }
        if key.kind.namespaced() == key.namespace.is_empty() {
            let wrong = if key.kind.namespaced() { "has none" } else { "is in one" };
            return Err(format!("{} {wrong} of the namespaces", key.kind.name()));
        }
        let uid = Uuid::parse_str(object.uid())
            .map_err(|_| "it has no uid; print objects with `kubectl get … -o json`".to_owned())?;
        if !self.seen.insert(key.clone()) {
            return Err("it was read twice".to_owned());
        }
        if let Some(other) = self.uids.insert(uid, key.clone()) {
            return Err(format!("{other} has the same uid"));
        }
        if key.kind.namespaced() && !self.namespaces.contains(key.namespace.as_str()) {
            return Err(format!("there is no namespace {:?}", key.namespace));
        }
        let mut items = Vec::new();
        match self.stored.get(key) {
            Some(entry) if entry.uid == uid => return self.claim(key, &object, uid).map(|_| None),
            // It is as a new database comes; the one that is imported takes its place.
            Some(entry) if is_default(key) => {
                items.push(vec![Op::Delete { key: key.clone(), expect: entry.revision }]);
            }
            Some(entry) => {
                return Err(format!("another object of that name is in the database (uid {})", entry.uid));
            }
            None => {}
        }
        for member in LEFT_OUT {
            object.metadata_mut().remove(member);
        }
        if object.generation() < 1 {
            object.set_metadata("generation", 1);
        }
        let spec = spec_of(key.kind).map_err(text)?;
        name_oddities(spec, key, &object);
        let claim = self.claim(key, &object, uid)?;
        let mut ops = vec![Op::Create(stored(spec, key, &object).map_err(text)?)];
        ops.extend(claim);
        items.push(ops);
        Ok(Some(items))
    }

    /// What an object claims, judged against the objects before it.
    fn claim(&mut self, key: &Key, object: &Object, owner: Uuid) -> Result<Option<Op>, String> {
        let Some(Claimed { space, value, shared, apart }) = claims_of(key, object) else { return Ok(None) };
        if !shared && let Some(other) = self.holders.insert((space.clone(), value.clone()), key.clone()) {
            return Err(format!("{space} {value} is that of {other} as well"));
        }
        if let Some((first, last)) = numbers(&value).filter(|_| apart) {
            let next = self.ranges.range((space.clone(), first)..).next();
            if let Some(((_, _), (_, other))) =
                next.filter(|((of, _), (begins, _))| *of == space && *begins <= last)
            {
                return Err(format!("{space} {value} overlaps that of {other}"));
            }
            self.ranges.insert((space.clone(), last), (first, key.clone()));
        }
        Ok(Some(Op::Claim { space, value, owner, shared }))
    }
}

fn text(status: Status) -> String {
    status.message
}

fn is_default(key: &Key) -> bool {
    key.kind == Kind::Namespace && key.name == "default"
}

fn stored(spec: &KindSpec, key: &Key, object: &Object) -> Result<Draft, Status> {
    draft(spec, key, object, columns(spec, object), None)
}

/// What another control plane has stored is not refused for a rule of this one.
fn name_oddities(spec: &KindSpec, key: &Key, object: &Object) {
    if let Err(status) = admit::validate(spec, object, None) {
        tracing::warn!(object = %key, why = status.message, "imported though it would not be accepted today");
    }
}
