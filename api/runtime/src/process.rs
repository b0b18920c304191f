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

/// Keeps the process from huge pages. A buffer that is made larger than what ever comes into it takes only the pages
/// that were touched, as long as these are small; a process with a few such buffers for each of thousands of
/// connections needs a third less memory so.
pub fn forgo_huge_pages() {
    if let Err(error) = nix::sys::prctl::set_thp_disable(true) {
        tracing::warn!(%error, "memory comes in huge pages");
    }
}

/// The name of this host, as the kernel knows it.
pub fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Where this process is to be found: host and number.
pub fn place() -> String {
    format!("{}/{}", host_name().unwrap_or_else(|| "localhost".to_owned()), std::process::id())
}

/// What every program says of itself under the same names, `process_…`.
#[derive(Debug, Default)]
pub(crate) struct ProcessCollector {}

impl Collector for ProcessCollector {
    fn encode(&self, mut page: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stat = Stat::read();
        if let Some(stat) = &stat {
            let metric = ConstCounter::new(stat.cpu_seconds());
            let (name, help) = ("process_cpu", "CPU time, user and system");
            metric.encode(page.encode_descriptor(
                name,
                help,
                Some(&Unit::Seconds),
                metric.metric_type(),
            )?)?;
        }
        let started = stat.as_ref().zip(booted()).map(|(stat, booted)| booted + stat.started_after());
        let limit = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft as f64);
        let files = fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
        for (name, help, unit, value) in [
            ("process_start_time", "Start of the process since the epoch", Some(&Unit::Seconds), started),
            ("process_resident_memory", "Resident memory", Some(&Unit::Bytes), memory("VmRSS:")),
            ("process_virtual_memory", "Virtual memory", Some(&Unit::Bytes), memory("VmSize:")),
            ("process_open_fds", "Open files", None, files),
            ("process_max_fds", "How many files may be open", None, limit),
        ] {
            let Some(value) = value else { continue };
            let metric = ConstGauge::new(value);
            metric.encode(page.encode_descriptor(name, help, unit, metric.metric_type())?)?;
        }
        Ok(())
    }
}

/// Bytes, by the name that the kernel gives the line.
fn memory(line: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|found| found.strip_prefix(line))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// When the machine was started, in seconds since the epoch.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The fields of /proc/self/stat after the program's name.
struct Stat(Vec<f64>);

impl Stat {
    fn read() -> Option<Stat> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The program's name may hold spaces and parentheses; the fields after it do not. The first is a letter.
        let fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().skip(1);
        Some(Stat(fields.map_while(|field| field.parse().ok()).collect()))
    }

    /// A time of the n-th field as the manual numbers them.
    fn seconds(&self, field: usize) -> f64 {
        self.0.get(field - 4).copied().unwrap_or_default() / TICKS
    }

    fn cpu_seconds(&self) -> f64 {
        self.seconds(14) + self.seconds(15)
    }

    /// How long after the machine.
    fn started_after(&self) -> f64 {
        self.seconds(22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn this_process_uses_memory_and_began_a_while_ago() {
        assert!(memory("VmRSS:").unwrap() > 0.0);
        assert!(memory("VmSize:").unwrap() >= memory("VmRSS:").unwrap());
        assert!(memory("VmNothing:").is_none());
        let stat = Stat::read().unwrap();
        assert!(stat.cpu_seconds() >= 0.0);
        let started = Duration::from_secs_f64(booted().unwrap() + stat.started_after());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        // The kernel rounds the time of its start to whole seconds.
        assert!(started <= now + Duration::from_secs(2), "{started:?} {now:?}");
        assert!(started + Duration::from_secs(86_400) > now, "tests do not run for days");
    }
}
