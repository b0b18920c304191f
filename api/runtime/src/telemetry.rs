//! Logs: to the standard error, as text for people or JSON for collectors.
//!
//! What is logged is the operator's choice, with one exception: the lines of [`REQUEST_LOG`] tell who did what, and
//! are there whatever else is filtered out. Lines of JSON that are written within a span that is recorded say its
//! `trace_id` and `span_id`.

use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::args::{LogFormat, TelemetryArgs};

/// Target of the lines about requests that somebody may have to answer for.
pub const REQUEST_LOG: &str = "horchestra::request";

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("the log filter {filter:?} is not valid")]
    Filter {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("logging is already set up in this process")]
    AlreadySet {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Sets up logging for the process, and logs panics instead of printing them.
pub fn init(args: &TelemetryArgs) -> Result<(), TelemetryError> {
    let lines = lines(args, io::stderr, io::stderr().is_terminal())?;
    tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .map_err(|source| TelemetryError::AlreadySet { source: Box::new(source) })?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// What is logged, and how it looks.
fn lines<S, W>(args: &TelemetryArgs, writer: W, colours: bool) -> Result<impl Layer<S>, TelemetryError>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let chosen = EnvFilter::builder()
        .parse(&args.log)
        .map_err(|source| TelemetryError::Filter { filter: args.log.clone(), source })?;
    let always = Targets::new().with_target(REQUEST_LOG, LevelFilter::INFO);
    let lines = fmt::layer().with_writer(writer);
    let lines = match args.log_format {
        LogFormat::Text => lines.with_ansi(colours).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).map_event_format(Correlated).boxed(),
    };
    Ok(lines.with_filter(chosen.or(always)))
}

/// Lines of JSON, with the current span.
struct Correlated<F>(F);

impl<S, N, F> FormatEvent<S, N> for Correlated<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let Some((trace, span)) = horchestra_trace::current_ids() else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        match line.strip_prefix('{') {
            Some(rest) => write!(writer, r#"{{"trace_id":"{trace}","span_id":"{span}",{rest}"#),
            None => writer.write_str(&line),
        }
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    tracing::error!(
        thread = thread.name().unwrap_or("unnamed"),
        location = panic.location().map(tracing::field::display),
        backtrace = %std::backtrace::Backtrace::capture(),
        "panic: {}",
        panic_text(panic.payload()),
    );
}

/// What a panic said.
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(a panic without a text)")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use opentelemetry::global;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_filter_leaves_the_request_log_out() {
        for (filter, expected) in [
            ("off", &["ANSWERED"][..]),
            ("error", &["ANSWERED"]),
            ("horchestra::request=off", &["ANSWERED"]),
            ("info", &["ELSEWHERE", "ANSWERED"]),
            ("warn,horchestra::request=debug", &["PLAIN-READ", "ANSWERED"]),
            ("debug", &["ELSEWHERE", "PLAIN-READ", "ANSWERED"]),
        ] {
            for log_format in [LogFormat::Text, LogFormat::Json] {
                let sink = Sink::default();
                let (args, writer) = (TelemetryArgs { log: filter.to_owned(), log_format }, sink.clone());
                let lines = lines(&args, move || writer.clone(), false).unwrap();
                tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
                    tracing::info!(target: "another", "ELSEWHERE");
                    tracing::debug!(target: REQUEST_LOG, "PLAIN-READ");
                    tracing::info!(target: REQUEST_LOG, "ANSWERED");
                });
                let text = String::from_utf8(sink.0.lock().clone()).unwrap();
                let all = ["ELSEWHERE", "PLAIN-READ", "ANSWERED"];
                let found: Vec<&str> = all.into_iter().filter(|word| text.contains(word)).collect();
                assert_eq!(found, expected, "{filter} {log_format:?}: {text}");
            }
        }
    }

    #[test]
    fn lines_of_json_say_which_span_they_belong_to() {
        global::set_tracer_provider(SdkTracerProvider::builder().build());
        horchestra_trace::install();
        let sink = Sink::default();
        let (args, writer) =
            (TelemetryArgs { log: "info".into(), log_format: LogFormat::Json }, sink.clone());
        let lines = lines(&args, move || writer.clone(), false).unwrap();
        let span = horchestra_trace::request("test", horchestra_trace::Role::Server, None);
        let parent = span.headers().expect("it is recorded").0;
        let parts: Vec<&str> = parent.split('-').collect();
        let (trace, id) = (parts[1], parts[2]);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::info!(name = "a \"quoted\" one", "OUTSIDE");
            span.within(|| tracing::info!(name = "a \"quoted\" one", "INSIDE"));
        });
        let text = String::from_utf8(sink.0.lock().clone()).unwrap();
        let (outside, inside) = text.trim_end().split_once('\n').unwrap();
        assert!(outside.contains("OUTSIDE") && !outside.contains("trace_id"), "{outside}");
        let begins = format!(r#"{{"trace_id":"{trace}","span_id":"{id}","timestamp":""#);
        assert!(
            inside.starts_with(&begins) && inside.ends_with('}') && inside.contains("INSIDE"),
            "{inside}"
        );
    }
}
