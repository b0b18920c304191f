//! Owner references: which objects an object belongs to, as far as that can be known here.
//!
//! A client may write what it likes into `metadata.ownerReferences`, and nothing of it is refused. But an object
//! is only ever deleted for the sake of an owner that can be told for sure: the reference is complete, names one
//! of our kinds, and an object of the place where it points could exist: the namespace of the dependent for
//! kinds that live in one, no namespace for the others. All other references say nothing, neither that their
//! owner is there nor that it is gone.

use serde_json::Value;

use crate::kind::{Key, Kind};
use crate::metadata::ORPHAN;
use crate::object::Object;

/// A reference that can be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Where the owner is, or was.
    pub key: Key,
    /// Which object of that name it is, as the server writes uids.
    pub uid: String,
    /// The owner is the one that runs the object.
    pub controller: bool,
    /// A foreground deletion of the owner waits for the object.
    pub blocks: bool,
}

/// The owners of an object, one for each reference; `None` where nothing can be said.
pub fn owners(key: &Key, object: &Object) -> Vec<Option<Owner>> {
    let references = object.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    references.into_iter().flatten().map(|reference| owner(key, reference)).collect()
}

/// The owner that one reference names.
pub fn owner(dependent: &Key, reference: &Value) -> Option<Owner> {
    let text = |member: &str| reference.get(member).and_then(Value::as_str).filter(|text| !text.is_empty());
    let flag = |member: &str| reference.get(member) == Some(&Value::Bool(true));
    let (version, kind, name, uid) = (text("apiVersion")?, text("kind")?, text("name")?, text("uid")?);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = Kind::ALL
        .into_iter()
        .find(|candidate| candidate.group() == group && candidate.name() == kind && can_own(*candidate))?;
    if uid.parse::<uuid::Uuid>().ok()?.to_string() != uid {
        return None;
    }
    let key = match (kind.namespaced(), dependent.kind.namespaced()) {
        (true, true) => Key::namespaced(kind, dependent.namespace.as_str(), name),
        (true, false) => return None,
        (false, _) => Key::cluster(kind, name),
    };
    Some(Owner {
        key,
        uid: uid.to_owned(),
        controller: flag("controller"),
        blocks: flag("blockOwnerDeletion"),
    })
}

/// Whether deletions of objects of the kind are remembered for their dependents. Those of Events are not.
pub fn can_own(kind: Kind) -> bool {
    kind != Kind::Event
}

/// Whether what depends on an object with these finalizers is to outlive it.
pub fn leaves_orphans(object: &Object) -> bool {
    object.finalizers().contains(&ORPHAN)
}

/// Takes the references to these owners off an object; whether there were any.
pub fn disown(object: &mut Object, uids: &[String]) -> bool {
    let Some(references) = object.metadata_mut().get_mut("ownerReferences").and_then(Value::as_array_mut)
    else {
        return false;
    };
    let before = references.len();
    let named = |reference: &Value| reference.get("uid").and_then(Value::as_str).map(str::to_owned);
    references.retain(|reference| named(reference).is_none_or(|uid| !uids.contains(&uid)));
    let after = references.len();
    if after == 0 {
        object.metadata_mut().remove("ownerReferences");
    }
    after < before
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

    fn app() -> Key {
        Key::namespaced(Kind::Application, "shop", "web")
    }

    fn role() -> Key {
        Key::cluster(Kind::ClusterRole, "reader")
    }

    #[test]
    fn only_what_can_be_followed_is_an_owner() {
        let set = |members: Value| {
            let mut reference =
                json!({"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "s", "uid": UID});
            for (member, value) in members.as_object().unwrap() {
                reference[member] = value.clone();
            }
            reference
        };
        let found = Some(Key::namespaced(Kind::ApplicationSet, "shop", "s"));
        for (what, dependent, reference, expected) in [
            ("whole", app(), set(json!({})), found.clone()),
            ("another version", app(), set(json!({"apiVersion": "horchestra.io/v2"})), found.clone()),
            ("another group", app(), set(json!({"apiVersion": "apps/v1"})), None),
            ("no group", app(), set(json!({"apiVersion": "v1"})), None),
            ("a kind that nobody knows", app(), set(json!({"kind": "Thing"})), None),
            ("an Event", app(), set(json!({"apiVersion": "v1", "kind": "Event"})), None),
            ("without a name", app(), set(json!({"name": ""})), None),
            ("without a uid", app(), set(json!({"uid": null})), None),
            ("a uid that is none", app(), set(json!({"uid": "x"})), None),
            ("a uid in capitals", app(), set(json!({"uid": UID.to_uppercase()})), None),
            ("a name that is no text", app(), set(json!({"name": 7})), None),
            ("no object", app(), json!("s"), None),
            (
                "a cluster-scoped one",
                app(),
                set(json!({"kind": "Node"})),
                Some(Key::cluster(Kind::Node, "s")),
            ),
            ("one in a namespace of one in none", role(), set(json!({})), None),
            ("of two in none", role(), set(json!({"kind": "Node"})), Some(Key::cluster(Kind::Node, "s"))),
        ] {
            assert_eq!(owner(&dependent, &reference).map(|owner| owner.key), expected, "{what}");
        }
        let marks = owner(&app(), &set(json!({"controller": true, "blockOwnerDeletion": true}))).unwrap();
        assert!(marks.controller && marks.blocks);
        let odd = owner(&app(), &set(json!({"controller": "true"}))).unwrap();
        assert!(!odd.controller && !odd.blocks);
    }

    #[test]
    fn references_go_one_by_one_and_the_list_with_the_last() {
        let other = "11111111-0000-4000-8000-0123456789ab";
        let references = json!([{"uid": UID, "name": "a"}, {"uid": other}, {"name": "no uid"}]);
        let mut object = Object::from_value(json!({"metadata": {"ownerReferences": references}})).unwrap();
        assert!(!disown(&mut object, &["x".to_owned()]));
        assert!(disown(&mut object, &[UID.to_owned()]));
        let left = object.at(&["metadata", "ownerReferences"]).cloned();
        assert_eq!(left, Some(json!([{"uid": other}, {"name": "no uid"}])));
        let mut one = Object::from_value(json!({"metadata": {"ownerReferences": [{"uid": UID}]}})).unwrap();
        assert!(disown(&mut one, &[UID.to_owned()]));
        assert!(one.at(&["metadata", "ownerReferences"]).is_none());
        assert!(!disown(&mut one, &[UID.to_owned()]));
    }
}
