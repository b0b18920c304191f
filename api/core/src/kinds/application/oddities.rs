//! What an Application may ask for though it will not get it. Nodes judge it when they start the workload; it was
//! always stored, so it is not refused here, but whoever writes it is told.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::{VolumeMount, VolumeType};
use crate::names::subdomain_fault;
use crate::object::Object;
use crate::values::relative_path_fault;

pub(super) fn application_oddities(object: &Object) -> Vec<String> {
    volume_oddities(object.get("spec"), "spec")
}

/// Those of the volumes of a spec, or of the common part of a set, which lies at `path`.
pub(crate) fn volume_oddities(spec: Option<&Value>, path: &str) -> Vec<String> {
    let mounts = spec.and_then(|spec| spec.get("volumes")).and_then(Value::as_array);
    let mut found = Vec::new();
    let mut paths = HashSet::new();
    for (index, mount) in mounts.into_iter().flatten().enumerate() {
        let Ok(mount) = VolumeMount::deserialize(mount) else { continue };
        let at = format!("{path}.volumes[{index}]");
        if !paths.insert(mount.mount_path.clone()) {
            found.push(format!("{at}.mountPath: an earlier volume is mounted at {:?} too", mount.mount_path));
        }
        let volume = &mount.volume;
        match volume.type_ {
            VolumeType::Pv => {
                let fault = relative_path_fault(&mount.sub_path).filter(|_| !mount.sub_path.is_empty());
                if let Some(fault) = fault {
                    found.push(format!("{at}.subPath: nodes refuse {:?}, it {fault}", mount.sub_path));
                }
                if !volume.name.is_empty() && subdomain_fault(&volume.name).is_some() {
                    found.push(format!(
                        "{at}.volume.name: no PersistentVolume can be called {:?}",
                        volume.name
                    ));
                }
            }
            VolumeType::Secret => {
                let nested = volume.items.iter().enumerate().filter(|(_, item)| item.path.contains('/'));
                found.extend(nested.map(|(item, to)| {
                    format!("{at}.volume.items[{item}].path: nodes refuse {:?}, it contains '/'", to.path)
                }));
            }
            VolumeType::Tmpfs | VolumeType::Token => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_nodes_will_not_do_is_told_by_its_place() {
        let pv = |name: &str, sub_path: &str| json!({"mountPath": "/a", "subPath": sub_path, "volume": {"type": "pv", "name": name}});
        let secret = |path: &str| {
            json!({"mountPath": "/s", "volume": {"type": "secret", "name": "s", "items": [
            {"key": "a", "path": "a"}, {"key": "b", "path": path}]}})
        };
        for (what, volumes, expected) in [
            ("nothing", json!(null), &[][..]),
            ("a folder of a volume", json!([pv("", "live/now")]), &[]),
            ("a file", json!([secret("b")]), &[]),
            ("a mount that does not read", json!([{"mountPath": 3}]), &[]),
            ("a way out of the volume", json!([pv("", "../x")]), &["spec.volumes[0].subPath"]),
            ("an absolute folder", json!([pv("data", "/x")]), &["spec.volumes[0].subPath"]),
            (
                "a folder of memory",
                json!([{"mountPath": "/a", "subPath": "/x", "volume": {"type": "tmpfs"}}]),
                &[],
            ),
            ("a name that is none", json!([pv("Data", "")]), &["spec.volumes[0].volume.name"]),
            ("a file in a folder", json!([secret("sub/b")]), &["spec.volumes[0].volume.items[1].path"]),
            ("one path twice", json!([pv("a", ""), pv("b", "")]), &["spec.volumes[1].mountPath"]),
            (
                "all at once",
                json!([pv("a", ""), pv("B", "/")]),
                &["spec.volumes[1].mountPath", "spec.volumes[1].subPath", "spec.volumes[1].volume.name"],
            ),
        ] {
            let found = volume_oddities(Some(&json!({"volumes": volumes})), "spec");
            let fields: Vec<&str> = found.iter().map(|text| text.split(':').next().unwrap_or("")).collect();
            assert_eq!(fields, expected, "{what}: {found:?}");
        }
    }
}
