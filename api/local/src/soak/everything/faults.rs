//! What can happen, and how soon it should be got over.

use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    ApiKilled,
    /// A replica of the API stands still, and goes on.
    ApiStopped,
    /// One replica after the other is told to end, the next one when the last is ready again.
    ApisRolled,
    /// The balancer in front of the API drops all connections.
    ClientsCut,
    /// The process that leads the scheduler is killed.
    LeaderKilled,
    /// It stands still until somebody else leads, and goes on.
    LeaderStopped,
    /// It is told to end.
    LeaderResigned,
    /// One that does not lead the scheduler.
    WorkerKilled,
    WorkerStopped,
    GatewayKilled,
    /// A gateway stands still until its nodes have moved on, and goes on.
    GatewayStopped,
    AgentKilled,
    AgentStopped,
    /// PostgreSQL crashes: what it calls an immediate shutdown.
    DatabaseCrashed,
    /// What it calls a fast shutdown.
    DatabaseRestarted,
    /// All processes of PostgreSQL stand still, and go on.
    DatabaseStopped,
    /// All connections to the database are ended.
    SessionsEnded,
    /// Those of one program are.
    ProgramCut,
    /// The connections that listen are ended, and no others.
    ListenersEnded,
    /// Nodes cannot reach a gateway.
    NodesCutOff,
    /// A gateway cannot reach the database.
    GatewayCutOff,
}

/// In this order for the first time, so that a short run has those of which most can come.
pub const ALL: [Fault; 21] = [
    Fault::LeaderKilled,
    Fault::ApiKilled,
    Fault::GatewayKilled,
    Fault::DatabaseCrashed,
    Fault::LeaderResigned,
    Fault::ListenersEnded,
    Fault::AgentKilled,
    Fault::ApisRolled,
    Fault::LeaderStopped,
    Fault::SessionsEnded,
    Fault::GatewayStopped,
    Fault::DatabaseStopped,
    Fault::ApiStopped,
    Fault::ClientsCut,
    Fault::DatabaseRestarted,
    Fault::ProgramCut,
    Fault::GatewayCutOff,
    Fault::NodesCutOff,
    Fault::WorkerKilled,
    Fault::AgentStopped,
    Fault::WorkerStopped,
];

impl Fault {
    /// Whether it takes a network that can be pulled.
    pub fn needs_network(self) -> bool {
        matches!(self, Fault::NodesCutOff | Fault::GatewayCutOff)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::ApiKilled => "API killed",
            Fault::ApiStopped => "API stood still",
            Fault::ApisRolled => "APIs restarted in turn",
            Fault::ClientsCut => "clients cut",
            Fault::LeaderKilled => "leader killed",
            Fault::LeaderStopped => "leader stood still",
            Fault::LeaderResigned => "leader resigned",
            Fault::WorkerKilled => "other worker killed",
            Fault::WorkerStopped => "other worker stood still",
            Fault::GatewayKilled => "gateway killed",
            Fault::GatewayStopped => "gateway stood still",
            Fault::AgentKilled => "agent killed",
            Fault::AgentStopped => "agent stood still",
            Fault::DatabaseCrashed => "PostgreSQL crashed",
            Fault::DatabaseRestarted => "PostgreSQL restarted",
            Fault::DatabaseStopped => "PostgreSQL stood still",
            Fault::SessionsEnded => "all database sessions ended",
            Fault::ProgramCut => "database sessions of one program ended",
            Fault::ListenersEnded => "listening sessions ended",
            Fault::NodesCutOff => "nodes cut off a gateway",
            Fault::GatewayCutOff => "gateway cut off the database",
        })
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// A replica is killed: longest time without an answer for clients of the others.
    Others,
    /// The same for clients of the balancer.
    Balanced,
    /// The leader is killed: until a new Application is bound by another.
    TakenOver,
    /// The leader resigns: the same.
    HandedOver,
    /// A gateway is killed: until its nodes are all served, and what is new for them runs.
    NodesBack,
    /// PostgreSQL crashed and answers again: until a write through every replica is acknowledged and seen.
    WritesBack,
    /// Replicas restart in turn: longest time without an answer for clients of the balancer.
    Rolled,
    /// A leader that stood still: until a new Application is bound by another.
    Overtaken,
}

impl Measure {
    /// What it should be at most, if anybody said so.
    pub fn goal(self) -> Option<Duration> {
        let seconds = match self {
            Measure::Others | Measure::Balanced | Measure::HandedOver => 1,
            Measure::TakenOver | Measure::NodesBack => 15,
            Measure::WritesBack => 5,
            Measure::Rolled | Measure::Overtaken => return None,
        };
        Some(Duration::from_secs(seconds))
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Measure::Others => "API killed, clients of the others",
            Measure::Balanced => "API killed, clients of the balancer",
            Measure::TakenOver => "leader killed, until a bind",
            Measure::HandedOver => "leader resigned, until a bind",
            Measure::NodesBack => "gateway killed, until its nodes run what is new",
            Measure::WritesBack => "PostgreSQL back, until writes are seen",
            Measure::Rolled => "APIs in turn, clients of the balancer",
            Measure::Overtaken => "leader stood still, until a bind",
        })
    }
}
