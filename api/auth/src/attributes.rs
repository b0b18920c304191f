//! What a request asks for, in the terms that permissions are written in.
//!
//! Attributes are made by whoever routed the request, from the very values that the handler will act on.
//! There is deliberately no function here that reads a path: a second parser is how an authorizer comes to
//! judge another object than the one that is served.

use std::fmt;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Attributes<'a> {
    Resource(ResourceAttributes<'a>),
    /// A document that belongs to no resource. `verb` is the HTTP method in lower case.
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

/// A verb on a resource. Texts that do not apply are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ResourceAttributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `escalate`, `bind`.
    pub verb: &'a str,
    pub group: &'a str,
    /// The plural.
    pub resource: &'a str,
    pub subresource: &'a str,
    /// Empty for cluster-scoped resources and for a request that spans all namespaces.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

impl<'a> Attributes<'a> {
    /// A verb on a collection or, with a `name`, on an object.
    pub fn resource(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> Attributes<'a> {
        Attributes::Resource(ResourceAttributes { verb, group, resource, subresource: "", namespace, name })
    }

    /// The same on a subresource.
    pub fn of_subresource(self, subresource: &'a str) -> Attributes<'a> {
        match self {
            Attributes::Resource(resource) => {
                Attributes::Resource(ResourceAttributes { subresource, ..resource })
            }
            path @ Attributes::Path { .. } => path,
        }
    }

    pub fn path(verb: &'a str, path: &'a str) -> Attributes<'a> {
        Attributes::Path { verb, path }
    }
}

impl ResourceAttributes<'_> {
    /// Whether this is `resource` or `resource/subresource` of `group`, exactly: a parent never stands for
    /// its subresources.
    pub fn is(&self, group: &str, resource: &str, subresource: &str) -> bool {
        self.group == group && self.resource == resource && self.subresource == subresource
    }
}

impl fmt::Display for Attributes<'_> {
    /// As in `list resource "applications" in API group "horchestra.io" in the namespace "team-a"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attributes::Path { verb, path } => write!(f, "{verb} path \"{path}\""),
            Attributes::Resource(asked) => {
                write!(f, "{} resource \"{}", asked.verb, asked.resource)?;
                if !asked.subresource.is_empty() {
                    write!(f, "/{}", asked.subresource)?;
                }
                write!(f, "\" in API group \"{}\"", asked.group)?;
                if asked.namespace.is_empty() {
                    f.write_str(" at the cluster scope")
                } else {
                    write!(f, " in the namespace \"{}\"", asked.namespace)
                }
            }
        }
    }
}
