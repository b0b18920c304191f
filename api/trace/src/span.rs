//! Spans, which are nothing at all where nothing is recorded.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{FutureExt, Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use crate::context::{Incoming, Trace, headers};

/// Most links of a span; the rest is counted in an attribute.
const LINKS: usize = 128;

static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// Records spans from now on, with the provider that OpenTelemetry holds for the process.
pub fn install() {
    let _ = TRACER.set(global::tracer("horchestra"));
}

/// Whether anything may be recorded.
pub fn enabled() -> bool {
    TRACER.get().is_some()
}

/// What a span is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Internal,
    /// Answers a call of another process.
    Server,
    /// Calls another process.
    Client,
    /// Sends what is worked on later.
    Producer,
    /// Works on what was sent.
    Consumer,
}

impl From<Role> for SpanKind {
    fn from(role: Role) -> SpanKind {
        match role {
            Role::Internal => SpanKind::Internal,
            Role::Server => SpanKind::Server,
            Role::Client => SpanKind::Client,
            Role::Producer => SpanKind::Producer,
            Role::Consumer => SpanKind::Consumer,
        }
    }
}

/// A stretch of work; or nothing, apart from the context that somebody else has sent and that is passed on. Ends when
/// it is dropped.
#[derive(Debug, Default)]
pub struct Span {
    context: Option<Context>,
    recorded: bool,
}

/// The first span of this process in a trace: of one that somebody has begun, or of a new one. Whether it is
/// recorded is the sampler's choice; where it is not, the context that came is passed on as it is.
pub fn request(name: &'static str, role: Role, incoming: Option<&Incoming>) -> Span {
    let tracer = TRACER.get();
    if tracer.is_none() && incoming.is_none() {
        return Span::none();
    }
    let parent = match incoming {
        Some(incoming) => Context::new().with_remote_span_context(incoming.0.clone()),
        None => Context::new(),
    };
    let span = tracer.map_or(Span::none(), |tracer| start(tracer, name, role, &parent));
    match incoming {
        Some(_) if !span.recorded => Span { context: Some(parent), recorded: false },
        _ => span,
    }
}

/// A span that goes on with a trace, if that is recorded.
pub fn child(name: &'static str, role: Role, parent: Option<Trace>) -> Span {
    match parent.and_then(|parent| Some((TRACER.get()?, parent.span_context()?))) {
        None => Span::none(),
        Some((tracer, parent)) => start(tracer, name, role, &Context::new().with_remote_span_context(parent)),
    }
}

/// A span for work that several traces have asked for: it goes on with the first that is recorded, and has links to
/// the others.
pub fn linked(name: &'static str, role: Role, of: impl IntoIterator<Item = Trace>) -> Span {
    if !enabled() {
        return Span::none();
    }
    let mut traces = of.into_iter().filter(|trace| trace.span.is_some());
    let span = child(name, role, traces.next());
    if span.is_recorded() {
        let mut left_out = 0;
        for (at, trace) in traces.enumerate() {
            if at < LINKS { span.link(trace) } else { left_out += 1 }
        }
        if left_out > 0 {
            span.set(|| [KeyValue::new("horchestra.links.left_out", left_out)]);
        }
    }
    span
}

/// As [`child`], for one that began some time ago.
pub fn child_since(name: &'static str, role: Role, parent: Option<Trace>, ago: Duration) -> Span {
    match parent.and_then(|parent| Some((TRACER.get()?, parent.span_context()?))) {
        None => Span::none(),
        Some((tracer, parent)) => {
            let parent = Context::new().with_remote_span_context(parent);
            let began = SystemTime::now() - ago;
            recorded(tracer.span_builder(name).with_kind(role.into()).with_start_time(began), tracer, &parent)
        }
    }
}

fn start(tracer: &BoxedTracer, name: &'static str, role: Role, parent: &Context) -> Span {
    recorded(tracer.span_builder(name).with_kind(role.into()), tracer, parent)
}

fn recorded(builder: SpanBuilder, tracer: &BoxedTracer, parent: &Context) -> Span {
    let span = tracer.build_with_context(builder, parent);
    match span.is_recording() {
        true => Span { context: Some(Context::new().with_span(span)), recorded: true },
        false => Span::none(),
    }
}

impl Span {
    pub const fn none() -> Span {
        Span { context: None, recorded: false }
    }

    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    fn recording(&self) -> Option<&Context> {
        self.context.as_ref().filter(|_| self.recorded)
    }

    /// What others go on with. `None`: there is no trace.
    pub fn trace(&self) -> Option<Trace> {
        self.context.as_ref().map(of)
    }

    /// `traceparent` and `tracestate` for calls that are made within it.
    pub fn headers(&self) -> Option<(String, Option<String>)> {
        self.context.as_ref().map(|context| headers(context.span().span_context()))
    }

    /// Adds attributes, which are only computed where they are recorded.
    pub fn set<const N: usize>(&self, attributes: impl FnOnce() -> [KeyValue; N]) {
        if let Some(context) = self.recording() {
            context.span().set_attributes(attributes());
        }
    }

    /// Names it anew, once more is known.
    pub fn rename(&self, name: impl FnOnce() -> String) {
        if let Some(context) = self.recording() {
            context.span().update_name(name());
        }
    }

    /// Points to another span that has to do with this one.
    pub fn link(&self, to: Trace) {
        if let (Some(context), Some(to)) = (self.recording(), to.span_context()) {
            context.span().add_link(to, Vec::new());
        }
    }

    /// What was done in it did not succeed.
    pub fn fail(&self, why: impl FnOnce() -> Cow<'static, str>) {
        if let Some(context) = self.recording() {
            context.span().set_status(Status::error(why()));
        }
    }

    /// Does the work with this as the current span.
    pub async fn around<F: Future>(&self, work: F) -> F::Output {
        match &self.context {
            None => work.await,
            Some(context) => Box::pin(work).with_context(context.clone()).await,
        }
    }

    /// As [`Span::around`], for work that does not wait.
    pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        let _current = self.context.as_ref().map(|context| context.clone().attach());
        work()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(context) = self.recording() {
            context.span().end();
        }
    }
}

fn of(context: &Context) -> Trace {
    let (span, recorded) = (context.span(), context.span().is_recording());
    let trace = Trace::of(span.span_context());
    if recorded { trace } else { Trace::unrecorded(trace.id) }
}

/// The trace of the current span of this task.
pub fn current() -> Option<Trace> {
    Context::map_current(|context| context.has_active_span().then(|| of(context)))
}

/// `traceparent` and `tracestate` for calls that are made within the current span of this task.
pub fn current_headers() -> Option<(String, Option<String>)> {
    Context::map_current(|context| context.has_active_span().then(|| headers(context.span().span_context())))
}

/// The current span of this task as it is written, where it is recorded: trace id and span id.
pub fn current_ids() -> Option<(String, String)> {
    if !enabled() {
        return None;
    }
    current().and_then(|trace| Some((trace.id_text(), format!("{:016x}", trace.span?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU64;

    /// Nothing is installed in this test's process.
    #[test]
    fn without_a_tracer_there_is_nothing() {
        let trace = Trace { id: [7; 16], span: NonZeroU64::new(1) };
        let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let incoming = Incoming::read(header, None);
        for span in [
            request("request", Role::Server, None),
            child("child", Role::Internal, Some(trace)),
            linked("linked", Role::Internal, [trace, trace]),
        ] {
            assert!(!span.is_recorded() && span.trace().is_none() && span.headers().is_none());
            span.set(|| -> [KeyValue; 1] { panic!("computed for nobody") });
            span.rename(|| panic!("computed for nobody"));
            span.fail(|| panic!("computed for nobody"));
            assert_eq!(span.within(current), None);
        }
        // What came is passed on, and not recorded.
        let passed = request("request", Role::Server, incoming.as_ref());
        assert!(!passed.is_recorded());
        assert_eq!(passed.trace(), incoming.as_ref().map(Incoming::unrecorded));
        assert_eq!(passed.headers().unwrap().0, header);
        assert_eq!(passed.within(|| (current(), current_ids())), (passed.trace(), None));
        assert!(child("child", Role::Internal, passed.trace()).trace().is_none());
        assert_eq!((current(), current_ids()), (None, None));
    }
}
