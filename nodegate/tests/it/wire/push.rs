//! A push as an agent reads it, held to what must hold of every push.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use bytes::Bytes;
use horchestra_proto::node::v1::DesiredState;
use prost::Message as _;
use serde_json::Value;

/// What agents accept, less room for framing.
const SIZE_LIMIT: usize = (4 << 20) - (64 << 10);

/// Objects by `namespace/name`.
type Objects = BTreeMap<String, Value>;

/// A decoded push.
#[derive(Debug)]
pub struct Push {
    pub raw: DesiredState,
    pub apps: Objects,
    pub volumes: Objects,
    pub secrets: Objects,
    pub stores: Objects,
}

impl Push {
    /// Decodes a push to the node of this name, and judges it.
    pub fn of(node: &str, raw: DesiredState) -> Push {
        let push = Push {
            apps: decoded("Application", &raw.applications),
            volumes: decoded("PersistentVolume", &raw.persistent_volumes),
            secrets: decoded("Secret", &raw.secrets),
            stores: decoded("SecretStore", &raw.secret_stores),
            raw,
        };
        push.is_for(node);
        push.tables_are_sound();
        push
    }

    // ---- what is in it --------------------------------------------------------------------------------

    /// Names of the Applications.
    pub fn names(&self) -> Vec<&str> {
        self.apps.values().map(|app| text(app, "/metadata/name")).collect()
    }

    /// The Application of this name; only one namespace may have it.
    pub fn app(&self, name: &str) -> Option<&Value> {
        let mut found = self.apps.values().filter(|app| text(app, "/metadata/name") == name);
        let app = found.next();
        assert!(found.next().is_none(), "two of the name {name}");
        app
    }

    pub fn has(&self, name: &str) -> bool {
        self.app(name).is_some()
    }

    pub fn is_deleting(&self, name: &str) -> bool {
        self.app(name).is_some_and(|app| app["metadata"]["deletionTimestamp"].is_string())
    }

    /// The tokens for this Application, by audience.
    pub fn tokens(&self, name: &str) -> BTreeMap<&str, &str> {
        let uid = self.app(name).map_or("", |app| text(app, "/metadata/uid"));
        let of = self.raw.workload_tokens.iter().filter(|token| token.workload == uid);
        of.map(|token| (token.audience.as_str(), token.token.as_str())).collect()
    }

    /// The address for this Application, with its prefix.
    pub fn address(&self, name: &str) -> Option<&str> {
        let uid = text(self.app(name)?, "/metadata/uid");
        let network = self.raw.workload_networks.iter().find(|network| network.workload == uid)?;
        Some(&network.address)
    }

    pub fn routes(&self) -> Vec<String> {
        self.raw.routes.iter().map(|route| format!("{} via {}", route.cidr, route.node_ip)).collect()
    }

    pub fn rules(&self) -> Vec<String> {
        let rule = |rule: &horchestra_proto::netd::v1::ServiceRule| {
            let backends =
                rule.backends.iter().map(|backend| format!(" {}:{}", backend.address, backend.port));
            let backends: String = backends.collect();
            format!("{}:{}/{} ->{backends}", rule.cluster_ip, rule.port, rule.protocol)
        };
        self.raw.services.iter().map(rule).collect()
    }

    // ---- what must hold -------------------------------------------------------------------------------

    /// Nothing of others, nothing that nobody here uses, nothing that agents would pass over.
    fn is_for(&self, node: &str) {
        assert!(self.raw.encoded_len() <= SIZE_LIMIT, "{} bytes", self.raw.encoded_len());
        let mut uids = BTreeSet::new();
        let mut named = BTreeSet::new();
        for (key, app) in &self.apps {
            assert_eq!(text(app, "/spec/placement/nodeName"), node, "{key} is another node's");
            let uid = text(app, "/metadata/uid");
            // Agents find their units by this form.
            let form: uuid::Uuid = uid.parse().unwrap_or_else(|_| panic!("{key} has the uid {uid:?}"));
            assert_eq!(form.as_hyphenated().to_string(), uid, "{key}");
            assert!(uids.insert(uid), "two of the uid {uid}");
            let namespace = text(app, "/metadata/namespace");
            for mount in app["spec"]["volumes"].as_array().into_iter().flatten() {
                let volume = &mount["volume"];
                if volume["type"] == "secret" {
                    named.insert(format!("{namespace}/{}", text(volume, "/name")));
                }
            }
            for variable in app["spec"]["env"].as_array().into_iter().flatten() {
                if let Some(secret) = variable.pointer("/secretRef/name").and_then(Value::as_str) {
                    named.insert(format!("{namespace}/{secret}"));
                }
            }
        }
        for (key, volume) in &self.volumes {
            if text(volume, "/spec/node") != node {
                let metadata: Vec<&String> = volume["metadata"].as_object().unwrap().keys().collect();
                assert_eq!(metadata, ["name", "namespace"], "{key} is another node's");
                assert_eq!(volume["spec"], serde_json::json!({}), "{key} is another node's");
            }
        }
        let mut stores = BTreeSet::new();
        for (key, secret) in &self.secrets {
            assert!(named.contains(key), "nobody here uses the Secret {key}");
            if secret["type"] == "horchestra.io/vault" {
                assert!(secret.get("data").is_none(), "{key} is fetched by the node");
                let annotations = &secret["metadata"]["annotations"];
                let store = annotations["secrets.horchestra.io/store"].as_str().unwrap_or_default();
                stores.insert(format!("{}/{store}", text(secret, "/metadata/namespace")));
            }
        }
        for key in self.stores.keys() {
            assert!(stores.contains(key), "no Secret here is in the store {key}");
        }
        for token in &self.raw.workload_tokens {
            assert!(uids.contains(token.workload.as_str()), "a token for {} on another node", token.workload);
        }
        for network in &self.raw.workload_networks {
            assert!(uids.contains(network.workload.as_str()), "a network for {} elsewhere", network.workload);
            assert_eq!((network.gateway.as_str(), network.mtu), ("169.254.1.1", 0));
            host(&network.address);
        }
    }

    /// A node's helper takes a table as a whole or not at all.
    fn tables_are_sound(&self) {
        let mut seen = BTreeSet::new();
        for route in &self.raw.routes {
            assert!(seen.insert(host(&route.cidr)), "two routes to {}", route.cidr);
            let via = &route.node_ip;
            assert!(via.is_empty() || via.parse::<Ipv4Addr>().is_ok(), "a route via {via:?}");
        }
        let mut seen = BTreeSet::new();
        for rule in &self.raw.services {
            assert!(rule.cluster_ip.parse::<Ipv4Addr>().is_ok(), "a rule for {:?}", rule.cluster_ip);
            assert!(matches!(rule.protocol.as_str(), "TCP" | "UDP" | ""), "{rule:?}");
            assert!((1..=65535).contains(&rule.port) && !rule.backends.is_empty(), "{rule:?}");
            assert!(seen.insert((&rule.cluster_ip, rule.port, &rule.protocol)), "two of {rule:?}");
            let mut backends = BTreeSet::new();
            for backend in &rule.backends {
                assert!(backend.address.parse::<Ipv4Addr>().is_ok(), "{rule:?}");
                assert!((1..=65535).contains(&backend.port), "{rule:?}");
                assert!(backends.insert((&backend.address, backend.port)), "{rule:?}");
            }
        }
    }
}

/// Objects of a kind; agents skip what does not decode, and tear down what they skip.
fn decoded(kind: &str, blobs: &[Bytes]) -> Objects {
    let mut objects = Objects::new();
    for blob in blobs {
        let object: Value = serde_json::from_slice(blob).expect("an object");
        assert_eq!(object["kind"], kind);
        let group = if kind == "SecretStore" { "secrets.horchestra.io/v1" } else { "horchestra.io/v1" };
        assert_eq!(object["apiVersion"], group);
        assert!(object["metadata"].get("managedFields").is_none(), "{object}");
        let applied = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
        assert!(object.pointer(applied).is_none(), "{object}");
        let key = format!("{}/{}", text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        assert!(objects.insert(key, object).is_none(), "one of them twice");
    }
    objects
}

/// The address of a single host in CIDR notation.
fn host(cidr: &str) -> Ipv4Addr {
    let address = cidr.strip_suffix("/32").and_then(|address| address.parse().ok());
    address.unwrap_or_else(|| panic!("{cidr:?} is no single host"))
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}
