//! Logs: to the standard error, as text for people or JSON for collectors.

use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;

use tracing_subscriber::EnvFilter;

use crate::args::{LogFormat, TelemetryArgs};

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
    let filter = EnvFilter::builder()
        .parse(&args.log)
        .map_err(|source| TelemetryError::Filter { filter: args.log.clone(), source })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match args.log_format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|source| TelemetryError::AlreadySet { source })?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
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
