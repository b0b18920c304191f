//! The door that takes finalizers off what is being deleted.
//!
//! Whoever puts a finalizer on an object promises to come back, clean up and take it off again. A controller
//! that was uninstalled or a node that burnt down never does, and the object waits for ever. This door breaks
//! the wait without asking them.
//!
//! * **Who**: members of `system:masters`, whatever else was granted to others. It overrules a promise that
//!   others rely on, so it is no permission to hand out with a role.
//! * **What**: the finalizers that are named; without names, all but those of the system. Those have to be
//!   named one by one, and the answer warns of what nobody has cleaned up then. With the last finalizer the
//!   object is gone.
//! * **When**: only while the object is being deleted. A finalizer of a foreign domain on a live object can be
//!   taken out by anybody who may write it, and one of the system would be put back by the next write.
//!
//! What it does not do: clean up. A workload whose node is cut off goes on there until the node is back and
//! learns that it is no longer wanted.

use horchestra_core::doors::Door;
use horchestra_core::kind::Key;
use horchestra_core::metadata::is_system_finalizer;
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::Class;

use super::Edit;
use crate::admission::{self, CHILD_TEARDOWN, NODE_TEARDOWN};
use crate::caller::RequestContext;
use crate::placement;
use crate::request::{Order, WriteOptions, Written};
use crate::service::Service;

impl Service {
    pub(super) async fn finalize(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        if !context.caller.is_master() {
            let why = "only members of system:masters take finalizers off for others";
            return Err(Status::forbidden(key.kind, &key.name, why));
        }
        // Finalizers are in the clear, so a Secret can be let go without its keys.
        self.change_through(context, Door::Finalize, key, order, options, |object, warnings| {
            if !object.is_deleting() {
                let why = "it is not being deleted, so nothing holds it up; delete it first";
                return Err(Status::conflict(key.kind, &key.name, why));
            }
            take_off(object, order.finalizers.as_deref(), warnings);
            Ok(if object.finalizers().is_empty() { Edit::Erase } else { Edit::Write(Class::Core) })
        })
        .await
    }
}

/// Takes the finalizers off and says what that means.
fn take_off(object: &mut Object, names: Option<&[String]>, warnings: &mut Vec<String>) {
    let present: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    for finalizer in &present {
        let system = is_system_finalizer(finalizer);
        match names {
            None if system => {
                warnings.push(format!(
                    "\"{finalizer}\" belongs to the system and stays; name it to take it off as well"
                ));
                continue;
            }
            Some(names) if !names.contains(finalizer) => continue,
            _ => {}
        }
        if system {
            warnings.push(format!("\"{finalizer}\" was taken off: {}", left_undone(object, finalizer)));
        }
        admission::set_finalizer(object, finalizer, false);
    }
    let strangers: Vec<&str> =
        names.unwrap_or_default().iter().filter(|name| !present.contains(name)).map(String::as_str).collect();
    if !strangers.is_empty() {
        warnings.push(format!("there is no finalizer {} on it", strangers.join(", ")));
    }
}

/// What its holder has not seen to.
fn left_undone(object: &Object, finalizer: &str) -> String {
    match finalizer {
        NODE_TEARDOWN => format!(
            "node \"{}\" has not said that nothing of it runs any more, and what runs there goes on until the \
             node hears of this",
            placement::node_of(object)
        ),
        CHILD_TEARDOWN => "children of the set may still be there".to_owned(),
        _ => "what it stood for was not waited for".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_named_goes_and_what_is_the_systems_only_when_named() {
        let (own, other, system) = ("a.b/own", "a.b/other", NODE_TEARDOWN);
        for (names, left, warnings) in [
            (None, vec![system], vec!["stays"]),
            (Some(vec![own]), vec![system, other], vec![]),
            (Some(vec![system]), vec![own, other], vec!["node \"n1\" has not said"]),
            (Some(vec![own, other, system]), vec![], vec!["was taken off"]),
            (Some(vec!["a.b/ghost"]), vec![system, own, other], vec!["no finalizer a.b/ghost"]),
            (Some(vec![]), vec![system, own, other], vec![]),
        ] {
            let mut object = Object::from_value(json!({
                "metadata": {"finalizers": [system, own, other]},
                "spec": {"placement": {"nodeName": "n1"}},
            }))
            .unwrap();
            let named: Option<Vec<String>> =
                names.clone().map(|names: Vec<&str>| names.into_iter().map(str::to_owned).collect());
            let mut said = Vec::new();
            take_off(&mut object, named.as_deref(), &mut said);
            assert_eq!(object.finalizers(), left, "{names:?}");
            assert_eq!(said.len(), warnings.len(), "{names:?}: {said:?}");
            assert!(said.iter().zip(warnings).all(|(text, part)| text.contains(part)), "{said:?}");
        }
    }
}
