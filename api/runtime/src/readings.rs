//! Numbers that somebody else keeps, on the metrics page.
//!
//! Packages below this one count with plain integers and know nothing of metrics. What they have counted comes in
//! the plainest of forms, and is shown as it is at the moment of the question.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A name without the prefix and an explanation.
pub type Titled<T> = (&'static str, &'static str, T);

/// The name of a label, and a number for each of its values.
pub type ByLabel = (&'static str, Vec<(String, f64)>);

/// Upper bounds with how many values lie in each bucket, the last one infinite; and the sum of all values.
pub type Distribution = (Vec<(f64, u64)>, f64);

/// What one look shows. Names end with their unit, those of counters without `_total`.
#[derive(Clone, Debug, Default)]
pub struct Readings {
    pub counters: Vec<Titled<u64>>,
    pub gauges: Vec<Titled<f64>>,
    pub gauges_by: Vec<Titled<ByLabel>>,
    pub histograms: Vec<Titled<Distribution>>,
}

/// Shows what `look` finds.
pub(crate) struct Look<F>(pub F);

impl<F> fmt::Debug for Look<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look").finish_non_exhaustive()
    }
}

impl<F> Collector for Look<F>
where
    F: Fn() -> Readings + Send + Sync + 'static,
{
    fn encode(&self, mut page: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Readings { counters, gauges, gauges_by, histograms } = (self.0)();
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(page.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(page.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        for (name, help, (label, values)) in gauges_by {
            let mut family = page.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (of, value) in values {
                let labels = [(label, of)];
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        for (name, help, (buckets, sum)) in histograms {
            let shown = Buckets { buckets, sum };
            shown.encode(page.encode_descriptor(name, help, None, MetricType::Histogram)?)?;
        }
        Ok(())
    }
}

struct Buckets {
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl EncodeMetric for Buckets {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let count = self.buckets.iter().map(|(_, count)| count).sum();
        encoder.encode_histogram::<NoLabelSet>(self.sum, count, &self.buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Form, Metrics};

    #[test]
    fn every_sort_of_reading_is_shown() {
        let page = Metrics::new("test", "0", None);
        page.readings(|| Readings {
            counters: vec![("seen", "Seen", 7)],
            gauges: vec![("lag_seconds", "Lag", 0.5)],
            gauges_by: vec![("size_bytes", "Sizes", ("table", vec![("a".into(), 1.0), ("b".into(), 2.0)]))],
            histograms: vec![("took_seconds", "Times", (vec![(0.1, 2), (f64::INFINITY, 1)], 3.5))],
        });
        for form in [Form::Classic, Form::OpenMetrics] {
            let text = page.encode_as(form).unwrap();
            for (line, value) in [
                ("horchestra_seen_total", 7.0),
                ("horchestra_lag_seconds", 0.5),
                ("horchestra_size_bytes{table=\"a\"}", 1.0),
                ("horchestra_size_bytes{table=\"b\"}", 2.0),
                ("horchestra_took_seconds_bucket{le=\"0.1\"}", 2.0),
                ("horchestra_took_seconds_bucket{le=\"+Inf\"}", 3.0),
                ("horchestra_took_seconds_sum", 3.5),
                ("horchestra_took_seconds_count", 3.0),
            ] {
                let found =
                    text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse::<f64>().ok());
                assert_eq!(found, Some(value), "{line} in\n{text}");
            }
        }
    }
}
