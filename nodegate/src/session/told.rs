//! What people have been told of in this session.
//!
//! An agent says everything again with every heartbeat, so what is wrong with it is found again every few
//! seconds. People are told when it is found first, and when it is another thing than before.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Subjects that are remembered; one more, and all are told of anew.
const LIMIT: usize = 4096;

/// By what it is about: what was said last.
#[derive(Default)]
pub struct Told {
    said: Mutex<HashMap<String, String>>,
}

impl Told {
    /// Whether this is not what was said of `about` last. It is, from now on.
    pub fn is_new(&self, about: &str, what: &str) -> bool {
        let mut said = self.said.lock();
        if said.get(about).is_some_and(|before| before == what) {
            return false;
        }
        if said.len() >= LIMIT {
            said.clear();
        }
        said.insert(about.to_owned(), what.to_owned());
        true
    }

    /// Forgets all that is not about what is kept.
    pub fn keep(&self, kept: impl Fn(&str) -> bool) {
        self.said.lock().retain(|about, _| kept(about));
    }

    /// All is well again: whatever comes next is news.
    pub fn forget(&self, about: &str) {
        self.said.lock().remove(about);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_news_is_told() {
        let told = Told::default();
        let cases =
            [("a", "x", true), ("a", "x", false), ("b", "x", true), ("a", "y", true), ("a", "x", true)];
        for (about, what, new) in cases {
            assert_eq!(told.is_new(about, what), new, "{about} {what}");
        }
        told.forget("a");
        assert!(told.is_new("a", "x"));
        for n in 0..3 * LIMIT {
            told.is_new(&n.to_string(), "x");
            assert!(told.said.lock().len() <= LIMIT);
        }
    }
}
