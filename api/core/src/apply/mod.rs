//! Who set which field, and what it means to apply a part of an object.
//!
//! Several writers share an object: a person, a pipeline, the scheduler, a node. Every write is put down to
//! its [`Manager`], and [`Managed`] keeps for each manager the set of fields that it set last
//! (`metadata.managedFields`). That is what makes it possible to *apply* a partial object: the fields that it
//! names get its values, fields that its manager named the last time and that nobody else set are taken away,
//! everything else stays, and where another manager set another value the answer is a conflict.
//!
//! Guaranteed:
//!
//! * Applying the same thing twice changes nothing the second time, the times in the managers included.
//! * Managers that apply different fields do not notice each other, in whatever order they come.
//! * A field is removed by an apply only when its manager named it before, names it no longer, and nobody
//!   else set it. What a field needs to exist (the containers above it, the keys of its list item) stays with
//!   it.
//! * What the server reads of managers, from the store or from a client, never makes a write fail: an entry
//!   that cannot be read is passed over, a field that is no longer there means nothing.
//!
//! How a value is taken apart follows from the schema of its kind ([`crate::schema`]), which is also what
//! OpenAPI publishes: objects and maps are owned member by member, lists whole, unless they say otherwise
//! (`x-kubernetes-map-type`, `x-kubernetes-list-type`). A list of items with keys counts as one value while
//! two of its items have the same key, and all items without any key count as one item together, because
//! both occur in objects that are in use. Objects that the schema leaves open are owned member by member,
//! lists in them whole.
//!
//! Not kept here: the order of items in a list with keys. An apply brings its own items into its own order,
//! between them stay those of others; a change of order alone has no owner.
//!
//! Refused: conversion of field sets between versions of a kind. Every kind has one version; entries of
//! another one are kept as they are and compared by the names of their fields.

mod compare;
mod conflict;
mod extract;
mod fields;
mod last_applied;
mod managed;
mod merge;
mod parts;
mod prune;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, compare};
pub use conflict::{Conflict, conflict_status};
pub use extract::{applied_fields, every_field};
pub use fields::{FieldSet, member};
pub use managed::{Managed, Manager, Operation};
pub use merge::{Applied, Configuration, apply};
