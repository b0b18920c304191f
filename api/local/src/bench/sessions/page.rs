//! What a gateway says of itself, from its metrics page.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Result;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A look at a gateway.
pub struct Look {
    pub sessions: f64,
    pub heartbeats: f64,
    /// Bytes.
    pub memory: f64,
    /// Seconds.
    pub cpu: f64,
    page: String,
}

impl Look {
    pub async fn at(address: SocketAddr) -> Result<Look> {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut carried = JoinSet::new();
        carried.spawn(connection);
        let request = Request::get("/metrics").header("host", "localhost").body(Empty::<Bytes>::new())?;
        let body = sender.send_request(request).await?.into_body().collect().await?.to_bytes();
        let page = String::from_utf8_lossy(&body).into_owned();
        Ok(Look {
            sessions: sum(&page, "horchestra_gate_sessions"),
            heartbeats: sum(&page, "horchestra_gate_heartbeats_total"),
            memory: sum(&page, "process_resident_memory_bytes"),
            cpu: sum(&page, "process_cpu_seconds_total"),
            page,
        })
    }

    /// The sum of a metric over its labels.
    pub fn sum(&self, name: &str) -> f64 {
        sum(&self.page, name)
    }

    /// Which statements the gateway ran in so many seconds since then, and how often a second.
    pub fn statements_since(&self, before: &Look, seconds: f64) -> Vec<String> {
        let earlier: HashMap<&str, f64> = by_statement(&before.page).collect();
        let mut rates: Vec<(&str, f64)> = by_statement(&self.page)
            .map(|(name, count)| (name, (count - earlier.get(name).copied().unwrap_or(0.0)) / seconds))
            .filter(|(_, rate)| *rate > 0.0)
            .collect();
        rates.sort_by(|a, b| b.1.total_cmp(&a.1));
        rates.into_iter().map(|(name, rate)| format!("{name}: {rate:.2}/s")).collect()
    }
}

fn sum(page: &str, name: &str) -> f64 {
    page.lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// How often each statement was run, by name.
fn by_statement(page: &str) -> impl Iterator<Item = (&str, f64)> {
    page.lines().filter_map(|line| {
        let rest = line.strip_prefix("horchestra_sql_statement_seconds_count{statement=\"")?;
        let (name, count) = rest.split_once("\"} ")?;
        Some((name, count.trim().parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let page = "# TYPE a counter\na{b=\"c\"} 1\na{b=\"d e\"} 2.5\na_b 7\na 3\n\
            horchestra_sql_statement_seconds_count{statement=\"x\"} 4\n";
        assert!((sum(page, "a") - 6.5).abs() < 1e-9);
        assert!(sum(page, "nothing").abs() < 1e-9);
        assert_eq!(by_statement(page).collect::<Vec<_>>(), [("x", 4.0)]);
    }
}
