//! What is mounted into an Application.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::null_as_default;
use crate::quantity::Quantity;

/// Something mounted into the workload's file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// Where it appears: an absolute path without `.`, `..`, white space, `:` and `\`.
    #[schemars(length(min = 1))]
    pub mount_path: String,
    /// Whether the workload cannot write to it. For `pv` only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Folder of the volume to mount instead of the whole. For `pv` only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub sub_path: String,
    /// What is mounted.
    pub volume: Volume,
}

/// What is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-numeric-guard" = true))]
pub struct Volume {
    /// `pv`: a PersistentVolume, made when it is missing. `tmpfs`: memory, empty at every start. `secret`:
    /// the keys of a Secret as files. `token`: a token that proves the workload's identity.
    #[serde(rename = "type")]
    pub type_: VolumeType,
    /// Name of the PersistentVolume (absent: the name of the Application) or of the Secret. Not for
    /// `token`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `pv`: size of the volume if it has to be made. `tmpfs`: most memory it may take.
    #[serde(default, deserialize_with = "empty_as_absent", skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Keys of the Secret to show, and where. Absent: all of them under their own names.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub items: Vec<KeyToPath>,
    /// Permission bits of the files, as a decimal number. Kept, not applied: files are readable by their
    /// user alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_mode: Option<i32>,
    /// Whether the workload starts when Secret or key is missing. For `secret` only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// Whom the token is meant for. Absent: `horchestra`. For `token` only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub audience: String,
}

/// Audience of a token volume that names none.
pub const DEFAULT_AUDIENCE: &str = "horchestra";

/// Source of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub enum VolumeType {
    #[default]
    Pv,
    Tmpfs,
    Secret,
    Token,
}

/// One key of a Secret as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyToPath {
    /// Key in the Secret.
    pub key: String,
    /// Relative path of the file below the mount path.
    pub path: String,
    /// Permission bits of the file, as a decimal number. Kept, not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<i32>,
}

/// Stored objects may carry an empty size, which means none.
fn empty_as_absent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    use serde::de::Error;
    match Option::<serde_json::Value>::deserialize(deserializer)? {
        None => Ok(None),
        Some(serde_json::Value::String(text)) if text.is_empty() => Ok(None),
        Some(value) => serde_json::from_value(value).map(Some).map_err(D::Error::custom),
    }
}
