//! Trace contexts: as they come in headers, and as changes carry them.

use std::fmt::Write;
use std::num::NonZeroU64;
use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Longest `tracestate` that is passed on, in bytes; a longer one is left out, as is one that is malformed.
const STATE_LIMIT: usize = 512;

/// The trace that a request or a change belongs to. Small, and what the change log keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The W3C trace id, never all zero.
    pub id: [u8; 16],
    /// The span that whatever follows continues. `None`: the trace is not recorded, so there is none, and nobody
    /// who goes on with it records anything.
    pub span: Option<NonZeroU64>,
}

impl Trace {
    /// A trace that nobody records.
    pub fn unrecorded(id: [u8; 16]) -> Trace {
        Trace { id, span: None }
    }

    /// The id as it is written, 32 hexadecimal digits.
    pub fn id_text(&self) -> String {
        hex(&self.id)
    }

    /// What a child of it is started with; `None` where nothing is recorded.
    pub(crate) fn span_context(&self) -> Option<SpanContext> {
        let span = SpanId::from_bytes(self.span?.get().to_be_bytes());
        let id = TraceId::from_bytes(self.id);
        Some(SpanContext::new(id, span, TraceFlags::SAMPLED, true, TraceState::NONE))
    }

    pub(crate) fn of(context: &SpanContext) -> Trace {
        let span = u64::from_be_bytes(context.span_id().to_bytes());
        let span = NonZeroU64::new(span).filter(|_| context.is_sampled());
        Trace { id: context.trace_id().to_bytes(), span }
    }
}

/// A trace context that somebody else has sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming(pub(crate) SpanContext);

impl Incoming {
    /// Reads the headers `traceparent` and `tracestate`. A `traceparent` that is not as W3C says counts as none; so
    /// does a `tracestate`, whose loss loses nothing else.
    pub fn read(traceparent: &str, tracestate: Option<&str>) -> Option<Incoming> {
        let mut parts = traceparent.split('-');
        let (version, id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = bytes::<1>(version)?;
        // Later versions may say more after what this one says.
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let id = TraceId::from_bytes(bytes(id)?);
        let span = SpanId::from_bytes(bytes(span)?);
        let [flags] = bytes::<1>(flags)?;
        let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
        let state = tracestate
            .filter(|state| state.len() <= STATE_LIMIT)
            .and_then(|state| TraceState::from_str(state).ok())
            .unwrap_or_default();
        Some(Incoming(SpanContext::new(id, span, flags, true, state)))
            .filter(|incoming| incoming.0.is_valid())
    }

    /// The trace, as one that is not recorded here.
    pub fn unrecorded(&self) -> Trace {
        Trace::unrecorded(self.0.trace_id().to_bytes())
    }
}

/// The headers that pass a context on: `traceparent`, and `tracestate` where there is one.
pub(crate) fn headers(context: &SpanContext) -> (String, Option<String>) {
    let parent =
        format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    let state = context.trace_state().header();
    (parent, Some(state).filter(|state| !state.is_empty()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Exactly N bytes, written in lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut found = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in found.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn headers_are_read_as_the_standard_says() {
        let good = |flags: &str| format!("00-{ID}-{SPAN}-{flags}");
        let cases = [
            (good("01"), Some(true)),
            (good("00"), Some(false)),
            // Flags that mean nothing here.
            (good("03"), Some(true)),
            (good("fe"), Some(false)),
            // A later version, with more at its end.
            (format!("01-{ID}-{SPAN}-01-more"), Some(true)),
            (format!("cc-{ID}-{SPAN}-01"), Some(true)),
            (String::new(), None),
            ("00".to_owned(), None),
            (format!("00-{ID}-{SPAN}"), None),
            (format!("00-{ID}-{SPAN}-01-more"), None),
            (format!("00-{ID}-{SPAN}-1"), None),
            (format!("00-{ID}-{SPAN}-0g"), None),
            (format!("ff-{ID}-{SPAN}-01"), None),
            (format!("0-{ID}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", ID.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{ID}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{SPAN}-01", &ID[1..]), None),
            (format!("00-{ID}0-{SPAN}-01"), None),
            (format!(" 00-{ID}-{SPAN}-01"), None),
            (format!("00-{ID}-{SPAN}-01 "), None),
            (format!("00_{ID}_{SPAN}_01"), None),
            (format!("00-{}é-{SPAN}-01", &ID[2..]), None),
        ];
        for (header, sampled) in cases {
            let read = Incoming::read(&header, None);
            assert_eq!(read.as_ref().map(|read| read.0.is_sampled()), sampled, "{header:?}");
            if let Some(read) = read {
                assert_eq!(read.unrecorded().id_text(), ID, "{header:?}");
            }
        }
    }

    #[test]
    fn a_state_is_passed_on_or_left_out() {
        let parent = format!("00-{ID}-{SPAN}-01");
        let long = format!("a={}", "x".repeat(STATE_LIMIT));
        for (state, passed) in [
            ("rojo=00f067aa0ba902b7,congo=t61", Some("rojo=00f067aa0ba902b7,congo=t61")),
            ("", None),
            ("no pairs", None),
            (long.as_str(), None),
        ] {
            let (again, found) = headers(&Incoming::read(&parent, Some(state)).unwrap().0);
            assert_eq!((again.as_str(), found.as_deref()), (parent.as_str(), passed), "{state:?}");
        }
    }

    #[test]
    fn what_a_change_carries_goes_on_with_its_span() {
        let incoming = Incoming::read(&format!("00-{ID}-{SPAN}-01"), None).unwrap();
        let trace = Trace::of(&incoming.0);
        assert_eq!(trace.span.map(NonZeroU64::get), Some(0x00f0_67aa_0ba9_02b7));
        let again = trace.span_context().unwrap();
        assert_eq!((again.trace_id(), again.span_id()), (incoming.0.trace_id(), incoming.0.span_id()));
        let unrecorded = Incoming::read(&format!("00-{ID}-{SPAN}-00"), None).unwrap();
        assert_eq!(Trace::of(&unrecorded.0), unrecorded.unrecorded());
        assert!(unrecorded.unrecorded().span_context().is_none());
    }
}
