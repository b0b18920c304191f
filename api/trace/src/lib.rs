//! Traces: what travels with a request and with the changes that it makes, and the spans along its way.
//!
//! A request comes with a W3C trace context or gets one ([`Incoming`], [`request`]). What it changes carries a
//! [`Trace`] in the change log, so whoever acts because of a change, in whichever process, goes on with the trace
//! that the change was made in ([`child`]). Parents are handed over explicitly, from request to change to loop;
//! the *current* span of a task ([`Span::around`]) is there for log lines, and as something to link to.
//!
//! # What it costs
//!
//! Nothing is recorded until [`install`] was called. Until then, and for every trace that was not chosen to be
//! recorded, a [`Span`] is an empty value: no allocation, no clock, no attribute is computed. The choice is made once
//! per trace, by the sampler, where the trace begins; it stands in the context that is passed on, and everybody
//! after keeps to it.
//!
//! # What was refused
//!
//! Spans of the `tracing` crate with a layer that exports them: the filters of logs would have a say in what is
//! traced, and requests that nobody records would pay for spans all the same.

mod context;
mod span;

pub use context::{Incoming, Trace};
pub use opentelemetry::{KeyValue, Value};
pub use span::{
    Role, Span, child, child_since, current, current_headers, current_ids, enabled, install, linked, request,
};

/// An attribute of a span.
pub fn attribute(key: &'static str, value: impl Into<Value>) -> KeyValue {
    KeyValue::new(key, value)
}
