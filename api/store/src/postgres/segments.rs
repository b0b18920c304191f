//! Cutting a batch into runs of items that do not meet.
//!
//! [`crate::batch`] has already seen to it that items of a batch do not look at what others write, except
//! through claims and capacity. Those two are dealt with here, and the rest is checked all the same: this
//! backend is exact for any batch. Within a run the database judges every item against the state before the
//! run, so two items must be parted when the first might write what the second reads or writes. What only
//! the database knows (the node an application leaves, the uid that a deletion releases) counts as
//! anything at all.

use std::collections::HashSet;

use uuid::Uuid;

use crate::batch::Batch;
use crate::types::{Guard, Item, Op, numbers};

#[derive(Default)]
struct Run<'a> {
    batch: Batch<'a>,
    items: usize,
    values: HashSet<(&'a str, &'a str)>,
    claimants: HashSet<(&'a str, Uuid)>,
    releases: bool,
    claims: bool,
    deletions: bool,
    /// Numbers that were claimed, by space.
    numbers: Vec<(&'a str, (i64, i64))>,
}

/// The index after the last item of each run.
pub fn segments(items: &[Item]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut run = Run::default();
    for (at, item) in items.iter().enumerate() {
        if run.items > 0 && (alone(item) || run.meets(item) || !run.batch.admit(item)) {
            ends.push(at);
            run = Run::default();
        }
        if run.items == 0 {
            run.batch.admit(item);
        }
        run.add(item);
        if alone(item) {
            ends.push(at + 1);
            run = Run::default();
        }
    }
    if run.items > 0 {
        ends.push(items.len());
    }
    ends
}

/// Items whose own operations may meet (a value given back and taken, or taken twice), or that carry a guard
/// on their effect.
fn alone(item: &Item) -> bool {
    let mut values = HashSet::new();
    let (mut claims, mut gives_back) = (false, false);
    for op in &item.ops {
        match op {
            Op::Claim { space, value, .. } => {
                if !values.insert((space, value)) {
                    return true;
                }
                claims = true;
            }
            Op::Release { .. } | Op::Delete { .. } => gives_back = true,
            Op::Create(_) | Op::Update { .. } => {}
        }
    }
    (claims && gives_back) || item.guards.iter().any(|guard| matches!(guard, Guard::Capacity { .. }))
}

impl<'a> Run<'a> {
    fn meets(&self, item: &'a Item) -> bool {
        item.ops.iter().any(|op| match op {
            Op::Claim { space, value, owner, .. } => {
                self.releases
                    || self.deletions
                    || self.values.contains(&(space.as_str(), value.as_str()))
                    || self.claimants.contains(&(space.as_str(), *owner))
            }
            Op::Release { .. } | Op::Delete { .. } => self.claims,
            _ => false,
        }) || item.guards.iter().any(|guard| self.decides(guard))
    }

    /// Whether what was claimed or given back before may decide the guard.
    fn decides(&self, guard: &Guard) -> bool {
        let Guard::Unclaimed { space, value, .. } = guard else { return false };
        let overlaps = |held: (i64, i64), asked: (i64, i64)| held.0 <= asked.1 && asked.0 <= held.1;
        self.releases
            || self.deletions
            || numbers(value).is_some_and(|asked| {
                self.numbers.iter().any(|(other, held)| other == space && overlaps(*held, asked))
            })
    }

    fn add(&mut self, item: &'a Item) {
        self.items += 1;
        for op in &item.ops {
            match op {
                Op::Claim { space, value, owner, .. } => {
                    self.claims = true;
                    self.values.insert((space, value));
                    self.claimants.insert((space, *owner));
                    self.numbers.extend(numbers(value).map(|numbers| (space.as_str(), numbers)));
                }
                Op::Release { .. } => self.releases = true,
                Op::Delete { .. } => self.deletions = true,
                Op::Create(_) | Op::Update { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Attribution, Columns, Draft, Index};
    use bytes::Bytes;
    use horchestra_core::kind::{Key, Kind};

    fn create(name: &str) -> Op {
        Op::Create(Draft {
            key: Key::namespaced(Kind::Application, "shop", name),
            uid: Uuid::nil(),
            generation: 1,
            deleting: false,
            body: Bytes::from_static(b"{}"),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        })
    }

    fn claim(value: &str, owner: u128) -> Op {
        Op::Claim { space: "ports".into(), value: value.into(), owner: Uuid::from_u128(owner), shared: false }
    }

    fn release() -> Op {
        Op::Release { space: "ports".into(), owner: Uuid::from_u128(9) }
    }

    fn delete(name: &str) -> Op {
        Op::Delete { key: Key::namespaced(Kind::Application, "shop", name), expect: 1 }
    }

    fn item(ops: Vec<Op>, guards: Vec<Guard>) -> Item {
        let who =
            Attribution { user: "test".into(), verb: "test".into(), audit_id: Uuid::nil(), trace: None };
        Item { ops, guards, who }
    }

    fn plain(op: Op) -> Item {
        item(vec![op], Vec::new())
    }

    #[test]
    fn runs_end_where_items_meet() {
        let fits =
            || item(vec![create("f")], vec![Guard::Capacity { node: "n".into(), zero_is_unbounded: true }]);
        let free = |value: &str| {
            let guard = Guard::Unclaimed { space: "ports".into(), value: value.into(), owner: Uuid::nil() };
            item(vec![create(value)], vec![guard])
        };
        let cases: Vec<(&str, Vec<Item>, Vec<usize>)> = vec![
            ("nothing", vec![], vec![]),
            ("one", vec![plain(create("a"))], vec![1]),
            ("several names", vec![plain(create("a")), plain(create("b")), plain(create("c"))], vec![3]),
            ("a name again", vec![plain(create("a")), plain(create("b")), plain(create("a"))], vec![2, 3]),
            ("two values", vec![plain(claim("1", 1)), plain(claim("2", 2))], vec![2]),
            ("one value", vec![plain(claim("1", 1)), plain(claim("1", 2))], vec![1, 2]),
            ("a release before a claim", vec![plain(release()), plain(claim("1", 1))], vec![1, 2]),
            ("a claim before a deletion", vec![plain(claim("1", 1)), plain(delete("a"))], vec![1, 2]),
            ("a number and its guard", vec![plain(claim("7", 1)), free("5/3")], vec![1, 2]),
            ("a number and the guard of others", vec![plain(claim("7", 1)), free("5/2"), free("8")], vec![3]),
            ("a guard on a number before it is taken", vec![free("7"), plain(claim("7", 1))], vec![2]),
            ("a guard on numbers after a deletion", vec![plain(delete("a")), free("7")], vec![1, 2]),
            ("deletions among themselves", vec![plain(delete("a")), plain(delete("b"))], vec![2]),
            (
                "capacity is judged alone",
                vec![plain(create("a")), plain(create("b")), fits(), plain(create("c")), plain(create("d"))],
                vec![2, 3, 5],
            ),
            (
                "a value given back and taken in one item",
                vec![plain(create("a")), item(vec![release(), claim("1", 9)], vec![]), plain(create("b"))],
                vec![1, 2, 3],
            ),
        ];
        for (what, items, expected) in cases {
            assert_eq!(segments(&items), expected, "{what}");
        }
    }
}
