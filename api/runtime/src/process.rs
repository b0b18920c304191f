//! The process itself: its consumption, read from /proc when somebody asks for the metrics, and its limits.

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Ticks per second of the times in /proc: fixed at 100 for user space on every Linux architecture we run on.
const TICKS: f64 = 100.0;

/// Lets the process open as many files as it may. A connection is a file, and the usual limit to begin with,
/// 1024, is one for programs that were written before there were fleets.
pub fn raise_file_limit() {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => {
            if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                tracing::warn!(%error, soft, hard, "the number of open files stays limited");
            }
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files is not known"),
    }
}

#[derive(Debug, Default)]
pub(crate) struct ProcessCollector {}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        if let Some(bytes) = resident_bytes() {
            let metric = ConstGauge::new(bytes);
            let descriptor = encoder.encode_descriptor(
                "process_resident_memory",
                "Resident memory",
                Some(&Unit::Bytes),
                metric.metric_type(),
            )?;
            metric.encode(descriptor)?;
        }
        if let Some(seconds) = cpu_seconds() {
            let metric = ConstCounter::new(seconds);
            let descriptor = encoder.encode_descriptor(
                "process_cpu",
                "CPU time, user and system",
                Some(&Unit::Seconds),
                metric.metric_type(),
            )?;
            metric.encode(descriptor)?;
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            let metric = ConstGauge::new(i64::try_from(entries.count()).unwrap_or(i64::MAX));
            let descriptor =
                encoder.encode_descriptor("process_open_fds", "Open files", None, metric.metric_type())?;
            metric.encode(descriptor)?;
        }
        Ok(())
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may hold spaces and parentheses; the fields after it do not.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    let (user, system): (f64, f64) = (fields.get(11)?.parse().ok()?, fields.get(12)?.parse().ok()?);
    Some((user + system) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        assert!(resident_bytes().unwrap() > 0);
        assert!(cpu_seconds().unwrap() >= 0.0);
    }
}
