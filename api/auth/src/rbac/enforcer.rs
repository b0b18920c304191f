//! Small casbin enforcers, one per distinct set of lines.
//!
//! A line is a group and a resource (with its subresource, `resource/subresource`); either may be `*`. The
//! model knows nothing else: no roles, no key matching, no patterns, one allowing line is enough. What a set
//! says about a question depends on its lines and on the question alone, so answers are kept with the set and
//! never become wrong.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use casbin::{CoreApi, DefaultModel, Enforcer as Casbin, MemoryAdapter, Model};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::AuthorizationError;

const REQUEST: &str = "group, resource";
const POLICY: &str = "group, resource";
const EFFECT: &str = "some(where (p.eft == allow))";
const MATCHER: &str =
    r#"(p.group == "*" || p.group == r.group) && (p.resource == "*" || p.resource == r.resource)"#;

/// Answers that a set keeps. When there are more, it forgets them all.
const ANSWERS: usize = 4_096;
/// Longest question whose answer is kept, in bytes.
const QUESTION: usize = 512;
/// Sets that are kept. When there are more, those that nobody uses go.
const SETS: usize = 512;

/// Pairs of group and resource, ordered and each once.
pub(super) type Lines<'a> = BTreeSet<(&'a str, String)>;

/// A set of lines, and what it answered.
pub(crate) struct Enforcer {
    casbin: Casbin,
    answers: Mutex<HashMap<Box<[u8]>, bool>>,
}

impl Enforcer {
    /// `lines` must not be empty: casbin evaluates its matcher once even without a line.
    fn new(lines: &Lines<'_>) -> Result<Enforcer, AuthorizationError> {
        let mut model = DefaultModel::default();
        model.add_def("r", "r", REQUEST);
        model.add_def("p", "p", POLICY);
        model.add_def("e", "e", EFFECT);
        model.add_def("m", "m", MATCHER);
        // Nothing in there waits for anything: the adapter is empty.
        let made = at_once(Casbin::new(model, MemoryAdapter::default()));
        let mut casbin = made.ok_or(AuthorizationError::Waiting)?.map_err(engine)?;
        let model = casbin.get_mut_model();
        for (group, resource) in lines {
            model.add_policy("p", "p", vec![(*group).to_owned(), resource.clone()]);
        }
        Ok(Enforcer { casbin, answers: Mutex::default() })
    }

    /// Whether a line matches.
    pub(crate) fn matches(&self, group: &str, target: &str) -> Result<bool, AuthorizationError> {
        let mut question = Vec::with_capacity(group.len() + target.len() + 8);
        question.extend_from_slice(&(group.len() as u64).to_le_bytes());
        question.extend_from_slice(group.as_bytes());
        question.extend_from_slice(target.as_bytes());
        if let Some(answer) = self.answers.lock().get(question.as_slice()) {
            return Ok(*answer);
        }
        let answer = self.ask(group, target)?;
        if question.len() <= QUESTION {
            let mut answers = self.answers.lock();
            if answers.len() >= ANSWERS {
                answers.clear();
            }
            answers.insert(question.into(), answer);
        }
        Ok(answer)
    }

    fn ask(&self, group: &str, target: &str) -> Result<bool, AuthorizationError> {
        self.casbin.enforce((group, target)).map_err(engine)
    }
}

fn engine(source: casbin::Error) -> AuthorizationError {
    AuthorizationError::Engine { source }
}

/// The output of a future that does not wait.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The enforcers in use, by the digest of their lines.
#[derive(Default)]
pub(crate) struct Enforcers(Mutex<HashMap<[u8; 32], Arc<Enforcer>>>);

impl Enforcers {
    /// The enforcer of these lines; `None` for no lines.
    pub(super) fn of(&self, lines: &Lines<'_>) -> Result<Option<Arc<Enforcer>>, AuthorizationError> {
        if lines.is_empty() {
            return Ok(None);
        }
        let digest = digest(lines);
        if let Some(known) = self.0.lock().get(&digest) {
            return Ok(Some(Arc::clone(known)));
        }
        let made = Arc::new(Enforcer::new(lines)?);
        let mut known = self.0.lock();
        if known.len() >= SETS {
            known.retain(|_, enforcer| Arc::strong_count(enforcer) > 1);
        }
        Ok(Some(Arc::clone(known.entry(digest).or_insert(made))))
    }

    /// Enforcers that are kept.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

fn digest(lines: &Lines<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in lines.iter().flat_map(|(group, resource)| [*group, resource.as_str()]) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}
