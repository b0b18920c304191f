//! Makes a body that breaks a promise smaller while it still breaks the same one.

use std::fmt::Display;

use super::case::{Body, Case, Target};
use super::judge::{Broken, Judge};
use super::tree::Tree;

/// Most requests that one failure is made smaller with.
const TRIES: usize = 400;

/// The smallest case found, its object, and what it broke.
pub struct Smallest {
    pub case: Case,
    pub target: Target,
    pub broken: Broken,
}

impl Display for Smallest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Smallest { case, target, broken } = self;
        let told: String = broken.told.chars().take(3000).collect();
        write!(f, "broken: {}\n{}\n{told}", broken.promise, case.shown(target))
    }
}

pub async fn shrink(judge: &mut Judge<'_>, case: Case, first: Broken) -> Smallest {
    let existing = !case.fresh;
    let target = if existing { judge.target(case.spec).await } else { judge.fresh() };
    let mut best = Smallest { case, target, broken: first };
    let mut tries = 0;
    loop {
        let before = tries;
        let mut smaller = false;
        for candidate in candidates(&best.case) {
            if tries >= TRIES {
                return best;
            }
            tries += 1;
            let mut target = if existing { judge.target(candidate.spec).await } else { judge.fresh() };
            let asked = target.clone();
            if let Err(broken) = judge.ask(&candidate, &mut target).await
                && broken.promise == best.broken.promise
            {
                best = Smallest { case: candidate, target: asked, broken };
                smaller = true;
                break;
            }
        }
        if !smaller || tries == before {
            return best;
        }
    }
}

/// Cases that are a little smaller, the boldest first.
fn candidates(case: &Case) -> Vec<Case> {
    let mut list = Vec::new();
    if !case.query.is_empty() {
        let parts: Vec<&str> = case.query.split('&').collect();
        for at in 0..parts.len() {
            let mut kept = parts.clone();
            kept.remove(at);
            list.push(Case { query: kept.join("&"), ..case.clone() });
        }
    }
    for at in 0..case.headers.len() {
        if case.headers[at].0 != "content-type" {
            let mut headers = case.headers.clone();
            headers.remove(at);
            list.push(Case { headers, ..case.clone() });
        }
    }
    let bodies: Vec<Body> = match &case.body {
        Body::Tree(tree) => trees(tree).into_iter().map(Body::Tree).collect(),
        Body::Bytes(bytes) => texts(bytes).into_iter().map(Body::Bytes).collect(),
    };
    list.extend(bodies.into_iter().map(|body| Case { body, ..case.clone() }));
    list
}

fn trees(tree: &Tree) -> Vec<Tree> {
    let mut list = Vec::new();
    for number in 0..tree.size() {
        let mut changed = |change: &dyn Fn(&mut Tree) -> bool| {
            let mut copy = tree.clone();
            if copy.place(number).is_some_and(change) {
                list.push(copy);
            }
        };
        let children = match tree.clone().place(number) {
            Some(Tree::List(items)) => items.len(),
            Some(Tree::Map(members)) => members.len(),
            _ => 0,
        };
        for child in 0..children.min(12) {
            changed(&|place| {
                match place {
                    Tree::List(items) => drop(items.remove(child)),
                    Tree::Map(members) => drop(members.remove(child)),
                    Tree::Scalar(_) => return false,
                }
                true
            });
        }
        changed(&|place| match place {
            Tree::List(items) if items.len() > 12 => {
                items.truncate(items.len() / 2);
                true
            }
            Tree::Map(members) if members.len() > 12 => {
                members.truncate(members.len() / 2);
                true
            }
            Tree::Scalar(text) if text.len() > 40 && text.is_ascii() => {
                let end = if text.ends_with('"') { "\"" } else { "" };
                text.truncate(text.len() / 2);
                text.push_str(end);
                true
            }
            _ => false,
        });
    }
    list
}

fn texts(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut list = Vec::new();
    let mut piece = bytes.len() / 2;
    while piece > 0 && list.len() < 200 {
        for at in (0..bytes.len()).step_by(piece) {
            let rest = &bytes[(at + piece).min(bytes.len())..];
            list.push([&bytes[..at], rest].concat());
        }
        piece /= 2;
    }
    list
}
