//! What there is to choose by.

/// The shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Text,
    Number,
    Texts,
    /// Texts by keys that nobody knows beforehand.
    Map,
    /// A list of something that cannot be looked into.
    List,
    Members(&'static [(&'static str, Shape)]),
}

/// A node.
pub const NODE: Shape = Shape::Members(&[
    ("ID", Shape::Text),
    ("Node", Shape::Text),
    ("Address", Shape::Text),
    ("Datacenter", Shape::Text),
]);

/// An instance beside its node.
pub const SERVICE: Shape = Shape::Members(&[
    ("ID", Shape::Text),
    ("Service", Shape::Text),
    ("Tags", Shape::Texts),
    ("Address", Shape::Text),
    ("Port", Shape::Number),
    ("Meta", Shape::Map),
    ("Namespace", Shape::Text),
]);

/// An instance by itself.
pub const ENTRY: Shape = Shape::Members(&[
    ("ID", Shape::Text),
    ("Node", Shape::Text),
    ("Address", Shape::Text),
    ("Datacenter", Shape::Text),
    ("Namespace", Shape::Text),
    ("ServiceID", Shape::Text),
    ("ServiceName", Shape::Text),
    ("ServiceAddress", Shape::Text),
    ("ServicePort", Shape::Number),
    ("ServiceTags", Shape::Texts),
    ("ServiceMeta", Shape::Map),
]);

/// The health of an instance.
pub const CHECK: Shape = Shape::Members(&[
    ("Node", Shape::Text),
    ("CheckID", Shape::Text),
    ("Name", Shape::Text),
    ("Status", Shape::Text),
    ("Notes", Shape::Text),
    ("Output", Shape::Text),
    ("ServiceID", Shape::Text),
    ("ServiceName", Shape::Text),
    ("ServiceTags", Shape::Texts),
    ("Namespace", Shape::Text),
]);

/// An instance with its node and its health.
pub const HEALTH: Shape = Shape::Members(&[("Node", NODE), ("Service", SERVICE), ("Checks", Shape::List)]);

impl Shape {
    /// The shape of what is at this path.
    pub fn at(self, path: &[String]) -> Option<Shape> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match self {
            Shape::Members(members) => {
                members.iter().find(|(name, _)| name == first).and_then(|(_, shape)| shape.at(rest))
            }
            Shape::Map => Shape::Text.at(rest),
            _ => None,
        }
    }

    /// The names that a path may begin with, for people.
    pub fn names(self) -> String {
        let Shape::Members(members) = self else { return String::new() };
        members.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}
