//! HTTP as this server speaks it: routes, parameters, negotiation, limits, answers, and the pipeline that
//! every request goes through.

pub mod audit;
pub mod body;
pub mod credentials;
pub mod limits;
pub mod negotiate;
pub mod paged;
pub mod patience;
mod pipeline;
pub mod query;
pub mod respond;
pub mod route;
mod trace;

pub use pipeline::Call;
