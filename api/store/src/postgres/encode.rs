//! How indexes and references become columns.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

use crate::types::{Edge, Index};

/// `{"labels":{…},"fields":{…}}`: JSON, so that people can look at it in SQL.
pub fn index(index: &Index) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(br#"{"labels":{"#);
    pairs(&mut out, &index.labels);
    out.extend_from_slice(br#"},"fields":{"#);
    pairs(&mut out, &index.fields);
    out.extend_from_slice(b"}}");
    out
}

fn pairs(out: &mut Vec<u8>, pairs: &[(String, String)]) {
    for (at, (name, value)) in pairs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        // Writing strings to memory cannot fail.
        let _ = serde_json::to_writer(&mut *out, name);
        out.push(b':');
        let _ = serde_json::to_writer(&mut *out, value);
    }
}

#[derive(Deserialize)]
struct Stored {
    labels: Pairs,
    fields: Pairs,
}

struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(String, String)>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(map.size_hint().unwrap_or(4));
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Members).map(Pairs)
    }
}

/// Reads what [`index`] wrote.
pub fn read_index(bytes: &[u8]) -> Result<Index, serde_json::Error> {
    let Stored { labels, fields } = serde_json::from_slice(bytes)?;
    Ok(Index { labels: labels.0, fields: fields.0 })
}

/// The edges in order and without repetition, and a digest that differs where they differ. 0: none.
pub fn edges(edges: &[Edge]) -> (Vec<&Edge>, i64) {
    if edges.is_empty() {
        return (Vec::new(), 0);
    }
    let mut sorted: Vec<&Edge> = edges.iter().collect();
    sorted.sort();
    sorted.dedup();
    let mut hasher = Sha256::new();
    for Edge { relation, target } in &sorted {
        hasher.update((*relation as i16).to_be_bytes());
        hasher.update(target.kind.number().to_be_bytes());
        for part in [&target.namespace, &target.name] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
    }
    let digest = hasher.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    (sorted, i64::from_be_bytes(first).max(i64::MIN + 1) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Relation;
    use horchestra_core::kind::{Key, Kind};

    #[test]
    fn an_index_reads_back_as_it_was() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for original in [
            Index::default(),
            Index {
                labels: vec![pair("app", "web"), pair("\"quoted\\", "\u{1f600}\n")],
                fields: vec![pair("status.phase", "Running")],
            },
        ] {
            assert_eq!(read_index(&index(&original)).unwrap(), original);
        }
    }

    #[test]
    fn the_digest_tells_sets_of_edges_apart_and_ignores_order() {
        let edge = |relation, name: &str| Edge {
            relation,
            target: Key::namespaced(Kind::Secret, "shop", name.to_owned()),
        };
        let (a, b) = (edge(Relation::Secret, "a"), edge(Relation::SecretOptional, "a"));
        assert_eq!(edges(&[]).1, 0);
        assert_ne!(edges(std::slice::from_ref(&a)).1, 0);
        assert_ne!(edges(std::slice::from_ref(&a)).1, edges(std::slice::from_ref(&b)).1);
        assert_eq!(edges(&[a.clone(), b.clone()]).1, edges(&[b.clone(), a.clone(), b]).1);
    }
}
