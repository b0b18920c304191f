//! What the signing loop shows of itself.

use horchestra_runtime::Metrics;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use crate::substrate::LeaderGauge;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Issued,
    Denied,
    Held,
    /// The signer failed; it will be asked again.
    Failed,
    /// Deleted because of its age.
    Expired,
}

impl Fate {
    const fn word(self) -> &'static str {
        match self {
            Fate::Issued => "issued",
            Fate::Denied => "denied",
            Fate::Held => "held",
            Fate::Failed => "failed",
            Fate::Expired => "expired",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FateLabels {
    outcome: &'static str,
}

/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    decisions: Family<FateLabels, Counter>,
    /// How long the signer took, whatever came of it.
    pub sign: Histogram,
    pub held: LeaderGauge,
    pub unusable_files: LeaderGauge,
    pub signer_expiry: LeaderGauge,
}

impl CertificateMetrics {
    pub fn new(metrics: &Metrics) -> CertificateMetrics {
        CertificateMetrics {
            decisions: metrics.counters("csr_decisions", "Certificate requests, by what was done about them"),
            sign: metrics.duration("csr_sign", "How long the signer takes"),
            held: LeaderGauge::new(metrics, "csr_held", "Certificate requests that wait for an operator"),
            unusable_files: LeaderGauge::new(
                metrics,
                "csr_signer_files_unusable",
                "1 while changed files of the signer cannot be used and the previous ones are",
            ),
            signer_expiry: LeaderGauge::new(
                metrics,
                "csr_signer_expiry_seconds",
                "Seconds until the certificate that the signer works with expires; 0 without a signer",
            ),
        }
    }

    /// Others decide now.
    pub fn clear(&self) {
        for gauge in [&self.held, &self.unusable_files, &self.signer_expiry] {
            gauge.clear();
        }
    }

    pub fn count(&self, fate: Fate, times: usize) {
        self.decisions.get_or_create(&FateLabels { outcome: fate.word() }).inc_by(times as u64);
    }
}
