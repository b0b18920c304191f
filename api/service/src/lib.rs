//! The one door for every read and write.

mod caller;
mod request;
mod service;
pub mod settings;
mod watch;

pub use caller::{Caller, RequestContext};
pub use request::*;
pub use service::{Service, ServiceConfig};
pub use watch::Watch;
