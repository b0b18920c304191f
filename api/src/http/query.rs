//! Query parameters, decoded once.
//!
//! A parameter that occurs more than once counts with its first value, as in the servers that clients were
//! written against; `dryRun` is the one list. Names that nobody knows are ignored, since clients add some of
//! their own (`pretty`, a bare `&`).

use std::time::Duration;

use horchestra_core::status::Status;

/// Decoded parameters in the order of the request.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(raw: Option<&str>) -> Query {
        let raw = raw.unwrap_or("");
        Query(
            form_urlencoded::parse(raw.as_bytes())
                .filter(|(name, _)| !name.is_empty())
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        )
    }

    /// The first value; `None` when the parameter is absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value, empty when absent.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or("")
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// On for any value but absent, `0` and `false`: the meaning of boolean parameters in the Kubernetes
    /// conversion code, so that `?watch`, `?watch=1` and `?watch=yes` all watch. Clients in Python say `False`.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// Whether the request opens a watch; routing and authorization both ask here.
    pub fn watch(&self) -> bool {
        self.flag("watch")
    }

    /// An integer parameter; empty counts as absent, anything unreadable is a 400.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, Status> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse::<i64>()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("{name}: {text:?} is not a whole number"))),
        }
    }

    /// How long the request may take: the `timeout` parameter, a duration such as `30s` or `1m30s`. Absent
    /// and zero mean the server's own limit, and nothing exceeds that limit.
    pub fn timeout(&self, limit: Duration) -> Result<Duration, Status> {
        match self.get("timeout") {
            None | Some("") => Ok(limit),
            Some(text) => match duration(text) {
                Some(Duration::ZERO) => Ok(limit),
                Some(asked) => Ok(asked.min(limit)),
                None => Err(Status::bad_request(format!("timeout: {text:?} is not a duration"))),
            },
        }
    }
}

/// Reads a duration as Go prints it: decimal numbers with units (`h`, `m`, `s`, `ms`, `us`, `ns`), or a
/// bare `0`.
pub fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').filter(|at| *at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit_len] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[unit_len..];
    }
    if text.is_empty() { None } else { Duration::try_from_secs_f64(total).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_on_for_anything_but_absent_zero_and_false() {
        for (raw, on) in [
            ("", false),
            ("watch=0", false),
            ("watch=false", false),
            ("watch", true),
            ("watch=", true),
            ("watch=1", true),
            ("watch=true", true),
            ("watch=True", true),
            ("watch=False", false),
            ("watch=FALSE", false),
            ("watch=no", true),
            ("&limit=1&w%61tch=1", true),
        ] {
            assert_eq!(Query::parse(Some(raw)).watch(), on, "{raw:?}");
        }
    }

    #[test]
    fn timeouts_are_capped_and_nonsense_is_refused() {
        let limit = Duration::from_secs(60);
        for (raw, seconds) in [
            ("", 60.0),
            ("timeout=0", 60.0),
            ("timeout=0s", 60.0),
            ("timeout=1h", 60.0),
            ("timeout=1.5s", 1.5),
            ("timeout=1m30s", 60.0),
            ("timeout=250ms", 0.25),
        ] {
            let read = Query::parse(Some(raw)).timeout(limit).unwrap();
            assert_eq!(read.as_secs_f64(), seconds, "{raw}");
        }
        for raw in [
            "timeout=invalid",
            "timeout=10",
            "timeout=-1s",
            "timeout=1s1",
            "timeout=.s",
            "timeout=99999999999999999999h",
        ] {
            assert!(Query::parse(Some(raw)).timeout(limit).is_err(), "{raw}");
        }
    }
}
