//! Documents that describe the API: made once, from the registry of kinds, so all replicas of a version
//! serve the same bytes under the same entity tags.

use serde_json::json;

use crate::http::negotiate::Wire;
use crate::http::respond::Tagged;

/// The level of the Kubernetes API that clients may take this server for.
const LEVEL: (&str, &str) = ("1", "32");

/// All documents.
pub struct Documents {
    pub version: Tagged,
}

impl Documents {
    pub fn new() -> Documents {
        Documents { version: Tagged::new(version(), Wire::Json.content_type()) }
    }
}

/// `/version`. Facts that the build did not know read `unknown`, never empty.
fn version() -> String {
    let (major, minor) = LEVEL;
    let mut text = json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0+horchestra-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": option_env!("HORCHESTRA_COMMIT").unwrap_or("unknown"),
        "gitTreeState": option_env!("HORCHESTRA_TREE_STATE").unwrap_or("unknown"),
        "buildDate": option_env!("HORCHESTRA_BUILD_DATE").unwrap_or("unknown"),
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
    .to_string();
    text.push('\n');
    text
}
