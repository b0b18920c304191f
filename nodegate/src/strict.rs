//! Letting only those nodes register whose address bears their name.
//!
//! Off unless asked for. Whoever holds a node certificate may otherwise introduce a machine under its name from
//! anywhere. With this on, the address that a new node connects from must have a reverse name that begins with
//! the node's name, at the border of a label: `node-1` is covered by `node-1.rack2.example.org`. It is looked at
//! only when a Node is to be created; a node that exists reports on whatever becomes of the DNS.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

/// How long a look-up may take.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

type Lookup = dyn Fn(IpAddr) -> BoxFuture<'static, io::Result<Vec<String>>> + Send + Sync;

/// Finds the names of an address.
#[derive(Clone)]
pub struct ReverseNames {
    lookup: Arc<Lookup>,
    timeout: Duration,
}

/// Why a node may not register.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotCovered {
    #[error("the address {0} has no reverse name")]
    NoName(IpAddr),
    #[error("the reverse name of {address} could not be found out: {why}")]
    Unknown { address: IpAddr, why: String },
    #[error("the node's name is not covered by the reverse names of {address} ({})", names.join(", "))]
    OtherName { address: IpAddr, names: Vec<String> },
}

impl fmt::Debug for ReverseNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReverseNames").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl ReverseNames {
    /// By this look-up; no names and an error are different answers.
    pub fn by(
        timeout: Duration,
        lookup: impl Fn(IpAddr) -> BoxFuture<'static, io::Result<Vec<String>>> + Send + Sync + 'static,
    ) -> ReverseNames {
        ReverseNames { lookup: Arc::new(lookup), timeout }
    }

    /// As the system resolves.
    pub fn of_the_system() -> ReverseNames {
        ReverseNames::by(LOOKUP_TIMEOUT, |address| {
            Box::pin(async move {
                let found = tokio::task::spawn_blocking(move || dns_lookup::lookup_addr(&address));
                let name = found.await.map_err(io::Error::other)??;
                // An address without a name comes back as itself.
                Ok(if name.parse::<IpAddr>().is_ok() { Vec::new() } else { vec![name] })
            })
        })
    }

    /// Whether the node may register from this address.
    pub async fn check(&self, node: &str, address: IpAddr) -> Result<(), NotCovered> {
        let unknown = |why: String| NotCovered::Unknown { address, why };
        let names = tokio::time::timeout(self.timeout, (self.lookup)(address))
            .await
            .map_err(|_| unknown("no answer in time".to_owned()))?
            .map_err(|error| unknown(error.to_string()))?;
        if names.is_empty() {
            return Err(NotCovered::NoName(address));
        }
        if names.iter().any(|name| covers(name, node)) {
            return Ok(());
        }
        Err(NotCovered::OtherName { address, names })
    }
}

/// Whether `node` is the whole of a reverse name or some of its first labels.
fn covers(reverse: &str, node: &str) -> bool {
    let reverse = reverse.trim_end_matches('.').to_ascii_lowercase();
    let node = node.to_ascii_lowercase();
    !node.is_empty()
        && reverse.strip_prefix(&node).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_labels_are_covered_and_nothing_else_is() {
        for (reverse, node, covered) in [
            ("n1.rack2.dc3.example.org.", "n1", true),
            ("n1.rack2.dc3.example.org.", "n1.rack2", true),
            ("n1.rack2.dc3.example.org.", "n1.rack2.dc3.example.org", true),
            ("N1.Rack2.dc3.example.org", "n1.rack2", true),
            ("n1.example.org.", "n1.example", true),
            ("n1.org", "n1", true),
            ("n1", "n1", true),
            ("n1.rack2.example.org.", "", false),
            ("n1.rack2.example.org.", "n", false),
            ("n1.rack2.example.org.", "n1.rac", false),
            ("n1.rack2.example.org.", "n1.rack2.example.org.x", false),
            ("n1.rack2.example.org.", "example.org", false),
            ("n1.rack2.example.org.", "rack2.example.org", false),
            ("n1.rack2.example.org.", "n2", false),
            ("n10.rack2.example.org.", "n1", false),
        ] {
            assert_eq!(covers(reverse, node), covered, "{node:?} of {reverse:?}");
        }
    }

    #[tokio::test]
    async fn the_loopback_has_a_name_or_is_said_to_have_none() {
        // Which of the two is the machine's business; that there is an answer is ours.
        let outcome = ReverseNames::of_the_system().check("localhost", [127, 0, 0, 1].into()).await;
        if let Err(why) = outcome {
            assert!(!why.to_string().is_empty());
        }
    }
}
