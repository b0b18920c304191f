//! What the product talks about, without any I/O: API kinds and their registry, objects as canonical
//! JSON, schema, defaults and validation, quantities, selectors, patches and the wire form of errors.
//!
//! Nothing in here knows about tokio, SQL or HTTP. Everything that the API, the loops and the node gate
//! must agree on lives here, so that a rule of the API has one place.
//!
//! Where to look: a write goes through [`admit`] (which uses [`decode`] or [`yaml`], then [`schema`]), after
//! [`patch`] or [`apply`] if it is one, with [`names`] and [`metadata`] beside it. A read uses [`selector`],
//! [`table`] and [`alias`]. What is served follows from [`registry`] and [`doors`], down to [`discovery`] and
//! [`openapi`]; the kinds themselves are in [`kinds`].

pub mod admit;
pub mod alias;
pub mod apply;
pub mod decode;
pub mod discovery;
pub mod doors;
pub mod gates;
pub mod kind;
pub mod kinds;
pub mod metadata;
pub mod names;
pub mod object;
pub mod openapi;
pub mod owners;
pub mod patch;
pub mod path;
pub mod quantity;
pub mod ranges;
pub mod reasons;
pub mod registry;
pub mod reviews;
pub mod schema;
pub mod sealed;
pub mod selector;
pub mod status;
pub mod table;
pub mod time;
pub mod usage;
pub mod values;
pub mod versions;
pub mod yaml;

pub use kind::{Key, Kind};
pub use object::Object;
pub use quantity::Quantity;
pub use status::{Reason, Status};
