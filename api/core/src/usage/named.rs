//! Of a stored object as much as is shown beside what was measured of it.
//!
//! Reading all of an object to show its name takes most of the time of a long list, so the rest is passed over.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Identity and labels, those that are derived included. Written as the metadata of a document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Named<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    creation_timestamp: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: Labels<'a>,
    pub name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<Cow<'a, str>>,
}

type Labels<'a> = BTreeMap<String, &'a RawValue>;

#[derive(Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    status: Option<Status<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    creation_timestamp: Option<&'a RawValue>,
    #[serde(borrow, default)]
    labels: Option<Labels<'a>>,
}

#[derive(Default, Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    labels: Option<Labels<'a>>,
}

impl<'a> Named<'a> {
    /// Reads the bytes of a stored object.
    pub fn read(body: &'a [u8]) -> Result<Named<'a>, serde_json::Error> {
        let Stored { metadata, status } = serde_json::from_slice(body)?;
        let Metadata { name, namespace, creation_timestamp, labels } = metadata;
        let mut labels = labels.unwrap_or_default();
        labels.extend(status.unwrap_or_default().labels.unwrap_or_default());
        Ok(Named { creation_timestamp, labels, name, namespace })
    }
}
