//! What is told of keys that a process follows, when somebody asks for the metrics.
//!
//! Before a key is used everybody has to know it. `horchestra_secret_keys` says for each process which keys it
//! holds, so an operator (or a test) can look instead of wait.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::metrics::Metrics;

/// The keys of a process at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysInUse {
    /// Ids of those in the file.
    pub keys: Vec<String>,
    /// Id of the one that seals.
    pub sealing: String,
    /// Whether a changed file cannot be used, so that the previous one is.
    pub unusable: bool,
}

struct Keys<F>(F);

impl<F> fmt::Debug for Keys<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

impl<F: Fn() -> KeysInUse + Send + Sync + 'static> Collector for Keys<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = (self.0)();
        let mut family = encoder.encode_descriptor(
            "secret_keys",
            "Keys of Secrets that this process has from its file; 1 for the one that seals, 0 for one that opens",
            None,
            MetricType::Gauge,
        )?;
        for key in &now.keys {
            let labels = [("key", key.as_str())];
            ConstGauge::new(i64::from(*key == now.sealing)).encode(family.encode_family(&labels)?)?;
        }
        let unusable = ConstGauge::new(i64::from(now.unusable));
        unusable.encode(encoder.encode_descriptor(
            "secret_keys_unusable",
            "Whether a changed file of keys of Secrets cannot be used, so that the previous one is",
            None,
            MetricType::Gauge,
        )?)
    }
}

/// Shows `horchestra_secret_keys{key}` and `horchestra_secret_keys_unusable`.
pub fn register(metrics: &Metrics, now: impl Fn() -> KeysInUse + Send + Sync + 'static) {
    metrics.collector(Box::new(Keys(now)));
}
