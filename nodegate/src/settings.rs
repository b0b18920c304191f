//! Every time and limit of a gateway, with its default and the reason for it.

use std::time::Duration;

use horchestra_core::ranges::Network;
use horchestra_runtime::proxy::Block;

use crate::strict::ReverseNames;
use crate::transport::splice::{self, Backend};

/// Shortest time without a message after which a session may be taken over.
pub const SHORTEST_STALE: Duration = Duration::from_secs(60);

/// What a gateway runs by. Tests shorten times; the binary sets a few from its arguments.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port` under which API replicas reach the internal listener.
    pub internal_address: String,
    /// What this gateway is called, beyond the life of its process; `None` = it is a new one each time.
    pub name: Option<String>,
    /// How long a gateway's claim on its sessions lasts without renewal (database clock).
    pub term: Duration,
    /// How often the term is renewed.
    pub renew_every: Duration,
    /// How long before the end of its term a gateway stops to act, whatever the clocks do.
    pub margin: Duration,
    /// How long a gateway that cannot reach the database keeps its streams.
    pub give_up_after: Duration,
    /// Over how long streams are then closed.
    pub give_up_over: Duration,
    /// After how long without any message a session may be taken over.
    pub stale_after: Duration,
    /// How often the database is told which sessions are alive, of those that send no heartbeats.
    pub touch_every: Duration,
    /// How often heartbeats are recorded. With samples and signs of life this makes less than one statement a second,
    /// whatever the number of nodes.
    pub beat_every: Duration,
    /// How often samples are kept.
    pub sample_every: Duration,
    /// How often a desired state is sent again though nothing changed; `None` = never.
    pub resend_every: Option<Duration>,
    /// Shortest time between two pushes to one node.
    pub push_gap: Duration,
    /// The same, when a placement or a deletion waits.
    pub urgent_gap: Duration,
    /// Largest desired state that is sent, in bytes: below what agents accept, with room for framing.
    pub push_limit: usize,
    /// Contents of Secrets that are kept in the clear to be sent again, in bytes.
    pub opened_limit: usize,
    /// How old the tokens of a node get before all of them are renewed: drawn between these two. They are good for
    /// fifteen minutes, and for the last five nobody should have to rely on them.
    pub token_age: (Duration, Duration),
    /// After how long something is tried again that a push had to go without.
    pub retry_every: Duration,
    /// Shortest time between two publications of what all nodes are sent (routes, rules of Services).
    pub fleet_gap: Duration,
    /// How many bytes per second may be sent for such a publication.
    pub fleet_egress: u64,
    /// The most bytes of it: leaves each node room for its own.
    pub fleet_limit: usize,
    /// Where workloads with a network of their own get their addresses from; `None` = they get none.
    pub routed_range: Option<Network>,
    /// Where Services get theirs from, which workloads do not get.
    pub service_range: Option<Network>,
    /// How long an address that was given back stays free (database clock): its last holder may be running still.
    pub address_hold: Duration,
    /// How often addresses are asked for again that there were none of.
    pub address_retry: Duration,
    /// How stale this process's copy of the database may be for anything to be pushed from it.
    pub push_staleness: Duration,
    /// How long the database must have been answering before the first push of a session: other processes that have
    /// known more than it has get that time to say so.
    pub settle: Duration,
    /// How long the first push of a session waits for the node's first report of itself.
    pub first_report: Duration,
    /// How much older than the database a node's certificate may be for the first push that the database has for it.
    pub older_by: Duration,
    /// How often the holds on pushes are read.
    pub holds_every: Duration,
    /// How long an agent gets to finish a pass that it does not close itself.
    pub pass_quiet: Duration,
    /// After how long a second pass is asked for when everything on a node looks gone.
    pub confirm_after: Duration,
    /// TLS handshakes per second.
    pub accepts_per_second: u32,
    /// Session claims per second.
    pub claims_per_second: u32,
    /// Longest wait for the database to answer claims.
    pub claim_timeout: Duration,
    /// Longest wait of a node for its claim, behind those of others.
    pub claim_patience: Duration,
    /// How long a client may take to say what it wants, before TLS.
    pub hello_timeout: Duration,
    /// How many may be about to say it; the limit is well above what comes within a round trip.
    pub arrivals: usize,
    /// Longest wait for a TLS handshake to begin. Agents give up after 20 s.
    pub accept_patience: Duration,
    /// Longest TLS handshake.
    pub handshake_timeout: Duration,
    /// Replicas of the API, to which what is no stream of a node is passed on; none: it is turned away.
    pub api_backends: Vec<Backend>,
    pub splice: splice::Limits,
    /// Peers that may say by a PROXY header whom they speak for.
    pub proxies: Vec<Block>,
    /// How long a connection without a stream is kept.
    pub idle_timeout: Duration,
    /// How often HTTP/2 pings are sent, and how long an answer may take.
    pub ping_every: Duration,
    pub ping_timeout: Duration,
    /// How long a stream that was ended may take to notice before its connection is cut.
    pub end_grace: Duration,
    /// Reports being written at the same time, in this process and per session.
    pub writes: usize,
    pub writes_per_session: usize,
    /// Logs that may be read at the same time through this gateway.
    pub log_streams: usize,
    /// How long a node may take to accept a log request.
    pub log_open_timeout: Duration,
    /// How long the reader of a log may take nothing before it is cut off.
    pub log_stall: Duration,
    /// Over how long sessions are sent away on shutdown, at most.
    pub drain_over: Duration,
    /// Where to look up the names of new nodes' addresses; `None` = every node may register.
    pub strict_registration: Option<ReverseNames>,
}

impl Default for Settings {
    fn default() -> Settings {
        let secs = Duration::from_secs;
        let millis = Duration::from_millis;
        Settings {
            internal_address: String::new(),
            name: None,
            term: secs(8),
            renew_every: secs(2),
            margin: secs(2),
            give_up_after: secs(19),
            give_up_over: secs(5),
            stale_after: SHORTEST_STALE,
            touch_every: secs(10),
            beat_every: secs(2),
            sample_every: secs(5),
            resend_every: Some(secs(300)),
            push_gap: millis(200),
            urgent_gap: millis(50),
            push_limit: horchestra_proto::MAX_MESSAGE_BYTES - (64 << 10),
            opened_limit: 32 << 20,
            token_age: (secs(540), secs(600)),
            retry_every: secs(30),
            fleet_gap: secs(1),
            fleet_egress: 64 << 20,
            fleet_limit: 3 << 20,
            routed_range: None,
            service_range: None,
            address_hold: secs(600),
            address_retry: secs(10),
            push_staleness: secs(30),
            settle: secs(5),
            first_report: secs(5),
            older_by: secs(24 * 3600),
            holds_every: secs(3),
            pass_quiet: secs(2),
            confirm_after: secs(1),
            accepts_per_second: 500,
            claims_per_second: 500,
            claim_timeout: secs(5),
            claim_patience: secs(15),
            hello_timeout: secs(10),
            arrivals: 8192,
            accept_patience: secs(10),
            handshake_timeout: secs(10),
            api_backends: Vec::new(),
            splice: splice::Limits::default(),
            proxies: Vec::new(),
            idle_timeout: secs(120),
            ping_every: secs(15),
            ping_timeout: secs(20),
            end_grace: secs(10),
            writes: 256,
            writes_per_session: 16,
            log_streams: 256,
            log_open_timeout: secs(5),
            log_stall: secs(30),
            drain_over: secs(60),
            strict_registration: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_of_the_database_within_twenty_seconds_costs_no_stream_and_no_gateway_acts_past_its_term() {
        let settings = Settings::default();
        let acts_for = settings.term - settings.margin;
        // The last renewal may have been as long ago as they are apart.
        let gives_up_at_the_earliest = acts_for - settings.renew_every + settings.give_up_after;
        assert!(gives_up_at_the_earliest > Duration::from_secs(20) + settings.renew_every);
        assert!(acts_for < settings.term && settings.renew_every * 2 < acts_for);
        // And nodes that leave one that stays cut off are heard of elsewhere before they would be judged silent: the
        // last heartbeat may have been recorded long before the cut, and agents dial every five seconds.
        let (beats_every, dials_every) = (Duration::from_secs(5), Duration::from_secs(5));
        let last_heard = beats_every + settings.beat_every;
        let left_at_the_latest = acts_for + settings.give_up_after + settings.give_up_over;
        let heard_again = last_heard + left_at_the_latest + dials_every + settings.beat_every;
        assert!(heard_again < Duration::from_secs(45), "{heard_again:?}");
    }

    #[test]
    fn nodes_of_a_gateway_that_was_killed_have_sessions_again_within_fifteen_seconds() {
        // Agents dial every five seconds, whatever they were told before.
        let (dials_every, to_be_taken_in) = (Duration::from_secs(5), Duration::from_secs(2));
        let without = Settings::default().term + dials_every + to_be_taken_in;
        assert!(without <= Duration::from_secs(15), "{without:?}");
    }
}
