//! Leases, gateways, sessions, heartbeats and samples as values.

use std::time::Duration;

use bytes::Bytes;

use uuid::Uuid;

/// A held lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub name: String,
    pub holder: Uuid,
    pub epoch: i64,
}

/// What a gateway claims for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClaim {
    pub node: String,
    pub gateway: Uuid,
    pub peer: String,
    /// SHA-256 of the client certificate, lower-case hex.
    pub certificate: String,
}

/// Proof of a claimed session; both parts are fenced on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionGrant {
    pub epoch: i64,
    pub session: Uuid,
}

/// A session that was heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenSession {
    pub node: String,
    pub grant: SessionGrant,
    /// When the certificate ends that it was opened with, in microseconds since the epoch, as far as that is known; for
    /// people.
    pub certificate_ends: Option<i64>,
}

/// A row of the session table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub node: String,
    pub grant: SessionGrant,
    pub gateway: Uuid,
    /// `host:port` of the gateway's internal listener.
    pub internal_address: String,
    pub peer: String,
    /// SHA-256 of the client certificate that it was opened with, lower-case hex.
    pub certificate: String,
    /// Microseconds since the epoch, database clock.
    pub opened_at: i64,
    pub last_seen: i64,
}

/// How a node is sent volumes with tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenForm {
    /// As volumes of Secrets that are sent along.
    pub as_secrets: bool,
    /// What the names of those are made from; for nobody's eyes.
    pub salt: Uuid,
}

impl std::fmt::Debug for TokenForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenForm").field("as_secrets", &self.as_secrets).finish_non_exhaustive()
    }
}

/// Client certificates that are not believed though their authority is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeniedCertificates {
    /// Those of this common name that began to be valid until then, in microseconds since the epoch.
    Name { name: String, begun_until: i64 },
    /// The one with this SHA-256, lower-case hex.
    Fingerprint(String),
}

/// One heartbeat to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub node: String,
    /// CPU allocated as the node reports it (nano-cores), shown only.
    pub allocated_cpu: i64,
    /// Memory allocated as the node reports it (bytes), shown only.
    pub allocated_memory: i64,
}

/// A recorded heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatRow {
    pub heartbeat: Heartbeat,
    /// Microseconds since the epoch, database clock.
    pub at: i64,
    /// By the database clock, at the time of the query. Nothing when the clock was set back since.
    pub age: Duration,
    /// The time of the query: microseconds since the epoch, database clock.
    pub now: i64,
    /// Since when the gateway that has been there for the longest has been in its term without a break; same unit and
    /// clock. `None`: no gateway was in its term then, and nobody heard nodes.
    pub served_since: Option<i64>,
}

/// What was measured on a node, to be kept in the place of what was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    pub node: String,
    /// The session that brought them.
    pub grant: SessionGrant,
    pub body: Bytes,
}

/// Kept samples of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplesRow {
    pub node: String,
    /// By the database clock, at the time of the query.
    pub age: Duration,
    pub body: Bytes,
}
