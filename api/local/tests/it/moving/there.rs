//! The other control plane as it leaves things: files as its tools write them, objects as it stores and prints them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use horchestra_auth::identity::MASTERS;
use horchestra_auth::pki::{Authority, HostName, Issued, Lifetime, write_file};
use horchestra_core::values::encode_base64;
use serde_json::{Value, json};

use crate::plane::Ports;

/// A kubeconfig in the order in which its tools write members.
fn kubeconfig(ports: Ports, user: &str, authority: &str, client: &Issued) -> String {
    let data = |text: &str| encode_base64(text.as_bytes());
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    \
         server: https://127.0.0.1:{}\n  name: horchestra\ncontexts:\n- context:\n    cluster: horchestra\n    \
         user: {user}\n  name: horchestra\ncurrent-context: horchestra\nkind: Config\npreferences: {{}}\nusers:\n\
         - name: {user}\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
        data(authority),
        ports.address,
        data(&client.certificate),
        data(&client.key),
    )
}

/// What the other control plane has given out.
pub struct There {
    /// PEM.
    pub authority: String,
    pub admin: Issued,
    pub nodes: BTreeMap<String, Issued>,
}

impl There {
    /// What `init`, `apply` and `kubeconfig` of the other control plane leave behind, in this folder: `pki`, and of each
    /// host its `/etc/horchestra`.
    pub fn lay_out(folder: &Path, ports: Ports, nodes: &[&str]) -> There {
        let authority = Authority::generate().unwrap();
        let ca = authority.pem().certificate.clone();
        let server = authority.server(&[HostName::parse("127.0.0.1").unwrap()], Lifetime::SERVER).unwrap();
        let conf = |user: &str, client: &Issued| kubeconfig(ports, user, &ca, client);
        let controller = conf("controller", &server);
        let admin = authority.client("admin", MASTERS, Lifetime::ADMIN).unwrap();
        let alice = authority.member("alice", &["developers".to_owned()], Lifetime::CLIENT).unwrap();
        let write = |path: &str, text: &str, mode: u32| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            write_file(&path, text.as_bytes(), mode).unwrap();
        };
        for (path, text, mode) in [
            ("pki/ca.crt", &ca, 0o644),
            ("pki/ca.key", &authority.pem().key, 0o600),
            ("pki/server.crt", &server.certificate, 0o644),
            ("pki/server.key", &server.key, 0o600),
            ("pki/controller.conf", &controller, 0o600),
            ("pki/admin.conf", &conf("admin", &admin), 0o600),
            ("controller/controller.conf", &controller, 0o600),
            ("controller/cluster-ca.crt", &ca, 0o644),
            ("controller/cluster-ca.key", &authority.pem().key, 0o600),
            ("alice.conf", &conf("alice", &alice), 0o600),
        ] {
            write(path, text, mode);
        }
        let mut pairs = BTreeMap::new();
        for node in nodes {
            let client = authority.node(node, Lifetime::CLIENT).unwrap();
            write(&format!("{node}/node.conf"), &conf(node, &client), 0o600);
            pairs.insert((*node).to_owned(), client);
        }
        fs::set_permissions(folder.join("pki"), fs::Permissions::from_mode(0o700)).unwrap();
        There { authority: ca, admin, nodes: pairs }
    }
}

/// Puts another pair into a node.conf, as an agent does that has been renewed.
pub fn renewed(conf: &Path, ports: Ports, node: &str, authority: &str, client: &Issued) {
    write_file(conf, kubeconfig(ports, node, authority, client).as_bytes(), 0o600).unwrap();
}

/// Conditions that it knows, of sets.
const CONDITIONS: [&str; 3] = ["Rendered", "Converged", "Initialized"];

/// Turns what this control plane prints into what the other one would: no managers, no conditions but those of sets,
/// a counter of revisions for each kind, another digest of what sets have rendered, status without what was added here.
pub fn as_there(list: &mut Value) {
    list["metadata"] = json!({});
    let mut counters: BTreeMap<String, i64> = BTreeMap::new();
    for object in list["items"].as_array_mut().unwrap() {
        let kind = object["kind"].as_str().unwrap().to_owned();
        let counter = counters.entry(kind.clone()).or_default();
        *counter += 1;
        object["metadata"]["resourceVersion"] = counter.to_string().into();
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        if let Some(digest) = object.pointer_mut("/metadata/annotations/horchestra.io~1appset-spec-hash") {
            *digest = "5f".repeat(32).into();
        }
        let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { continue };
        match kind.as_str() {
            "ApplicationSet" => {
                if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
                    conditions.retain(|it| CONDITIONS.iter().any(|known| it["type"] == *known));
                    for condition in conditions {
                        let members = condition.as_object_mut().unwrap();
                        members.retain(|name, _| {
                            ["type", "status", "reason", "message"].contains(&name.as_str())
                        });
                    }
                }
                for name in ["updated", "available", "observedGeneration"] {
                    status.remove(name);
                }
            }
            _ => {
                status.remove("conditions");
            }
        }
    }
}

/// What has to be the same on both sides, by kind, namespace and name: all that says what an object is and what it has,
/// and not how each side writes down what it has seen.
pub fn essence(list: &Value) -> BTreeMap<String, Value> {
    let of = |object: &Value| {
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let mut annotations = metadata["annotations"].clone();
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.remove("horchestra.io/appset-spec-hash");
        }
        let name = format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"]);
        let rest = json!({
            "uid": metadata["uid"], "generation": metadata["generation"],
            "creationTimestamp": metadata["creationTimestamp"], "labels": metadata["labels"],
            "annotations": annotations, "finalizers": metadata["finalizers"], "owners": metadata["ownerReferences"],
            "spec": object["spec"], "data": object["data"], "type": object["type"],
            "phase": status["phase"], "address": status["address"], "attempts": status["attempts"],
            "exitCode": status["exitCode"], "finishedAt": status["finishedAt"],
            "observedGeneration": status["observedGeneration"].clone(),
        });
        (name, rest)
    };
    list["items"].as_array().unwrap().iter().map(of).collect()
}
