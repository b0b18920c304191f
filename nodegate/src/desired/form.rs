//! One Application as its node is sent it.
//!
//! An agent skips, silently, what it cannot decode, and tears down what a push does not name. So an object
//! that an agent would not decode must never be sent: here it is judged by the rules that agents are known
//! to have, which are older than ours and not ours to relax (a guard on number-like literals wherever
//! amounts are written; an empty text in such a place makes some agents fail outright).
//!
//! The copy that is sent differs from the stored object: bookkeeping that only clients need is left out; a
//! retry count of an earlier generation is set to zero, since agents count on from it; a grace period given
//! with the deletion takes the place of the one in the spec, the only one that agents look at.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::{Application, DEFAULT_AUDIENCE, VolumeType};
use horchestra_core::object::Object;
use horchestra_core::quantity::literal_out_of_range;
use horchestra_store::{Entry, Revision};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Where kubectl keeps what was applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What makes two pushes of an Application differ for the node. Status, labels and annotations do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub uid: Uuid,
    pub generation: i64,
    pub deleting: bool,
    pub frozen: bool,
    /// Grace period given with the deletion, in seconds.
    pub grace: Option<i64>,
}

/// What an Application uses that has to be sent along with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Names of Secrets, in volumes and in variables, needed or optional.
    pub secrets: BTreeSet<String>,
    /// Audiences of its token volumes.
    pub audiences: BTreeSet<String>,
}

impl Uses {
    fn of(application: &Application) -> Uses {
        let spec = &application.spec;
        let of_type = |wanted: VolumeType| {
            spec.volumes.iter().map(|mount| &mount.volume).filter(move |volume| volume.type_ == wanted)
        };
        let in_variables = spec.env.iter().filter_map(|entry| Some(&entry.secret_ref.as_ref()?.name));
        let secrets = of_type(VolumeType::Secret).map(|volume| &volume.name).chain(in_variables);
        let audience = |named: &str| if named.is_empty() { DEFAULT_AUDIENCE } else { named }.to_owned();
        Uses {
            secrets: secrets.filter(|name| !name.is_empty()).cloned().collect(),
            audiences: of_type(VolumeType::Token).map(|volume| audience(&volume.audience)).collect(),
        }
    }
}

/// An Application that can be sent.
#[derive(Debug)]
pub struct Form {
    pub key: Key,
    pub signature: Signature,
    pub uses: Uses,
    /// It is to have a network of its own.
    pub isolated: bool,
    entry: Arc<Entry>,
    bytes: OnceLock<Bytes>,
}

/// Why an agent would not decode an Application.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecodable {
    #[error("it does not have the shape of an Application: {0}")]
    Shape(String),
    #[error("its uid is not written as agents expect")]
    Uid,
    #[error("{0} holds a value that agents refuse")]
    Literal(String),
}

/// What a stored Application is to its node.
#[derive(Debug)]
pub enum Judged {
    Send(Arc<Form>),
    /// Ran to its end: the node is to hold nothing of it any more.
    Finished,
}

/// Judges a stored Application.
pub fn judge(entry: &Arc<Entry>) -> Result<Judged, Undecodable> {
    let application = entry.typed::<Application>().map_err(|error| Undecodable::Shape(error.to_string()))?;
    if application.is_finished() && !entry.deleting {
        return Ok(Judged::Finished);
    }
    let object = entry.object().map_err(|error| Undecodable::Shape(error.to_string()))?;
    if object.uid() != entry.uid.as_hyphenated().to_string() {
        return Err(Undecodable::Uid);
    }
    check_literals(&object)?;
    let grace = application.metadata.deletion_grace_period_seconds.filter(|_| entry.deleting);
    Ok(Judged::Send(Arc::new(Form {
        key: entry.key.clone(),
        signature: Signature {
            uid: entry.uid,
            generation: entry.generation,
            deleting: entry.deleting,
            frozen: application.spec.frozen,
            grace,
        },
        uses: Uses::of(&application),
        isolated: application.spec.host_network == Some(false),
        entry: Arc::clone(entry),
        bytes: OnceLock::new(),
    })))
}

impl Form {
    /// The bytes for the wire, made once.
    pub fn bytes(&self) -> Bytes {
        self.bytes.get_or_init(|| wire_bytes(&self.entry, &self.signature)).clone()
    }

    /// The revision of the last change to anything but the status.
    pub fn core_revision(&self) -> Revision {
        self.entry.core_revision
    }

    /// The Secrets that it names.
    pub fn secrets(&self) -> impl Iterator<Item = Key> {
        let namespace = self.key.namespace.as_str();
        self.uses.secrets.iter().map(move |name| Key::namespaced(Kind::Secret, namespace, name.as_str()))
    }

    /// This form with the deletion mark of a later version of the object that cannot be sent itself.
    pub fn deleted_like(&self, later: &Entry) -> Form {
        let grace = later
            .object()
            .ok()
            .and_then(|object| object.at(&["metadata", "deletionGracePeriodSeconds"])?.as_i64());
        let signature = Signature { deleting: true, grace, ..self.signature.clone() };
        let bytes = OnceLock::new();
        if let (Ok(mut object), Ok(later)) = (self.entry.object(), later.object()) {
            object.set_metadata("deletionTimestamp", later.str_at(&["metadata", "deletionTimestamp"]));
            let _ = bytes.set(encode(object, &signature));
        }
        Form {
            key: self.key.clone(),
            signature,
            uses: self.uses.clone(),
            isolated: self.isolated,
            entry: Arc::clone(&self.entry),
            bytes,
        }
    }
}

fn wire_bytes(entry: &Entry, signature: &Signature) -> Bytes {
    match entry.object() {
        Ok(object) => encode(object, signature),
        // It was decoded when it was judged; should that ever not hold, the stored bytes are the truth.
        Err(_) => entry.encoded(),
    }
}

fn encode(mut object: Object, signature: &Signature) -> Bytes {
    without_bookkeeping(&mut object);
    let observed = object.at(&["status", "observedGeneration"]).and_then(Value::as_i64).unwrap_or(0);
    if observed != signature.generation
        && let Some(status) = member(&mut object.0, "status")
        && status.contains_key("attempts")
    {
        status.insert("attempts".to_owned(), json!(0));
    }
    if let Some(spec) = member(&mut object.0, "spec") {
        for mount in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(volume) = mount.get_mut("volume").and_then(Value::as_object_mut) {
                volume.retain(|_, value| value.as_str() != Some(""));
            }
        }
        if let Some(grace) = signature.grace
            && let Some(lifecycle) =
                spec.entry("lifecycle").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
        {
            lifecycle.insert("terminationGracePeriodSeconds".to_owned(), json!(grace));
        }
    }
    Bytes::from(Value::Object(object.0).to_string())
}

/// Takes out what only clients need.
pub(super) fn without_bookkeeping(object: &mut Object) {
    let metadata = object.metadata_mut();
    metadata.remove("managedFields");
    let mut emptied = false;
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        emptied = annotations.remove(LAST_APPLIED).is_some() && annotations.is_empty();
    }
    if emptied {
        metadata.remove("annotations");
    }
}

fn member<'a>(object: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(name).and_then(Value::as_object_mut)
}

/// Every scalar in the places where agents guard amounts.
fn check_literals(object: &Object) -> Result<(), Undecodable> {
    for list in ["requests", "limits"] {
        if let Some(amounts) = object.at(&["spec", "resources", list]).and_then(Value::as_object) {
            check_members(amounts, true, || format!("spec.resources.{list}"))?;
        }
    }
    let volumes = object.at(&["spec", "volumes"]).and_then(Value::as_array);
    for (at, mount) in volumes.into_iter().flatten().enumerate() {
        if let Some(volume) = mount.get("volume").and_then(Value::as_object) {
            // Empty texts are left out of what is sent.
            check_members(volume, false, || format!("spec.volumes[{at}].volume"))?;
        }
    }
    Ok(())
}

pub(super) fn check_members(
    members: &Map<String, Value>,
    empty_is_bad: bool,
    path: impl Fn() -> String,
) -> Result<(), Undecodable> {
    for (name, value) in members {
        let bad = match value {
            Value::String(text) => (empty_is_bad && text.is_empty()) || literal_out_of_range(text),
            Value::Number(number) => literal_out_of_range(&number.to_string()),
            _ => false,
        };
        if bad {
            return Err(Undecodable::Literal(format!("{}.{name}", path())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use horchestra_core::kind::Kind;
    use horchestra_core::object;
    use horchestra_store::{Draft, Index};
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "7b0c8a52-94ad-4f0e-8a3f-0d9f6f0c1a11";

    fn entry(generation: i64, extra_metadata: Value, spec: Value, status: Value) -> Arc<Entry> {
        let mut metadata = json!({"name": "web", "namespace": "team", "uid": UID, "generation": generation});
        for (name, value) in extra_metadata.as_object().unwrap() {
            metadata[name] = value.clone();
        }
        let object =
            Object::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
        Arc::new(Entry::new(
            Draft {
                key: object.key(Kind::Application),
                uid: UID.parse().unwrap(),
                generation,
                deleting: object.is_deleting(),
                body: object::encode(Kind::Application, &object),
                managed: None,
                index: Index::default(),
                columns: Default::default(),
                edges: Vec::new(),
            },
            9,
            9,
        ))
    }

    fn sent(entry: &Arc<Entry>) -> Value {
        let Ok(Judged::Send(form)) = judge(entry) else { panic!("to be sent") };
        serde_json::from_slice(&form.bytes()).unwrap()
    }

    #[test]
    fn what_is_sent_is_the_object_without_bookkeeping() {
        let metadata = json!({
            "annotations": {LAST_APPLIED: "{}", "note": "x"}, "labels": {"a": "b"}, "managedFields": [{}],
        });
        let entry =
            entry(3, metadata, json!({"image": "nginx"}), json!({"observedGeneration": 3, "attempts": 2}));
        assert_eq!(
            sent(&entry),
            json!({
                "apiVersion": "horchestra.io/v1", "kind": "Application",
                "metadata": {
                    "name": "web", "namespace": "team", "uid": UID, "generation": 3, "resourceVersion": "9",
                    "labels": {"a": "b"}, "annotations": {"note": "x"},
                },
                "spec": {"image": "nginx"},
                "status": {"observedGeneration": 3, "attempts": 2},
            })
        );
    }

    #[test]
    fn an_edited_job_starts_with_a_fresh_retry_budget() {
        let job = json!({"image": "job", "lifecycle": {"restartPolicy": "Never", "backoffLimit": 2}});
        let status = json!({"phase": "Failed", "observedGeneration": 1, "attempts": 3});
        assert!(matches!(judge(&entry(1, json!({}), job.clone(), status.clone())), Ok(Judged::Finished)));
        let edited = entry(2, json!({}), job, status);
        assert_eq!(sent(&edited)["status"]["attempts"], 0);
    }

    #[test]
    fn which_outcomes_withhold() {
        let service = json!({"image": "x", "lifecycle": {"restartPolicy": "Always"}});
        let job = json!({"image": "x", "lifecycle": {"restartPolicy": "Never"}});
        let retried = json!({"image": "x", "lifecycle": {"restartPolicy": "Never", "backoffLimit": 2}});
        let deleted = json!({"deletionTimestamp": "2030-01-01T00:00:00Z"});
        let none = json!({});
        for (spec, metadata, phase, attempts, withheld) in [
            (&job, &none, "Succeeded", 1, true),
            (&job, &none, "Failed", 1, true),
            (&job, &none, "Failed", 0, true),
            (&job, &none, "Running", 1, false),
            (&job, &none, "", 0, false),
            (&service, &none, "Failed", 0, false),
            (&retried, &none, "Failed", 2, false),
            (&retried, &none, "Failed", 3, true),
            (&job, &deleted, "Succeeded", 1, false),
        ] {
            let status = json!({"phase": phase, "attempts": attempts, "observedGeneration": 1});
            let judged = judge(&entry(1, metadata.clone(), spec.clone(), status)).unwrap();
            assert_eq!(matches!(judged, Judged::Finished), withheld, "{phase} after {attempts} of {spec}");
        }
    }

    #[test]
    fn a_grace_period_given_with_the_deletion_is_the_one_that_counts() {
        let metadata = json!({"deletionTimestamp": "2030-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5});
        let spec = json!({"image": "x", "lifecycle": {"terminationGracePeriodSeconds": 30}});
        let sent = sent(&entry(1, metadata, spec, json!({})));
        assert_eq!(sent["spec"]["lifecycle"]["terminationGracePeriodSeconds"], 5);
    }

    #[test]
    fn what_agents_would_refuse_is_found_before_it_is_sent() {
        let long = "1".repeat(33);
        for (spec, bad) in [
            (json!({"image": "x", "resources": {"requests": {"cpu": "1e-100000000"}}}), true),
            (json!({"image": "x", "resources": {"limits": {"gpu": long}}}), true),
            (json!({"image": "x", "resources": {"limits": {"gpu": ""}}}), true),
            (json!({"image": "x", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}), false),
            (json!({"image": 7}), true),
            (volume(json!({"type": "tmpfs", "size": "1e99"})), true),
            (volume(json!({"type": "pv", "name": "1e99"})), true),
            (volume(json!({"type": "pv", "name": "data"})), false),
        ] {
            let judged = judge(&entry(1, json!({}), spec.clone(), json!({})));
            assert_eq!(judged.is_err(), bad, "{spec}: {judged:?}");
        }
        let unnamed = entry(1, json!({}), volume(json!({"type": "pv", "name": ""})), json!({}));
        assert_eq!(sent(&unnamed)["spec"]["volumes"][0]["volume"], json!({"type": "pv"}), "empty is absent");
    }

    fn volume(volume: Value) -> Value {
        json!({"image": "x", "volumes": [{"mountPath": "/data", "volume": volume}]})
    }

    #[test]
    fn a_last_good_form_can_still_be_deleted() {
        let good = entry(1, json!({}), json!({"image": "x"}), json!({}));
        let Ok(Judged::Send(form)) = judge(&good) else { panic!("to be sent") };
        let metadata = json!({"deletionTimestamp": "2030-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7});
        let later = entry(2, metadata, json!({"image": 7}), json!({}));
        let form = form.deleted_like(&later);
        let sent: Value = serde_json::from_slice(&form.bytes()).unwrap();
        assert_eq!(sent["metadata"]["deletionTimestamp"], "2030-01-01T00:00:00Z");
        assert_eq!((sent["metadata"]["generation"].as_i64(), form.signature.deleting), (Some(1), true));
        assert_eq!(sent["spec"]["lifecycle"]["terminationGracePeriodSeconds"], 7);
    }

    proptest! {
        /// Whatever is in there, judging answers, and what is sent keeps the guarded places clean.
        #[test]
        fn judging_never_panics(text in "\\PC{0,40}", number in any::<f64>()) {
            let spec = json!({
                "image": "x",
                "resources": {"requests": {"cpu": text, "x": number}},
                "volumes": [{"mountPath": "/x", "volume": {"type": "pv", "name": text}}],
            });
            if let Ok(Judged::Send(form)) = judge(&entry(1, json!({}), spec, json!({}))) {
                let sent: Value = serde_json::from_slice(&form.bytes()).unwrap();
                prop_assert!(!sent.to_string().contains("\"\""));
            }
        }
    }
}
