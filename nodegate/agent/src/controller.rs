//! Where the control plane is.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Port when an address names none.
const DEFAULT_PORT: u16 = 8443;

/// Why an address of the control plane makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// Nothing was given.
    #[error("the address of the control plane is empty")]
    Empty,
    /// A scheme other than https.
    #[error("{0:?} is not a scheme that a node can use; it speaks https")]
    Scheme(String),
    /// No host in it.
    #[error("{0:?} names no host")]
    Host(String),
    /// Not a port.
    #[error("{0:?} is not a port")]
    Port(String),
}

/// Host and port of the control plane, without a scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// DNS name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Controller {
    /// Reads an address as people write it: `host`, `host:port`, an IPv6 address
    /// with or without brackets, or an https URL. The port is 8443 unless given.
    pub fn parse(text: &str) -> Result<Self, ControllerError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(ControllerError::Empty);
        }
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => rest,
            Some((scheme, _)) => return Err(ControllerError::Scheme(scheme.to_owned())),
            None => text,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = if authority.parse::<Ipv6Addr>().is_ok() {
            (authority, "")
        } else if let Some(inner) = authority.strip_prefix('[') {
            let (host, after) =
                inner.split_once(']').ok_or_else(|| ControllerError::Host(text.to_owned()))?;
            (host, after.strip_prefix(':').unwrap_or(after))
        } else {
            authority.rsplit_once(':').unwrap_or((authority, ""))
        };
        if host.is_empty() || host.contains(['@', ' ', '[', ']']) {
            return Err(ControllerError::Host(text.to_owned()));
        }
        if host.contains(':') && host.parse::<Ipv6Addr>().is_err() {
            return Err(ControllerError::Host(text.to_owned()));
        }
        let port = match port {
            "" => DEFAULT_PORT,
            port => match port.parse() {
                Ok(0) | Err(_) => return Err(ControllerError::Port(port.to_owned())),
                Ok(port) => port,
            },
        };
        Ok(Self { host: host.to_owned(), port })
    }

    /// What goes into `:authority`: the host alone.
    pub(crate) fn authority(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(host)) => format!("[{host}]"),
            _ => self.host.clone(),
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.authority(), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port) in [
            ("cp.example", "cp.example", 8443),
            ("cp.example:9000", "cp.example", 9000),
            ("https://cp.example", "cp.example", 8443),
            ("HTTPS://cp.example:443/", "cp.example", 443),
            ("https://cp.example/path?x#y", "cp.example", 8443),
            ("10.0.0.1", "10.0.0.1", 8443),
            ("127.0.0.1:8444", "127.0.0.1", 8444),
            ("::1", "::1", 8443),
            ("[::1]", "::1", 8443),
            ("[::1]:7", "::1", 7),
            ("https://[fd00::1]:8444", "fd00::1", 8444),
        ] {
            assert_eq!(Controller::parse(text), Ok(Controller { host: host.into(), port }), "{text}");
        }
        for text in [
            "",
            "  ",
            "http://cp.example",
            "ftp://x",
            "https://",
            ":8443",
            "cp:0",
            "cp:x",
            "cp:99999",
            "[::1",
            "a:b:c",
        ] {
            assert!(Controller::parse(text).is_err(), "{text}");
        }
        assert_eq!(Controller::parse("[fd00::1]").expect("parses").authority(), "[fd00::1]");
    }
}
