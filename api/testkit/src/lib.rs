//! What tests need around them: a private PostgreSQL, databases made from a migrated template, free ports,
//! temporary folders and waits that poll.
//!
//! The usual test asks for a [`Template`] and takes a database of its own from it:
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use horchestra_testkit::Template;
//! let template = Template::prepare("store", b"hash me: all the migrations", async |url| {
//!     let _ = url; // run the migrations here, and close the connections
//!     Ok(())
//! })
//! .await?;
//! let database = template.database().await?; // dropped with the value
//! println!("{}", database.url());
//! # Ok(()) }
//! ```
//!
//! A test that hurts its PostgreSQL (stops it, kills it, fills it) starts a [`Cluster`] of its own.
//!
//! A test with a [`Pooler`] asks first whether PgBouncer is there ([`Pooler::program`]), says so when it is not, and
//! passes over.
//!
//! `TEST_DATABASE_URL`, when set, names a server to use in place of the shared private one (a role that may
//! create databases). [`Cluster::start`] never looks at it.

pub mod binaries;
mod cluster;
mod database;
mod files;
mod link;
mod listed;
mod pooler;
mod shared;
mod wait;
mod warden;

pub use binaries::program as postgres_program;
pub use cluster::{Cluster, ClusterOptions, Shutdown};
pub use database::{Template, TestDatabase, empty_database, server_url};
pub use files::{TempDir, free_port};
pub use link::Link;
pub use listed::tests_of;
pub use pooler::{Pooler, Pooling};
pub use wait::{Probe, eventually, eventually_blocking};
