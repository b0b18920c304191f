//! Node sessions: desired state down, status up.
//!
//! A gateway ends the streams of nodes, and passes on to the API what else comes to their address
//! ([`transport`]). For each stream it holds a session that the database knows as the node's only
//! live one ([`session`]); down the stream goes what the node is to run ([`desired`]); up come heartbeats
//! ([`beats`]), what the node says of itself ([`node_status`]) and of its workloads ([`app_status`]), what it
//! measures ([`samples`]), and pieces of logs that somebody reads ([`logs`], [`relay`]). What each node may hold is on
//! record ([`records`]), so that a database that forgot something destroys nothing ([`desired::decision`], [`holds`]).
//! Whether a gateway may act at all is a matter of
//! its term ([`term`]). Any number of gateways work beside each other and know nothing of each other but what
//! is in the database: killing one costs its nodes one reconnect.

pub mod addresses;
pub mod app_status;
pub mod args;
pub mod beats;
pub mod desired;
pub mod egress;
pub mod events;
pub mod front;
pub mod gate;
pub mod gateway;
pub mod holds;
pub mod logs;
pub mod metrics;
pub mod node_status;
pub mod records;
pub mod relay;
pub mod run;
pub mod samples;
pub mod session;
pub mod settings;
pub mod strict;
pub mod term;
pub mod tokens;
pub mod transport;
