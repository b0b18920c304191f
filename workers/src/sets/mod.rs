//! The loop that keeps ApplicationSets: what a set says, there is.
//!
//! The core ([`mod@plan`], [`gates`], [`budget`], [`teardown`], [`mod@report`]) is pure: a [`Situation`] in, steps and a
//! report out, no clock and no I/O. Around it, [`reconcile`] takes one snapshot, plans each set on its own, and
//! [`apply`] writes the steps. Nothing is remembered that the next pass could not find out again, so a loop that
//! is stopped between any two writes goes on where it was; what is kept between passes only saves work.
//!
//! # What is guaranteed
//!
//! * **The budget of a rollout is kept by the database, not by this loop.** A step that takes an available child
//!   down names, as guards, as many siblings as must stay available, each in the very revision (and on a node in
//!   the very revision) in which it was available. Whatever happens between the look and the commit, the step is
//!   refused rather than one child too many taken down. Children that are down cost nothing and are changed at
//!   once. A child that is still to be made counts as down.
//! * **Every step rests on the set as it was read.** So a set that is being deleted, was frozen or says something
//!   else by now creates nothing, changes nothing and deletes nothing by an old plan.
//! * **Order.** Components that run to their end do so one after the other, each to the end of what the set says
//!   of it now, before anything that is kept running is made or changed; that they still are done is a guard too.
//!   Gates only ever hold back: what runs already is not deleted because a gate has closed behind it.
//! * **Only what is the set's own is touched**, by owner and uid, never by labels. A name that somebody else has
//!   is told of in the condition `Applied`. A Service that somebody else has is joined as it is.
//! * **Steady state writes nothing**, and is not even planned again while nothing that it rests on has changed.
//!
//! Not done here: deleting children whose set is gone without having waited for them, which is for whoever
//! collects garbage; moving children off a node that is lost; undoing a rollout that does not get on.

pub mod apply;
pub mod budget;
pub mod gates;
pub mod metrics;
pub mod plan;
pub mod reconcile;
pub mod report;
pub mod situation;
pub mod teardown;

pub use metrics::SetMetrics;
pub use plan::plan;
pub use reconcile::Sets;
pub use situation::Situation;
