//! What a gateway counts.

use std::sync::{Arc, Weak};

use horchestra_runtime::Metrics;
use horchestra_service::{Fate, Observer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Unit;

use crate::gate::Gate;
use crate::term::Standing;
use crate::transport::metrics::TransportMetrics;
use crate::transport::serve::{CONNECTION_WINDOW, STREAM_WINDOW};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Why {
    pub(crate) why: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FateLabels {
    fate: &'static str,
}

/// The counters of a gateway. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GateMetrics {
    pub handshakes_failed: Counter,
    pub sessions_opened: Counter,
    pub sessions_refused: Counter,
    pub sessions_ended: Counter,
    pub heartbeats: Counter,
    pub pushes: Counter,
    push_bytes: Histogram,
    pub pushes_withheld: Counter,
    pub push_records: Counter,
    pub secrets_unopened: Counter,
    pub tokens_failed: Counter,
    pub fleet_published: Counter,
    pub addresses_leased: Counter,
    pub reports: Counter,
    pub reports_coalesced: Counter,
    pub reports_suppressed: Counter,
    pub reports_written: Counter,
    pub reports_unchanged: Counter,
    pub reports_dropped: Family<Why, Counter>,
    pub fenced: Counter,
    pub samples: Counter,
    pub samples_dropped: Family<Why, Counter>,
    pub samples_kept: Counter,
    pub logs_opened: Counter,
    pub log_chunks_dropped: Counter,
    pub events_observed: Family<FateLabels, Counter>,
    pub transport: TransportMetrics,
}

impl GateMetrics {
    pub fn new(metrics: &Metrics) -> GateMetrics {
        GateMetrics {
            handshakes_failed: metrics.counter("gate_handshakes_failed", "Connections without a TLS session"),
            sessions_opened: metrics.counter("gate_sessions_opened", "Sessions opened"),
            sessions_refused: metrics
                .counter("gate_sessions_refused", "Sessions refused, for their caller or a live session"),
            sessions_ended: metrics.counter("gate_sessions_ended", "Sessions ended"),
            heartbeats: metrics.counter("gate_heartbeats", "Heartbeats recorded"),
            pushes: metrics.counter("gate_pushes", "Desired states offered to nodes"),
            push_bytes: metrics.register_with_unit(
                "gate_push",
                "Size of the desired states offered to nodes",
                Unit::Bytes,
                Histogram::new(exponential_buckets(1024.0, 4.0, 7)),
            ),
            pushes_withheld: metrics
                .counter("gate_pushes_withheld", "Times that a desired state could not be sent"),
            push_records: metrics
                .counter("gate_push_records", "Changes written to the records of what nodes may hold"),
            secrets_unopened: metrics.counter(
                "gate_secrets_unopened",
                "Times that a push went without a Secret that does not open",
            ),
            tokens_failed: metrics.counter("gate_tokens_failed", "Tokens that could not be made"),
            fleet_published: metrics
                .counter("gate_fleet_published", "Publications of what all nodes are sent"),
            addresses_leased: metrics
                .counter("gate_addresses_leased", "Addresses of workloads that were asked for and had"),
            reports: metrics.counter("gate_reports", "Reports about Applications received"),
            reports_coalesced: metrics
                .counter("gate_reports_coalesced", "Reports replaced by newer ones before they were written"),
            reports_suppressed: metrics
                .counter("gate_reports_suppressed", "Reports that repeat what was written last"),
            reports_written: metrics.counter("gate_reports_written", "Reports that changed an object"),
            reports_unchanged: metrics
                .counter("gate_reports_unchanged", "Reports that the object already agreed with"),
            reports_dropped: metrics.counters("gate_reports_dropped", "Reports that were not believed"),
            fenced: metrics.counter("gate_fenced", "Writes refused because the session had been lost"),
            samples: metrics.counter("gate_samples", "Usage samples received"),
            samples_dropped: metrics.counters("gate_samples_dropped", "Usage samples that do not count"),
            samples_kept: metrics.counter(
                "gate_samples_kept",
                "Times that the samples of a node were written to the database",
            ),
            logs_opened: metrics.counter("gate_logs_opened", "Logs opened"),
            log_chunks_dropped: metrics
                .counter("gate_log_chunks_dropped", "Pieces of logs dropped for slow readers"),
            events_observed: metrics
                .counters("events_observed", "Observations for Events, by what became of them"),
            transport: TransportMetrics::new(metrics),
        }
    }

    /// Counts what became of observations.
    pub fn observer(&self) -> Observer {
        let observed = self.events_observed.clone();
        Arc::new(move |fate: Fate, count| {
            observed.get_or_create(&FateLabels { fate: fate.word() }).inc_by(count);
        })
    }

    /// A desired state of so many bytes was offered.
    #[expect(clippy::cast_precision_loss, reason = "messages are small")]
    pub fn pushed(&self, bytes: usize) {
        self.push_bytes.observe(bytes as f64);
    }

    pub fn dropped(&self, why: &'static str) {
        self.reports_dropped.get_or_create(&Why { why }).inc();
    }

    /// How many reports were dropped for this reason.
    pub fn reports_dropped_for(&self, why: &'static str) -> u64 {
        self.reports_dropped.get_or_create(&Why { why }).get()
    }

    pub fn sample_dropped(&self, why: &'static str) {
        self.samples_dropped.get_or_create(&Why { why }).inc();
    }

    /// How many samples were dropped for this reason.
    pub fn samples_dropped_for(&self, why: &'static str) -> u64 {
        self.samples_dropped.get_or_create(&Why { why }).get()
    }

    pub fn wrote(&self, changed: bool) {
        if changed {
            self.reports_written.inc()
        } else {
            self.reports_unchanged.inc()
        };
    }
}

/// What is so now, looked up when it is asked for.
#[derive(Debug)]
pub struct Now(pub Weak<Gate>);

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(gate) = self.0.upgrade() else { return Ok(()) };
        let mut show = |name: &str, help: &str, value: usize| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        show("gate_sessions", "Open sessions", gate.sessions.len())?;
        show("gate_sessions_held", "Open sessions whose nodes are under a hold", gate.held_sessions())?;
        let fleet = gate.index.published();
        show("gate_routes", "Routes that all nodes are sent", fleet.routes)?;
        show("gate_service_rules", "Rules of Services that all nodes are sent", fleet.rules)?;
        show("gate_fleet_left_out", "Routes and rules that are more than nodes take", fleet.left_out)?;
        show("gate_fleet_bytes", "Size of what all nodes are sent", fleet.len)?;
        show("gate_log_streams", "Logs being read", gate.logs.open())?;
        show(
            "gate_stream_window_bytes",
            "What a node may send on its stream before it is read",
            STREAM_WINDOW as usize,
        )?;
        show(
            "gate_connection_window_bytes",
            "What a node may send on its connection before it is read",
            CONNECTION_WINDOW as usize,
        )?;
        show(
            "gate_secrets_open_bytes",
            "Contents of Secrets that are kept in the clear",
            gate.opened.size(),
        )?;
        show(
            "gate_suspended",
            "1 while this gateway may not act",
            usize::from(gate.term.standing() == Standing::Suspended),
        )
    }
}
