//! What is taken over of a node's report about itself.
//!
//! The report comes from another machine, so it is read member by member: what is not known is left out,
//! what makes no sense makes the whole report void, amounts are held to a ceiling, texts to a length. Left
//! out on purpose: the heartbeat (stamped by the receiver, kept elsewhere), what the node has given out
//! (changes with every workload, kept with the heartbeat), labels (derived here, so that a node cannot
//! attract work with labels of its choice) and conditions (verdicts of the control plane).

use horchestra_core::kinds::node::{Platform, derived_labels};
use horchestra_core::object::Object;
use horchestra_core::quantity::Quantity;
use horchestra_core::status::Status;
use serde_json::{Map, Value, json};

use crate::admission;
use crate::conditions;
use crate::request::DoorError;

/// 4096 cores.
const MOST_CPU_NANO: i64 = 4096 * 1_000_000_000;
/// 64 TiB.
const MOST_MEMORY: i64 = 64 << 40;
const LONGEST_TEXT: usize = 256;
const MOST_RUNTIMES: usize = 16;

/// Members of the status that a report replaces, absent ones included.
const REPORTED: [&str; 8] =
    ["capacity", "os", "ip", "ready", "runtimes", "platform", "routedNetwork", "labels"];

/// The members of a node's status that a report decides, cleaned.
pub(super) fn sanitize(name: &str, status: &Value) -> Result<Map<String, Value>, DoorError> {
    let reported = status.as_object().ok_or_else(|| void("status is not an object"))?;
    let mut clean = Map::new();
    clean.insert("capacity".to_owned(), capacity(reported.get("capacity"))?);
    clean.insert("ready".to_owned(), flag(reported, "ready")?.into());
    if flag(reported, "routedNetwork")? {
        clean.insert("routedNetwork".to_owned(), true.into());
    }
    for member in ["os", "ip"] {
        let text = text(reported.get(member), member)?;
        if !text.is_empty() {
            clean.insert(member.to_owned(), text.into());
        }
    }
    if let Some(ip) = clean.get("ip").and_then(Value::as_str)
        && !is_plausible_address(ip)
    {
        clean.remove("ip");
    }
    let runtimes = runtimes(reported.get("runtimes"))?;
    if !runtimes.is_empty() {
        clean.insert("runtimes".to_owned(), json!(runtimes));
    }
    let platform = platform(reported.get("platform"))?;
    clean.insert("labels".to_owned(), json!(derived_labels(name, platform.as_ref())));
    if let Some(platform) = platform {
        clean.insert("platform".to_owned(), json!(platform));
    }
    Ok(clean)
}

/// Puts a cleaned report into a Node.
pub(super) fn overwrite(object: &mut Object, reported: Map<String, Value>) {
    let status = conditions::status_mut(object);
    for member in REPORTED {
        status.remove(member);
    }
    status.remove("heartbeat");
    status.extend(reported);
    admission::ensure_node_status(object);
}

fn void(why: &str) -> DoorError {
    DoorError::Refused(Status::bad_request(format!("the report of the node is void: {why}")))
}

fn flag(reported: &Map<String, Value>, member: &str) -> Result<bool, DoorError> {
    match reported.get(member) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(void(&format!("{member} is not a boolean"))),
    }
}

fn text(value: Option<&Value>, member: &str) -> Result<String, DoorError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => {
            let mut end = text.len().min(LONGEST_TEXT);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            Ok(text[..end].replace('\0', "\u{fffd}"))
        }
        Some(_) => Err(void(&format!("{member} is not a text"))),
    }
}

fn capacity(value: Option<&Value>) -> Result<Value, DoorError> {
    let amounts = match value {
        None | Some(Value::Null) => return Ok(json!({})),
        Some(Value::Object(amounts)) => amounts,
        Some(_) => return Err(void("capacity is not an object")),
    };
    let mut clean = Map::new();
    if let Some(cpu) = amount(amounts.get("cpu"), "capacity.cpu")? {
        let nano = cpu.nano();
        let cpu = if nano > MOST_CPU_NANO { Quantity::from_nano(MOST_CPU_NANO) } else { cpu };
        clean.insert("cpu".to_owned(), cpu.to_string().into());
    }
    if let Some(memory) = amount(amounts.get("memory"), "capacity.memory")? {
        let memory = if memory.int() > MOST_MEMORY { Quantity::from_bytes(MOST_MEMORY) } else { memory };
        clean.insert("memory".to_owned(), memory.to_string().into());
    }
    Ok(Value::Object(clean))
}

/// An amount as text or bare number; zero is the same as none.
fn amount(value: Option<&Value>, member: &str) -> Result<Option<Quantity>, DoorError> {
    let literal = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(void(&format!("{member} is not an amount"))),
    };
    let quantity: Quantity = literal.parse().map_err(|_| void(&format!("{member} is not an amount")))?;
    if quantity.is_negative() {
        return Err(void(&format!("{member} is negative")));
    }
    Ok((!quantity.is_zero()).then_some(quantity))
}

fn runtimes(value: Option<&Value>) -> Result<Vec<String>, DoorError> {
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(void("runtimes is not a list")),
    };
    if list.len() > MOST_RUNTIMES {
        return Err(void("there are too many runtimes"));
    }
    let mut names = Vec::with_capacity(list.len());
    for item in list {
        let name = text(Some(item), "runtimes")?;
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn platform(value: Option<&Value>) -> Result<Option<Platform>, DoorError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(members)) => {
            let os = text(members.get("os"), "platform.os")?;
            let arch = text(members.get("arch"), "platform.arch")?;
            Ok((!os.is_empty() || !arch.is_empty()).then_some(Platform { os, arch }))
        }
        Some(_) => Err(void("platform is not an object")),
    }
}

/// Whether routes could lead there.
fn is_plausible_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok_and(|address| !address.is_unspecified() && !address.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_decides_its_members_and_no_others() {
        let report = json!({
            "capacity": {"cpu": "8", "memory": "16Gi", "disk": "1"}, "allocated": {"cpu": "1"},
            "os": "Linux", "ip": "10.0.0.7", "ready": true, "heartbeat": "2020-01-01T00:00:00Z",
            "runtimes": ["userns", "userns"], "platform": {"os": "linux", "arch": "amd64"},
            "routedNetwork": true, "labels": {"tier": "gold"}, "conditions": [{"type": "Ready"}], "odd": 1,
        });
        let clean = sanitize("node-1", &report).unwrap();
        assert_eq!(
            Value::Object(clean.clone()),
            json!({
                "capacity": {"cpu": "8", "memory": "16Gi"}, "os": "Linux", "ip": "10.0.0.7", "ready": true,
                "runtimes": ["userns"], "platform": {"os": "linux", "arch": "amd64"}, "routedNetwork": true,
                "labels": {"horchestra.io/hostname": "node-1", "horchestra.io/os": "linux",
                           "horchestra.io/arch": "amd64"},
            })
        );
        let mut node = Object::from_value(json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}], "os": "old", "runtimes": ["x"],
            "heartbeat": "x", "later": true,
        }}))
        .unwrap();
        let report = sanitize("node-1", &json!({"ready": true})).unwrap();
        overwrite(&mut node, report);
        assert_eq!(
            node.get("status").unwrap(),
            &json!({
                "conditions": [{"type": "Ready", "status": "True"}], "later": true, "ready": true,
                "capacity": {}, "allocated": {}, "labels": {"horchestra.io/hostname": "node-1"},
            })
        );
    }

    #[test]
    fn amounts_are_held_to_a_ceiling_and_nonsense_is_void() {
        let clean = sanitize("n", &json!({"capacity": {"cpu": 1e6, "memory": "1Ei"}})).unwrap();
        assert_eq!(clean["capacity"], json!({"cpu": "4096", "memory": "64Ti"}));
        for capacity in [
            json!({"cpu": "-1"}),
            json!({"cpu": ""}),
            json!({"memory": true}),
            json!([]),
            json!({"cpu": "1e-100000000"}),
        ] {
            assert!(sanitize("n", &json!({ "capacity": capacity })).is_err(), "{capacity}");
        }
        for status in [
            json!(null),
            json!([]),
            json!({"ready": "yes"}),
            json!({"runtimes": "x"}),
            json!({"platform": 1}),
        ] {
            assert!(sanitize("n", &status).is_err(), "{status}");
        }
    }

    #[test]
    fn addresses_that_lead_nowhere_are_left_out() {
        for (ip, kept) in
            [("10.0.0.7", true), ("::1", true), ("0.0.0.0", false), ("224.0.0.1", false), ("x", false)]
        {
            let clean = sanitize("n", &json!({ "ip": ip })).unwrap();
            assert_eq!(clean.contains_key("ip"), kept, "{ip}");
        }
    }
}
