//! The scheduler: which pending Application goes to which Node.
//!
//! The core ([`cluster`], [`framework`], [`cycle`], [`plugins`], [`neighbours`], [`queue`], [`report`]) is pure: a view of the
//! cluster in, decisions out, no clock and no I/O, so that any fleet can be put before it in a test. The loop
//! around it ([`reconcile`]) reads one consistent snapshot, plans, and writes the difference: every binding is
//! an item of its own that the database accepts only while the Application is exactly as planned with, the
//! Node exists, its capacity suffices and this process still leads.
//!
//! Guaranteed: an Application that names a node is never moved or bound again; within one pass decisions see
//! each other; the order of the queue decides who gets the last place; the same view gives the same plan.
//! Not guaranteed: that a plan survives. What was refused at the commit is planned again from what is stored
//! then.

pub mod cluster;
pub mod cycle;
pub mod framework;
pub mod metrics;
mod neighbours;
pub mod plugins;
pub mod profile;
pub mod queue;
pub mod reconcile;
pub mod report;
