//! Which items may share a batch.
//!
//! A batch means exactly what its items one by one would mean. A backend that judges all guards first and
//! writes afterwards gets that only if no item looks at what another writes, so a batch is closed at the
//! first item for which that is not so; the item starts the next batch. What is exempt: claims and capacity
//! sums, which backends carry along within a batch because they are what concurrent creators and binds
//! nearly always share; and leases and sessions, which no item writes.
//!
//! The judgement errs to the safe side. An update or deletion may end references that only the database
//! knows of, so it meets every guard on references; such guards are rare (deletions of things that others
//! refer to), so batches stay long.

use std::collections::HashSet;

use horchestra_core::kind::{Key, Kind};

use crate::types::{Draft, Guard, Item, Op, Relation};

/// The most items of a batch.
pub const MAX_ITEMS: usize = 128;
/// A batch that holds this many bytes of bodies takes no more.
pub const MAX_BYTES: usize = 1 << 20;

/// What the items of a growing batch read and write.
#[derive(Default)]
pub struct Batch<'a> {
    items: usize,
    bytes: usize,
    written: HashSet<&'a Key>,
    /// Namespaces in which something was written that counts as their content.
    filled: HashSet<&'a str>,
    /// Objects that guards look at.
    read: HashSet<&'a Key>,
    /// Namespaces in which an Event was written.
    eventful: HashSet<&'a str>,
    /// Namespaces whose Events are counted.
    events_counted: HashSet<&'a str>,
    /// Namespaces whose emptiness is asked.
    emptied: HashSet<&'a str>,
    /// Nodes whose capacity is asked.
    capacity_of: HashSet<&'a str>,
    /// Targets whose references are counted.
    counted: HashSet<(Relation, &'a Key)>,
    /// References that were made.
    referred: HashSet<(Relation, &'a Key)>,
    /// Something was updated or deleted, which may have ended references.
    may_unrefer: bool,
}

impl<'a> Batch<'a> {
    /// Adds the item if it may share this batch. The first item always may.
    pub fn admit(&mut self, item: &'a Item) -> bool {
        let bytes = size(item);
        if self.items > 0 && (self.items >= MAX_ITEMS || self.bytes + bytes > MAX_BYTES || self.meets(item)) {
            return false;
        }
        self.items += 1;
        self.bytes += bytes;
        for op in &item.ops {
            let Some(key) = op.key() else { continue };
            self.written.insert(key);
            if counts_as_content(key.kind) {
                self.filled.insert(&key.namespace);
            }
            if key.kind == Kind::Event {
                self.eventful.insert(&key.namespace);
            }
            if let Some(draft) = draft(op) {
                self.referred.extend(draft.edges.iter().map(|edge| (edge.relation, &edge.target)));
            }
            self.may_unrefer |= !matches!(op, Op::Create(_));
        }
        for guard in &item.guards {
            if let Some(key) = object_read(guard) {
                self.read.insert(key);
            }
            match guard {
                Guard::NamespaceEmpty(namespace) => {
                    self.emptied.insert(namespace);
                }
                Guard::EventsAtMost { namespace, .. } => {
                    self.events_counted.insert(namespace);
                }
                Guard::NoEdge { relation, target } | Guard::EdgesAtMost { relation, target, .. } => {
                    self.counted.insert((*relation, target));
                }
                Guard::Capacity { node, .. } => {
                    self.capacity_of.insert(node);
                }
                _ => {}
            }
        }
        true
    }

    fn meets(&self, item: &Item) -> bool {
        item.ops.iter().any(|op| self.write_meets(op))
            || item.guards.iter().any(|guard| self.guard_meets(guard))
    }

    fn write_meets(&self, op: &Op) -> bool {
        let Some(key) = op.key() else { return false };
        if self.written.contains(key) || self.read.contains(key) {
            return true;
        }
        if key.kind == Kind::Node && self.capacity_of.contains(key.name.as_str()) {
            return true;
        }
        if counts_as_content(key.kind) && self.emptied.contains(key.namespace.as_str()) {
            return true;
        }
        if key.kind == Kind::Event && self.events_counted.contains(key.namespace.as_str()) {
            return true;
        }
        if self.counted.is_empty() {
            return false;
        }
        !matches!(op, Op::Create(_))
            || draft(op).is_some_and(|draft| {
                draft.edges.iter().any(|edge| self.counted.contains(&(edge.relation, &edge.target)))
            })
    }

    fn guard_meets(&self, guard: &Guard) -> bool {
        if let Some(key) = object_read(guard) {
            return self.written.contains(key);
        }
        match guard {
            Guard::NamespaceEmpty(namespace) => self.filled.contains(namespace.as_str()),
            Guard::EventsAtMost { namespace, .. } => self.eventful.contains(namespace.as_str()),
            Guard::NoEdge { relation, target } | Guard::EdgesAtMost { relation, target, .. } => {
                self.may_unrefer || self.referred.contains(&(*relation, target))
            }
            Guard::Capacity { node, .. } => self.written.contains(&Key::cluster(Kind::Node, node.as_str())),
            _ => false,
        }
    }
}

fn draft(op: &Op) -> Option<&Draft> {
    match op {
        Op::Create(draft) | Op::Update { draft, .. } => Some(draft),
        _ => None,
    }
}

fn object_read(guard: &Guard) -> Option<&Key> {
    match guard {
        Guard::Exists(key) | Guard::Unchanged(key, _) => Some(key),
        _ => None,
    }
}

/// Whether objects of the kind keep their namespace from being empty.
pub fn counts_as_content(kind: Kind) -> bool {
    kind.namespaced() && kind != Kind::Event
}

/// The size that counts against [`MAX_BYTES`].
pub fn size(item: &Item) -> usize {
    let op_size = |op: &Op| match op {
        Op::Create(draft) | Op::Update { draft, .. } => {
            draft.body.len() + draft.managed.as_ref().map_or(0, |managed| managed.len()) + 256
        }
        _ => 128,
    };
    item.ops.iter().map(op_size).sum::<usize>() + 64 * item.guards.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Attribution, Columns, Edge, Index};
    use bytes::Bytes;
    use uuid::Uuid;

    fn app(name: &str) -> Key {
        Key::namespaced(Kind::Application, "shop", name)
    }

    fn secret() -> Key {
        Key::namespaced(Kind::Secret, "shop", "password")
    }

    fn create(key: Key, edges: Vec<Edge>) -> Op {
        Op::Create(Draft {
            key,
            uid: Uuid::nil(),
            generation: 1,
            deleting: false,
            body: Bytes::from_static(b"{}"),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges,
        })
    }

    fn delete(key: Key) -> Op {
        Op::Delete { key, expect: 1 }
    }

    fn item(ops: Vec<Op>, guards: Vec<Guard>) -> Item {
        let who =
            Attribution { user: "test".into(), verb: "create".into(), audit_id: Uuid::nil(), trace: None };
        Item { ops, guards, who }
    }

    /// Whether both fit one batch, in this order.
    fn share(first: &Item, second: &Item) -> bool {
        let mut batch = Batch::default();
        assert!(batch.admit(first));
        batch.admit(second)
    }

    #[test]
    fn items_share_a_batch_unless_one_looks_at_what_the_other_writes() {
        let to_secret = || Edge { relation: Relation::Secret, target: secret() };
        let plain = |name: &str| item(vec![create(app(name), vec![])], vec![]);
        let referring = |name: &str| item(vec![create(app(name), vec![to_secret()])], vec![]);
        let exists = |key: Key| item(vec![create(app("x"), vec![])], vec![Guard::Exists(key)]);
        let unreferred = item(
            vec![delete(secret())],
            vec![Guard::NoEdge { relation: Relation::Secret, target: secret() }],
        );
        let empty = item(
            vec![delete(Key::cluster(Kind::Namespace, "shop"))],
            vec![Guard::NamespaceEmpty("shop".into())],
        );
        let event = item(vec![create(Key::namespaced(Kind::Event, "shop", "e"), vec![])], vec![]);
        let eventless = item(
            vec![delete(Key::cluster(Kind::Namespace, "shop"))],
            vec![Guard::EventsAtMost { namespace: "shop".into(), limit: 0 }],
        );
        let fits = |name: &str| {
            item(
                vec![create(app(name), vec![])],
                vec![Guard::Capacity { node: "n".into(), zero_is_unbounded: false }],
            )
        };
        let node = item(vec![delete(Key::cluster(Kind::Node, "n"))], vec![]);
        let claim = |name: &str| {
            let claim =
                Op::Claim { space: "ip".into(), value: "1".into(), owner: Uuid::nil(), shared: false };
            item(vec![create(app(name), vec![]), claim], vec![])
        };

        let cases: Vec<(&str, Item, Item, bool)> = vec![
            ("two names", plain("a"), plain("b"), true),
            ("one name", plain("a"), plain("a"), false),
            ("a guard on another object", plain("a"), exists(app("b")), true),
            ("a guard on what is written", plain("a"), exists(app("a")), false),
            ("two guards on one object", exists(app("b")), plain("c"), true),
            ("a reference and its absence", referring("a"), unreferred.clone(), false),
            ("no reference and its absence", plain("a"), unreferred.clone(), true),
            ("a deletion may end references", item(vec![delete(app("a"))], vec![]), unreferred, false),
            ("content of a namespace to be empty", plain("a"), empty.clone(), false),
            ("an Event is no content", event.clone(), empty, true),
            ("an Event and the count of Events", event, eventless.clone(), false),
            ("content and the count of Events", plain("a"), eventless, true),
            ("two capacity guards of a node", fits("a"), fits("b"), true),
            ("capacity and the node itself", fits("a"), node, false),
            ("claims of one value", claim("a"), claim("b"), true),
        ];
        for (what, first, second, expected) in cases {
            assert_eq!(share(&first, &second), expected, "{what}");
            assert_eq!(share(&second, &first), expected, "{what}, the other way round");
        }
    }

    #[test]
    fn a_batch_is_bounded_in_items_and_bytes_but_always_takes_one() {
        let names: Vec<Item> =
            (0..200).map(|n| item(vec![create(app(&n.to_string()), vec![])], vec![])).collect();
        let mut batch = Batch::default();
        assert_eq!(names.iter().take_while(|item| batch.admit(item)).count(), MAX_ITEMS);

        let big = |name: &str| {
            let mut op = create(app(name), vec![]);
            if let Op::Create(draft) = &mut op {
                draft.body = Bytes::from(vec![b' '; MAX_BYTES + 1]);
            }
            item(vec![op], vec![])
        };
        let (first, second) = (big("a"), big("b"));
        assert!(!share(&first, &second));
    }
}
