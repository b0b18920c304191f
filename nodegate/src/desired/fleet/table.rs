//! A sorted table of encoded entries, cut into chunks so that a change costs the chunk that it is in.
//!
//! Entries have names that begin with an address; those of one `/24` are a chunk, which is also how they sort. A name is
//! to be there once. Should two owners give one, the first of them (by key) is sent, and the others are told of.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Bytes, BytesMut};
use horchestra_core::kind::Key;

/// What receivers take of a table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub entries: usize,
    /// Sum of the weights.
    pub weight: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    owner: Key,
    bytes: Bytes,
    weight: usize,
}

#[derive(Default)]
struct Chunk {
    entries: BTreeMap<String, Vec<Entry>>,
    /// All of it, in order; `None`: something has changed.
    encoded: Option<Encoded>,
}

#[derive(Clone)]
struct Encoded {
    bytes: Bytes,
    weight: usize,
}

/// The table.
#[derive(Default)]
pub(super) struct Table {
    chunks: BTreeMap<String, Chunk>,
    /// Names that more than one owner gives.
    contested: BTreeSet<String>,
}

/// A table as it is sent.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub bytes: Vec<Bytes>,
    pub len: usize,
    pub entries: usize,
    /// Entries that receivers would not take any more.
    pub left_out: usize,
}

/// The chunk that a name is in.
fn chunk_of(name: &str) -> &str {
    name.rfind('.').map_or("", |dot| &name[..=dot])
}

impl Table {
    /// Sets an entry of an owner; returns whether that is another one than before.
    pub fn put(&mut self, name: &str, owner: &Key, bytes: Bytes, weight: usize) -> bool {
        let entry = Entry { owner: owner.clone(), bytes, weight };
        if !self.chunks.contains_key(chunk_of(name)) {
            self.chunks.insert(chunk_of(name).to_owned(), Chunk::default());
        }
        let Some(chunk) = self.chunks.get_mut(chunk_of(name)) else { return false };
        let entries = chunk.entries.entry(name.to_owned()).or_default();
        match entries.binary_search_by(|other| other.owner.cmp(owner)) {
            Ok(at) if entries[at] == entry => return false,
            Ok(at) => entries[at] = entry,
            Err(at) => entries.insert(at, entry),
        }
        if entries.len() > 1 {
            self.contested.insert(name.to_owned());
        }
        chunk.encoded = None;
        true
    }

    /// Takes an entry of an owner out; returns whether there was one.
    pub fn remove(&mut self, name: &str, owner: &Key) -> bool {
        let Some(chunk) = self.chunks.get_mut(chunk_of(name)) else { return false };
        let Some(entries) = chunk.entries.get_mut(name) else { return false };
        let before = entries.len();
        entries.retain(|entry| entry.owner != *owner);
        if entries.len() == before {
            return false;
        }
        chunk.encoded = None;
        if entries.len() < 2 {
            self.contested.remove(name);
        }
        if entries.is_empty() {
            chunk.entries.remove(name);
        }
        if chunk.entries.is_empty() {
            self.chunks.remove(chunk_of(name));
        }
        true
    }

    /// Owners whose entry is not sent since another one's has its name.
    pub fn losers(&self) -> impl Iterator<Item = (&Key, &str)> {
        self.contested.iter().flat_map(|name| {
            let entries = self.chunks.get(chunk_of(name)).and_then(|chunk| chunk.entries.get(name));
            entries.into_iter().flatten().skip(1).map(|entry| (&entry.owner, name.as_str()))
        })
    }

    /// All entries in order, up to what is taken and to `room` bytes. Chunks that have not changed are the same bytes
    /// as before.
    pub fn pieces(&mut self, limits: Limits, room: usize) -> Pieces {
        let mut pieces = Pieces::default();
        let mut weight = 0;
        for chunk in self.chunks.values_mut() {
            let encoded = chunk.encode();
            let fits = pieces.entries + chunk.entries.len() <= limits.entries
                && weight + encoded.weight <= limits.weight
                && pieces.len + encoded.bytes.len() <= room;
            if fits && pieces.left_out == 0 {
                pieces.entries += chunk.entries.len();
                pieces.len += encoded.bytes.len();
                weight += encoded.weight;
                pieces.bytes.push(encoded.bytes);
                continue;
            }
            for entry in chunk.entries.values().filter_map(|entries| entries.first()) {
                let fits = pieces.entries < limits.entries
                    && weight + entry.weight <= limits.weight
                    && pieces.len + entry.bytes.len() <= room;
                if fits && pieces.left_out == 0 {
                    pieces.entries += 1;
                    pieces.len += entry.bytes.len();
                    weight += entry.weight;
                    pieces.bytes.push(entry.bytes.clone());
                } else {
                    pieces.left_out += 1;
                }
            }
        }
        pieces
    }
}

impl Chunk {
    fn encode(&mut self) -> Encoded {
        self.encoded
            .get_or_insert_with(|| {
                let first = || self.entries.values().filter_map(|entries| entries.first());
                let mut bytes = BytesMut::with_capacity(first().map(|entry| entry.bytes.len()).sum());
                first().for_each(|entry| bytes.extend_from_slice(&entry.bytes));
                Encoded { bytes: bytes.freeze(), weight: first().map(|entry| entry.weight).sum() }
            })
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use horchestra_core::kind::Kind;

    use super::*;

    const ANY: Limits = Limits { entries: usize::MAX, weight: usize::MAX };

    fn owner(name: &str) -> Key {
        Key::namespaced(Kind::Application, "team", name)
    }

    fn put(table: &mut Table, name: &str, who: &str) -> bool {
        table.put(name, &owner(who), Bytes::from(format!("{who}@{name};")), 2)
    }

    fn shown(table: &mut Table, limits: Limits, room: usize) -> (String, usize) {
        let pieces = table.pieces(limits, room);
        let text = String::from_utf8(pieces.bytes.concat()).unwrap();
        assert_eq!((pieces.len, pieces.entries), (text.len(), text.matches(';').count()));
        (text, pieces.left_out)
    }

    #[test]
    fn entries_are_in_the_order_of_their_names() {
        let mut table = Table::default();
        let mut names: Vec<String> = ["10.0.0.9", "10.0.0.10", "10.0.10.1", "10.0.1.1", "9.255.0.1"]
            .into_iter()
            .map(str::to_owned)
            .collect();
        for name in &names {
            assert!(put(&mut table, name, "a"));
            assert!(!put(&mut table, name, "a"), "it is there");
        }
        names.sort();
        let expected: String = names.iter().map(|name| format!("a@{name};")).collect();
        assert_eq!(shown(&mut table, ANY, 1000), (expected, 0));
        for name in &names {
            assert!(table.remove(name, &owner("a")));
            assert!(!table.remove(name, &owner("a")), "it is gone");
        }
        assert_eq!(shown(&mut table, ANY, 1000), (String::new(), 0));
        assert!(table.chunks.is_empty());
    }

    #[test]
    fn a_name_is_there_once_and_whose_it_is_does_not_depend_on_who_came_first() {
        let mut table = Table::default();
        for who in ["b", "c", "a"] {
            put(&mut table, "10.0.0.1", who);
        }
        assert_eq!(shown(&mut table, ANY, 1000).0, "a@10.0.0.1;");
        let losers = |table: &Table| -> Vec<String> {
            table.losers().map(|(key, name)| format!("{} {name}", key.name)).collect()
        };
        assert_eq!(losers(&table), ["b 10.0.0.1", "c 10.0.0.1"]);
        table.remove("10.0.0.1", &owner("a"));
        table.remove("10.0.0.1", &owner("c"));
        assert_eq!((shown(&mut table, ANY, 1000).0.as_str(), losers(&table)), ("b@10.0.0.1;", vec![]));
    }

    #[test]
    fn a_change_costs_its_chunk() {
        let mut table = Table::default();
        for name in ["10.0.0.1", "10.0.1.1", "10.0.2.1"] {
            put(&mut table, name, "a");
        }
        let before = table.pieces(ANY, 1000).bytes;
        put(&mut table, "10.0.1.2", "a");
        let after = table.pieces(ANY, 1000).bytes;
        let same: Vec<bool> = before.iter().zip(&after).map(|(a, b)| a.as_ptr() == b.as_ptr()).collect();
        assert_eq!(same, [true, false, true]);
    }

    #[test]
    fn what_receivers_would_not_take_is_left_out_from_the_end() {
        let mut table = Table::default();
        for name in ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"] {
            put(&mut table, name, "a");
        }
        let each = "a@10.0.0.1;".len();
        for (limits, room, kept) in [
            (ANY, 4 * each, 4),
            (ANY, 4 * each - 1, 3),
            (Limits { entries: 3, ..ANY }, 1000, 3),
            (Limits { entries: 1, ..ANY }, 1000, 1),
            (Limits { weight: 5, ..ANY }, 1000, 2),
            (ANY, 0, 0),
        ] {
            let (text, left_out) = shown(&mut table, limits, room);
            assert_eq!((text.matches(';').count(), left_out), (kept, 4 - kept), "{limits:?} {room}");
        }
    }
}
