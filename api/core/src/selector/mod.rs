//! Selectors of lists and watches.

mod field;
mod label;

use std::collections::BTreeMap;

pub use field::{FieldSelector, Term};
pub use label::{LabelSelector, Operator, Requirement};

use crate::object::Object;

/// Named texts that a selector looks at.
pub trait Values {
    fn value(&self, name: &str) -> Option<&str>;
}

/// Pairs in byte order of their names.
impl<K: AsRef<str>, V: AsRef<str>> Values for [(K, V)] {
    fn value(&self, name: &str) -> Option<&str> {
        let at = self.binary_search_by(|(key, _)| key.as_ref().cmp(name)).ok()?;
        Some(self[at].1.as_ref())
    }
}

impl<K: AsRef<str>, V: AsRef<str>> Values for Vec<(K, V)> {
    fn value(&self, name: &str) -> Option<&str> {
        self.as_slice().value(name)
    }
}

impl Values for BTreeMap<String, String> {
    fn value(&self, name: &str) -> Option<&str> {
        self.get(name).map(String::as_str)
    }
}

/// The labels of an object.
impl Values for Object {
    fn value(&self, name: &str) -> Option<&str> {
        self.label(name)
    }
}
