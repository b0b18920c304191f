//! Structural schemas: what a kind's document may look like.
//!
//! A schema is derived from the typed structs of the kind (their doc comments, types and bounds), once, and
//! turned into the compact tree of [`Schema`]. Everything that judges or describes documents walks that one
//! tree: defaults, unknown members, violations, OpenAPI and `kubectl explain`. So what is documented is
//! what is enforced.
//!
//! Every object is closed unless the struct says otherwise: a member that is not declared is unknown.

mod check;
mod derive;
mod fill;

use serde_json::Value;

pub use check::check;
pub use derive::derive;
pub use fill::{Pruned, Unknown, drop_nulls, fill_defaults, normalize, prune};

/// What a value may be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// For readers; empty when there is nothing to say.
    pub description: String,
    /// Put in where the member is absent.
    pub default: Option<Value>,
    pub shape: Shape,
    /// Whether writers share an object or a map as a whole only (lists say so in their [`ListType`]).
    pub atomic: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Shape {
    /// Any JSON value.
    #[default]
    Anything,
    /// An object with any members.
    FreeForm,
    Object(ObjectShape),
    /// Any member names, every value alike.
    Map(Box<Schema>),
    Array {
        items: Box<Schema>,
        max_items: Option<usize>,
        /// How several writers share the list.
        list: ListType,
    },
    String(StringShape),
    Integer {
        minimum: i64,
        maximum: i64,
        /// `int32` or `int64`.
        format: &'static str,
    },
    Number,
    Boolean,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectShape {
    /// In byte order of the names.
    pub properties: Vec<Property>,
    /// Unknown members are dropped with a warning instead of refused (metadata).
    pub lenient: bool,
    /// Texts that begin like a number must pass the guard of quantities, whatever member they are in: node
    /// agents refuse to decode the object otherwise.
    pub numeric_guard: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    pub name: String,
    pub required: bool,
    pub schema: Schema,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StringShape {
    /// Permitted values, in the order in which they are listed to people; empty for any.
    pub values: Vec<String>,
    /// In characters.
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub check: Option<StringCheck>,
}

/// What a text must parse as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringCheck {
    Quantity,
    Time,
    MicroTime,
    Base64,
}

/// How several writers share a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

impl ObjectShape {
    pub fn property(&self, name: &str) -> Option<&Property> {
        self.properties
            .binary_search_by(|property| property.name.as_str().cmp(name))
            .ok()
            .map(|at| &self.properties[at])
    }
}

impl Schema {
    /// Whether values of this shape can hold members that the schema names.
    fn has_members(&self) -> bool {
        match &self.shape {
            Shape::Object(_) => true,
            Shape::Map(inner) | Shape::Array { items: inner, .. } => inner.has_members(),
            _ => false,
        }
    }

    /// As [`Schema::at`], to change it.
    pub(crate) fn at_mut(&mut self, path: &[&str]) -> Option<&mut Schema> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match &mut self.shape {
            Shape::Object(object) => {
                let at = object.properties.binary_search_by(|it| it.name.as_str().cmp(first)).ok()?;
                object.properties[at].schema.at_mut(rest)
            }
            Shape::Map(values) => values.at_mut(rest),
            Shape::Array { items, .. } => items.at_mut(path),
            _ => None,
        }
    }

    /// The schema below a chain of members; list items are stepped through without a member.
    pub fn at(&self, path: &[&str]) -> Option<&Schema> {
        let Some((first, rest)) = path.split_first() else { return Some(self) };
        match &self.shape {
            Shape::Object(object) => object.property(first)?.schema.at(rest),
            Shape::Map(values) => values.at(rest),
            Shape::Array { items, .. } => items.at(path),
            _ => None,
        }
    }
}
