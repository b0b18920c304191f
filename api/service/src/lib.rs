//! The one door for every read and write.

mod admission;
mod caller;
mod clock;
mod conditions;
mod doors;
mod errors;
mod read;
mod request;
mod service;
pub mod settings;
mod write;

pub use caller::{Caller, RequestContext};
pub use read::Watch;
pub use request::*;
pub use service::{Service, ServiceConfig};
