//! Which objects a list or a watch is about.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::registry::KindSpec;
use horchestra_core::selector::{FieldSelector, LabelSelector};
use horchestra_core::status::Status;
use horchestra_store::{Entry, Index};

/// Kind, namespace and selectors.
pub(super) struct Filter {
    kind: Kind,
    namespace: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Filter {
    /// 400 for selectors that do not parse or name a field that cannot be selected by.
    pub fn parse(
        spec: &KindSpec,
        namespace: Option<String>,
        labels: &str,
        fields: &str,
    ) -> Result<Filter, Status> {
        let labels = LabelSelector::parse(labels)?;
        let fields = FieldSelector::parse(fields, spec)?;
        let namespace = namespace.filter(|namespace| spec.namespaced() && !namespace.is_empty());
        Ok(Filter { kind: spec.kind, namespace, labels, fields })
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether it looks at more than kind and namespace.
    pub fn is_selective(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// The one object that can match at all, where the fields say so: what tools ask for that wait for one
    /// object.
    pub fn single(&self) -> Option<Key> {
        let name = self.fields.exact("metadata.name")?;
        if !self.kind.namespaced() {
            return Some(Key::cluster(self.kind, name));
        }
        let namespace = self.namespace().or_else(|| self.fields.exact("metadata.namespace"))?;
        Some(Key::namespaced(self.kind, namespace, name))
    }

    pub fn in_scope(&self, key: &Key) -> bool {
        key.kind == self.kind && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
    }

    pub fn matches(&self, index: &Index) -> bool {
        self.labels.matches(&index.labels[..]) && self.fields.matches(&index.fields[..])
    }

    pub fn selects(&self, entry: &Entry) -> bool {
        self.in_scope(&entry.key) && self.matches(&entry.index)
    }
}
