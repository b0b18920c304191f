//! What every binary needs before it can do its own work: arguments, telemetry, metrics, health, shutdown,
//! supervised tasks and TLS that follows its files.
//!
//! A `main` reads like this: [`crypto::install`], parse arguments, [`telemetry::init`], [`Traces::begin`], [`Shutdown::install`],
//! [`Metrics::new`], [`Tasks::new`], [`health::serve`], the binary's own tasks, [`Shutdown::finish`], [`Traces::finish`].

pub mod args;
pub mod backoff;
pub mod crypto;
pub mod follow;
pub mod health;
pub mod keys;
pub mod metrics;
mod otlp;
pub mod peer;
pub mod probe;
mod process;
mod progress;
pub mod proxy;
mod readings;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod tls;

pub use backoff::Backoff;
pub use health::Checks;
pub use metrics::Metrics;
pub use otlp::Traces;
pub use peer::PeerChain;
pub use process::{forgo_huge_pages, host_name, place, raise_file_limit};
pub use progress::Progress;
pub use shutdown::Shutdown;
pub use tasks::Tasks;
