//! OpenAPI: what kinds look like and how they are written, for clients.
//!
//! Two forms of the same facts, both pure functions of the registry and byte for byte the same on every
//! replica of a version: version 3 (an index and one document per group version), and version 2 (one
//! document, as JSON and in the protobuf encoding without which kubectl up to 1.28 refuses to send
//! anything). The schemas are those that writes are judged with.
//!
//! Two habits of kubectl decide details. It looks for `fieldValidation` on the *first* PATCH of a kind that it
//! finds, so every PATCH declares it. And one schema that breaks a rule of its version 2 reader makes the
//! whole document unusable, so schemas are inlined (no references among them) and kept plain.

mod operations;
mod protobuf;
mod schemas;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::discovery::{groups, kinds_of};
use crate::doors::Door;
use crate::registry::{KindSpec, described};
use crate::reviews::{self, REVIEWS, ReviewSpec};
use crate::usage;

/// A document and the digest of its bytes, for entity tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub bytes: Bytes,
    /// SHA-256 as 64 hexadecimal digits.
    pub digest: String,
}

impl Document {
    fn new(bytes: Vec<u8>) -> Document {
        let digest = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Document { bytes: Bytes::from(bytes), digest }
    }

    fn json(value: &Value) -> Document {
        Document::new(value.to_string().into_bytes())
    }
}

/// Everything that is served under `/openapi`.
#[derive(Clone, Debug)]
pub struct OpenApi {
    /// `/openapi/v3`
    pub index: Document,
    /// `/openapi/v3/<path>`, by path (`apis/horchestra.io/v1`), in byte order.
    pub documents: Vec<(String, Document)>,
    /// `/openapi/v2` as JSON.
    pub v2: Document,
    /// `/openapi/v2` in protobuf.
    pub v2_protobuf: Document,
}

impl OpenApi {
    /// Makes all documents. `version` is that of the server, as it appears in them.
    pub fn new(version: &str) -> OpenApi {
        let mut documents = Vec::new();
        let mut paths = Map::new();
        // Nothing of usage is ever written, and nobody explains it by its schema.
        let written = groups().into_iter().filter(|(group, _)| *group != usage::shown::GROUP);
        for (group, versions) in written.chain([("", vec!["v1"])]) {
            for group_version in versions {
                let path = if group.is_empty() {
                    format!("api/{group_version}")
                } else {
                    format!("apis/{group}/{group_version}")
                };
                let reviews = reviews::of(group, group_version);
                let document = Document::json(&v3(&kinds_of(group, group_version), reviews, version));
                let url = format!("/openapi/v3/{path}?hash={}", document.digest);
                paths.insert(path.clone(), json!({ "serverRelativeURL": url }));
                documents.push((path, document));
            }
        }
        documents.sort_by(|(a, _), (b, _)| a.cmp(b));
        let swagger = v2(described(), REVIEWS.iter(), version);
        OpenApi {
            index: Document::json(&json!({ "paths": paths })),
            documents,
            v2: Document::json(&swagger),
            v2_protobuf: Document::new(protobuf::encode(&swagger)),
        }
    }

    /// The version 3 document of a path such as `apis/horchestra.io/v1`.
    pub fn document(&self, path: &str) -> Option<&Document> {
        self.documents.iter().find(|(known, _)| known == path).map(|(_, document)| document)
    }
}

fn v3(kinds: &[&KindSpec], reviews: impl Iterator<Item = &'static ReviewSpec>, version: &str) -> Value {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for spec in kinds {
        schemas.insert(schemas::name((*spec).into()), schemas::of_kind(spec, schemas::Form::V3));
        if Door::Revisions.opens(spec.kind) {
            schemas.insert(schemas::REVISION_LIST.to_owned(), schemas::of_revision_list());
        }
        operations::add_v3(&mut paths, spec);
    }
    for spec in reviews {
        schemas.insert(schemas::name(spec.into()), schemas::of_review(spec));
        operations::add_review_v3(&mut paths, spec);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "horchestra", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

fn v2(
    kinds: impl Iterator<Item = &'static KindSpec>,
    reviews: impl Iterator<Item = &'static ReviewSpec>,
    version: &str,
) -> Value {
    let mut definitions = Map::new();
    let mut paths = Map::new();
    definitions.insert(schemas::REVISION_LIST.to_owned(), schemas::of_revision_list());
    for spec in kinds {
        definitions.insert(schemas::name(spec.into()), schemas::of_kind(spec, schemas::Form::V2));
        operations::add_v2(&mut paths, spec);
    }
    for spec in reviews {
        definitions.insert(schemas::name(spec.into()), schemas::of_review(spec));
        operations::add_review_v2(&mut paths, spec);
    }
    json!({
        "swagger": "2.0",
        "info": {"title": "horchestra", "version": version},
        "paths": paths,
        "definitions": definitions,
    })
}
