//! Where the API is.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// `host:port` of one replica, or of all that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a host and a port, such as 10.0.0.7:8443 or api.internal:8443")]
pub struct BadBackend(String);

impl FromStr for Backend {
    type Err = BadBackend;

    fn from_str(text: &str) -> Result<Backend, BadBackend> {
        let bad = || BadBackend(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        if host.is_empty() || bare_v6 || host.contains(['/', '@', ' ']) || !is_port {
            return Err(bad());
        }
        Ok(Backend(text.to_owned()))
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Replicas in turn, those that failed lately last.
pub(super) struct Backends {
    all: Vec<Replica>,
    next: AtomicUsize,
    shun: Duration,
}

pub(super) struct Replica {
    backend: Backend,
    failed: Mutex<Option<Instant>>,
}

impl Backends {
    pub fn new(backends: &[Backend], shun: Duration) -> Backends {
        let replica = |backend: &Backend| Replica { backend: backend.clone(), failed: Mutex::new(None) };
        Backends { all: backends.iter().map(replica).collect(), next: AtomicUsize::new(0), shun }
    }

    /// In the order in which to try them now.
    pub fn in_order(&self) -> Vec<&Replica> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len().max(1);
        let (before, after) = self.all.split_at(first);
        let mut order: Vec<&Replica> = after.iter().chain(before).collect();
        order.sort_by_key(|replica| replica.failed.lock().is_some_and(|failed| failed.elapsed() < self.shun));
        order
    }
}

impl Replica {
    pub fn address(&self) -> &str {
        &self.backend.0
    }

    pub fn failed(&self) {
        *self.failed.lock() = Some(Instant::now());
    }

    pub fn answered(&self) {
        *self.failed.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for (text, good) in [
            ("10.0.0.7:8443", true),
            ("api.internal:8443", true),
            ("[fd00::7]:8443", true),
            ("fd00::7:8443", false),
            ("api.internal", false),
            (":8443", false),
            ("api:0", false),
            ("api:65536", false),
            ("https://api:8443", false),
            ("", false),
        ] {
            assert_eq!(text.parse::<Backend>().is_ok(), good, "{text:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn replicas_take_turns_and_those_that_failed_come_last_for_a_while() {
        let named: Vec<Backend> = ["a:1", "b:1", "c:1"].map(|text| text.parse().unwrap()).into();
        let backends = Backends::new(&named, Duration::from_secs(10));
        let order = || backends.in_order().iter().map(|it| &it.address()[..1]).collect::<String>();
        assert_eq!([order(), order(), order(), order()], ["abc", "bca", "cab", "abc"]);
        backends.all[1].failed();
        assert_eq!([order(), order(), order()], ["cab", "cab", "acb"]);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(order(), "bca");
        backends.all[1].failed();
        backends.all[1].answered();
        assert_eq!([order(), order()], ["cab", "abc"]);
    }
}
