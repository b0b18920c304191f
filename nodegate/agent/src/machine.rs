//! What the machine is and how busy it is.

use horchestra_core::quantity::Quantity;
use horchestra_proto::node::v1::NodeUsage;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::desired::Amounts;
use crate::units::now_unix_nano;
use crate::units::procfs::USEC_PER_TICK;

/// What a node says that it has.
#[derive(Debug, Clone)]
pub struct Machine {
    /// CPUs in thousandths; 0 is not reported.
    pub cpu_milli: i64,
    /// Memory in bytes; 0 is not reported.
    pub memory_bytes: i64,
    /// Prose: distribution, kernel, architecture.
    pub os: String,
    /// `amd64`, `arm64`, …
    pub arch: String,
    /// Workloads can have networks of their own.
    pub routed_network: bool,
}

impl Machine {
    /// The machine that this runs on.
    pub fn here() -> Self {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let pretty = release
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map_or("Linux", |name| name.trim_matches('"'));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let arch = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpu_milli: i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000),
            memory_bytes: memory().0,
            os: format!("{pretty} ({}, {arch})", kernel.trim()),
            arch: arch.to_owned(),
            routed_network: false,
        }
    }

    /// The Node object that a heartbeat carries.
    pub fn node(&self, name: &str, ip: &str, allocated: &Amounts) -> Value {
        let mut capacity = Map::new();
        if self.cpu_milli > 0 {
            capacity.insert("cpu".into(), json!(Quantity::from_milli(self.cpu_milli).to_string()));
        }
        if self.memory_bytes > 0 {
            capacity.insert("memory".into(), json!(format!("{}Ki", self.memory_bytes / 1024)));
        }
        let mut taken = Map::new();
        for (member, amount) in [("cpu", allocated.cpu), ("memory", allocated.memory)] {
            if !amount.is_zero() {
                taken.insert(member.into(), json!(amount.to_string()));
            }
        }
        let mut status = json!({
            "capacity": capacity,
            "allocated": taken,
            "os": self.os,
            "ready": true,
            "heartbeat": format!("{:.0}", jiff::Timestamp::now()),
            "runtimes": ["userns"],
            "platform": {"os": "linux", "arch": self.arch},
        });
        if !ip.is_empty() {
            status["ip"] = json!(ip);
        }
        if self.routed_network {
            status["routedNetwork"] = json!(true);
        }
        json!({
            "kind": "Node",
            "apiVersion": "horchestra.io/v1",
            "metadata": {"name": name},
            "spec": {},
            "status": status,
        })
    }
}

/// Adds to a heartbeat what is held here, for a control plane that has not said yet what is to be.
pub fn tell_units(node: &mut Value, mut units: Vec<Uuid>) {
    if !units.is_empty() {
        units.sort_unstable();
        node["status"]["units"] = json!(units);
    }
}

/// How busy the machine is, whatever runs on it. At most a tenth of a second old, so
/// that a thousand simulated nodes do not read `/proc` a thousand times.
pub fn usage() -> NodeUsage {
    static LAST: Mutex<Option<NodeUsage>> = Mutex::new(None);
    let mut last = LAST.lock();
    match *last {
        Some(usage) if now_unix_nano().saturating_sub(usage.timestamp_unix_nano) < 100_000_000 => usage,
        _ => *last.insert(measure()),
    }
}

fn measure() -> NodeUsage {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let (total, available) = memory();
    NodeUsage {
        cpu_usec: busy_ticks(&stat) * USEC_PER_TICK,
        memory_used_bytes: total - available,
        memory_total_bytes: total,
        timestamp_unix_nano: now_unix_nano(),
    }
}

/// user, nice, system, irq, softirq and steal; what guests use is in user already.
fn busy_ticks(stat: &str) -> i64 {
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else { return 0 };
    let columns: Vec<i64> = line.split_ascii_whitespace().filter_map(|column| column.parse().ok()).collect();
    [0, 1, 2, 5, 6, 7].into_iter().filter_map(|index| columns.get(index)).sum()
}

/// Total and available bytes.
fn memory() -> (i64, i64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<i64>().ok())
            .unwrap_or(0)
    };
    (kib("MemTotal") * 1024, kib("MemAvailable") * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_says_what_agents_say_and_no_more() {
        let machine = Machine {
            cpu_milli: 2500,
            memory_bytes: 8 << 30,
            os: "x".into(),
            arch: "amd64".into(),
            routed_network: false,
        };
        let mut node = machine.node("n1", "10.0.0.1", &Amounts::default());
        let heartbeat = node["status"].as_object_mut().and_then(|status| status.remove("heartbeat"));
        let heartbeat = heartbeat.expect("a time");
        let heartbeat = heartbeat.as_str().expect("text");
        assert!(heartbeat.parse::<jiff::Timestamp>().is_ok() && heartbeat.len() == 20, "{heartbeat}");
        assert_eq!(
            node,
            json!({
                "kind": "Node", "apiVersion": "horchestra.io/v1", "metadata": {"name": "n1"}, "spec": {},
                "status": {
                    "capacity": {"cpu": "2500m", "memory": "8388608Ki"}, "allocated": {}, "os": "x",
                    "ip": "10.0.0.1", "ready": true, "runtimes": ["userns"],
                    "platform": {"os": "linux", "arch": "amd64"},
                },
            })
        );
    }

    #[test]
    fn what_is_zero_or_unknown_is_left_out() {
        let machine = Machine {
            cpu_milli: 0,
            memory_bytes: 0,
            os: String::new(),
            arch: "arm64".into(),
            routed_network: true,
        };
        let taken = Amounts { cpu: "1".parse().expect("a quantity"), memory: Quantity::ZERO };
        let status = &machine.node("n1", "", &taken)["status"];
        assert_eq!(status["capacity"], json!({}));
        assert_eq!(status["allocated"], json!({"cpu": "1"}));
        assert_eq!(status["routedNetwork"], json!(true));
        assert!(status.get("ip").is_none());
    }

    #[test]
    fn idle_time_and_guests_do_not_count_as_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 9 9 9\n"), 63);
    }
}
