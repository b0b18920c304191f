//! Whatever body comes with whatever request, the server keeps its promises.
//!
//! Documents of every kind are made from its schema and from the manifests that we show people, and spoiled in
//! all the ways that come to mind; so are patches of every sort, the status, the orders of doors and the options
//! of deletions. Some bodies are spoiled as bytes, some are bombs. Of each answer it is demanded
//!
//! * that it comes, on a connection that goes on, without a panic and without a 5xx;
//! * that a refusal is a whole Status, and has changed nothing;
//! * that what was accepted is read as it was answered, can be written back without any effect, says in YAML
//!   what it says in JSON, and is in the lists, tables and watches of its kind.
//!
//! Not looked for: bodies whose transfer is broken (the connection tests do that) and what two requests at once
//! can do.
//!
//! Case N of a seed is always the same request. `HORCHESTRA_TEST_CASES` asks for more of them, and a failure
//! says what to set to have it again, with the smallest body that was found to fail in the same way.

mod base;
mod case;
mod grow;
mod judge;
mod shrink;
mod spoil;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kind::Kind;
use horchestra_core::registry::{self, KindSpec};
use rand::seq::IndexedRandom;
use serde_json::Value;

use case::{Place, Target};
use judge::{Judge, Outcome};

use crate::kinds::make_examples;
use crate::replicas::{database, replica};
use crate::seed::Seed;

/// As many as two idle cores answer in half a minute.
const CASES: u64 = 1500;
/// After how many cases lists, tables and watches are looked at.
const BETWEEN_CHECKS: u64 = 50;
/// Requests that one object lives through.
const LIFE: u32 = 40;
/// Failures after which a run is over.
const ENOUGH: usize = 8;

// A test has no arguments.
#[allow(clippy::disallowed_methods)]
fn cases() -> std::ops::Range<u64> {
    let given = std::env::var("HORCHESTRA_TEST_CASES").unwrap_or_default();
    match given.split_once("..") {
        Some((from, to)) => from.parse().expect("a number")..to.parse().expect("a number"),
        None if given.is_empty() => 0..CASES,
        None => 0..given.parse().expect("HORCHESTRA_TEST_CASES is a number or a range such as 10..11"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_body_breaks_a_promise() {
    let seed = Seed::of("bodies");
    let database = database().await;
    let (stack, client) = replica(&database).await;
    make_examples(&client).await;
    let kinds: Vec<&'static KindSpec> = registry::described().collect();
    let mut judge = Judge::new(&stack).await;
    let mut targets: BTreeMap<(&str, &str), (Target, u32)> = BTreeMap::new();
    let mut counts: BTreeMap<(Kind, bool), u32> = BTreeMap::new();
    let mut failures: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    let range = cases();
    for number in range.clone() {
        let mut random = seed.lane(number);
        let spec = *kinds.choose(&mut random).unwrap();
        let case = case::case(&mut random, spec);
        let slot = (spec.group(), spec.plural());
        let (mut target, age) = match targets.remove(&slot) {
            Some((target, age)) if !case.fresh && age < LIFE && target.object != Value::Null => (target, age),
            old => {
                if let Some((old, _)) = old {
                    judge.done_with(spec, &old).await;
                }
                (if case.fresh { judge.fresh() } else { judge.target(spec).await }, 0)
            }
        };
        match judge.ask(&case, &mut target).await {
            Ok(outcome) => {
                *counts.entry((spec.kind, outcome == Outcome::Accepted)).or_default() += 1;
                targets.insert(slot, (target, age + 1));
            }
            Err(broken) => {
                if known.insert((broken.promise, spec.kind, case.place == Place::Item)) {
                    let smallest = shrink::shrink(&mut judge, case, broken).await;
                    failures.push(format!("case {number}, {}", smallest));
                }
            }
        }
        if number % BETWEEN_CHECKS == 0 || number + 1 == range.end {
            for spec in &kinds {
                if let Err(broken) = judge.check_kind(spec).await
                    && known.insert((broken.promise, spec.kind, false))
                {
                    let told: String = broken.told.chars().take(3000).collect();
                    failures.push(format!("by case {number}, {}: {}\n{told}", spec.plural(), broken.promise));
                }
            }
        }
        if failures.len() >= ENOUGH {
            break;
        }
    }
    assert!(failures.is_empty(), "{} broken promises:\n{}", failures.len(), failures.join("\n\n"));
    if range.end - range.start >= CASES {
        for spec in kinds {
            for accepted in [true, false] {
                let count = counts.get(&(spec.kind, accepted)).copied().unwrap_or_default();
                assert!(count > 3, "{} of {} were accepted: {accepted}", count, spec.plural());
            }
        }
    }
    stack.store.shutdown().await;
}
