//! What is told of TLS files, when somebody asks for the metrics.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::{ReloadingClient, ReloadingServer};
use crate::metrics::Metrics;

/// The TLS files of a process, by what they are for.
#[derive(Default)]
pub struct TlsMetrics {
    files: Vec<Files>,
}

enum Files {
    Server { name: &'static str, authorities: &'static str, server: Arc<ReloadingServer> },
    Client { name: &'static str, authorities: &'static str, client: Arc<ReloadingClient> },
}

impl TlsMetrics {
    /// A listener: `name` is what it shows, `authorities` whom it believes.
    pub fn server(
        mut self,
        name: &'static str,
        authorities: &'static str,
        server: &Arc<ReloadingServer>,
    ) -> TlsMetrics {
        self.files.push(Files::Server { name, authorities, server: Arc::clone(server) });
        self
    }

    /// What this process shows when it calls, and whom it believes then.
    pub fn client(
        mut self,
        name: &'static str,
        authorities: &'static str,
        client: &Arc<ReloadingClient>,
    ) -> TlsMetrics {
        self.files.push(Files::Client { name, authorities, client: Arc::clone(client) });
        self
    }

    /// Shows, for each file, `horchestra_tls_expiry_seconds{certificate}`: seconds until the first certificate in it
    /// expires, negative afterwards; and `horchestra_tls_files_unusable{certificate}`: 1 while changed files cannot
    /// be used and the previous ones are.
    pub fn register(self, metrics: &Metrics) {
        metrics.collector(Box::new(self));
    }

    fn expiries(&self) -> impl Iterator<Item = (&'static str, SystemTime)> {
        self.files.iter().flat_map(|files| {
            let (name, own, authorities, theirs) = match files {
                Files::Server { name, authorities, server } => {
                    (name, server.serving_until(), authorities, server.authorities_until())
                }
                Files::Client { name, authorities, client } => {
                    (name, client.own_until(), authorities, client.authorities_until())
                }
            };
            [own.map(|until| (*name, until)), theirs.map(|until| (*authorities, until))].into_iter().flatten()
        })
    }

    fn failures(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.files.iter().map(|files| match files {
            Files::Server { name, server, .. } => (*name, server.failing()),
            Files::Client { name, client, .. } => (*name, client.failing()),
        })
    }
}

impl fmt::Debug for TlsMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsMetrics").finish_non_exhaustive()
    }
}

/// Seconds from `now`, negative for what is past.
fn seconds_until(until: SystemTime, now: SystemTime) -> i64 {
    let whole = |duration: std::time::Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match until.duration_since(now) {
        Ok(left) => whole(left),
        Err(past) => -whole(past.duration()),
    }
}

impl Collector for TlsMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let now = SystemTime::now();
        let family = encoder.encode_descriptor(
            "tls_expiry",
            "Time until the first certificate in a file expires",
            Some(&Unit::Seconds),
            MetricType::Gauge,
        )?;
        each(family, self.expiries().map(|(name, until)| (name, seconds_until(until, now))))?;
        let family = encoder.encode_descriptor(
            "tls_files_unusable",
            "Whether changed files cannot be used, so that the previous ones are",
            None,
            MetricType::Gauge,
        )?;
        each(family, self.failures().map(|(name, failing)| (name, i64::from(failing))))
    }
}

fn each(
    mut family: MetricEncoder<'_>,
    values: impl Iterator<Item = (&'static str, i64)>,
) -> Result<(), fmt::Error> {
    for (certificate, value) in values {
        let labels = [("certificate", certificate)];
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_has_expired_is_negative() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for (until, left) in [(1600, 600), (1000, 0), (400, -600)] {
            assert_eq!(seconds_until(SystemTime::UNIX_EPOCH + Duration::from_secs(until), now), left);
        }
    }
}
