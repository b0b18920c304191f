//! The one door for every read and write.
//!
//! Clients of the API, control loops and node gateways all go through [`Service`]. What that buys:
//!
//! * **One pipeline.** Decoding, defaults, validation, admission, guards and the commit are the same for
//!   everybody; which admission plugin runs for whom is one table that a test walks through completely.
//! * **No rule is checked and hoped for.** What a write rests on outside of its own object (a namespace that
//!   exists, a node with room) goes into the commit as a guard, and holds between replicas and within one
//!   batch.
//! * **No caller without a name.** A [`Caller`] is never optional; a loop or a gateway cannot write a single
//!   item without the guard that its lease or session still stands.
//! * **A revision has one meaning.** A listing is of a revision, a watch goes on from it without gap or
//!   repetition, and a read that names none sees everything that was acknowledged before it began.
//!
//! What it does not do: decide who may do what (callers are authorized before they get here), speak HTTP or
//! gRPC, keep state between calls beyond caches that may be lost at any time.
//!
//! Writing is described in the module `write`, rules in `admission`, the narrow doors of loops and gateways
//! in `doors`, reading in `read`, how Events are recorded in `events`; what is done about sealed objects in
//! [`sealing`], and how the objects of another control plane come in in [`import`].

mod admission;
mod caller;
mod clock;
mod conditions;
pub mod denied;
mod doors;
mod errors;
mod events;
pub mod import;
mod placement;
mod read;
mod request;
mod rules;
pub mod sealing;
mod service;
pub mod settings;
mod write;

pub use caller::{Caller, Client, RequestContext, program_of};
pub use events::{EventRecord, Fate, Observer, Recorder, Subject};
pub use read::Watch;
pub use request::*;
pub use rules::CachedRules;
pub use service::{Service, ServiceConfig};
