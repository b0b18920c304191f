//! Documents that describe the API: made once, from the registry of kinds, so all replicas of a version
//! serve the same bytes under the same entity tags.

use std::collections::BTreeMap;

use horchestra_core::discovery::{self, DiscoveryVersion};
use horchestra_core::openapi::{self, OpenApi};
use http::HeaderValue;
use serde_json::{Value, json};

use crate::http::negotiate::{OPENAPI_V2_PROTOBUF, Wire};
use crate::http::respond::Tagged;

/// The level of the Kubernetes API that clients may take this server for.
const LEVEL: (&str, &str) = ("1", "32");

/// A document in its plain and its aggregated forms.
pub struct Negotiated {
    pub plain: Tagged,
    pub v2: Tagged,
    pub v2_beta1: Tagged,
}

impl Negotiated {
    fn new(plain: &Value, aggregated: fn(DiscoveryVersion) -> Value) -> Negotiated {
        let of = |version: DiscoveryVersion| {
            Tagged::new(text(&aggregated(version)), HeaderValue::from_static(version.content_type()))
        };
        Negotiated {
            plain: json_document(plain),
            v2: of(DiscoveryVersion::V2),
            v2_beta1: of(DiscoveryVersion::V2Beta1),
        }
    }
}

/// All documents.
pub struct Documents {
    pub version: Tagged,
    /// `/api`
    pub core: Negotiated,
    /// `/api/v1`
    pub core_resources: Tagged,
    /// `/apis`
    pub groups: Negotiated,
    /// `/apis/<group>`
    pub group: BTreeMap<String, Tagged>,
    /// `/apis/<group>/<version>`, by `<group>/<version>`
    pub resources: BTreeMap<String, Tagged>,
    pub openapi_index: Tagged,
    /// By path, such as `apis/horchestra.io/v1`
    pub openapi: BTreeMap<String, Tagged>,
    pub openapi_v2: Tagged,
    pub openapi_v2_protobuf: Tagged,
}

impl Documents {
    pub fn new() -> Documents {
        let openapi = OpenApi::new(&git_version());
        let mut group = BTreeMap::new();
        let mut resources = BTreeMap::new();
        for (name, versions) in discovery::groups() {
            if let Some(entry) = discovery::group(name) {
                group.insert(name.to_owned(), json_document(&entry));
            }
            for version in versions {
                if let Some(list) = discovery::resources(name, version) {
                    resources.insert(format!("{name}/{version}"), json_document(&list));
                }
            }
        }
        let json = Wire::Json.content_type();
        let tagged = |document: &openapi::Document| Tagged::new(document.bytes.clone(), json.clone());
        Documents {
            version: json_document(&version()),
            core: Negotiated::new(&discovery::core_versions(), discovery::aggregated_core),
            core_resources: json_document(&discovery::core_resources()),
            groups: Negotiated::new(&discovery::group_list(), discovery::aggregated_groups),
            group,
            resources,
            openapi_index: tagged(&openapi.index),
            openapi: openapi
                .documents
                .iter()
                .map(|(path, document)| (path.clone(), tagged(document)))
                .collect(),
            openapi_v2: tagged(&openapi.v2),
            openapi_v2_protobuf: Tagged::new(
                openapi.v2_protobuf.bytes.clone(),
                HeaderValue::from_static(OPENAPI_V2_PROTOBUF),
            ),
        }
    }
}

fn text(value: &Value) -> String {
    let mut text = value.to_string();
    text.push('\n');
    text
}

fn json_document(value: &Value) -> Tagged {
    Tagged::new(text(value), Wire::Json.content_type())
}

fn git_version() -> String {
    format!("v{}.{}.0+horchestra-{}", LEVEL.0, LEVEL.1, env!("CARGO_PKG_VERSION"))
}

/// `/version`. Facts that the build did not know read `unknown`, never empty.
fn version() -> Value {
    json!({
        "major": LEVEL.0,
        "minor": LEVEL.1,
        "gitVersion": git_version(),
        "gitCommit": option_env!("HORCHESTRA_COMMIT").unwrap_or("unknown"),
        "gitTreeState": option_env!("HORCHESTRA_TREE_STATE").unwrap_or("unknown"),
        "buildDate": option_env!("HORCHESTRA_BUILD_DATE").unwrap_or("unknown"),
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
