//! What the product talks about, without any I/O: API kinds and their registry, objects as canonical
//! JSON, schema, defaults and validation, quantities, selectors, patches and the wire form of errors.
//!
//! Nothing in here knows about tokio, SQL or HTTP. Everything that the API, the loops and the node gate
//! must agree on lives here, so that a rule of the API has one place.

pub mod kind;
pub mod object;
pub mod status;

pub use kind::{Key, Kind};
pub use object::Object;
pub use status::{Reason, Status};
