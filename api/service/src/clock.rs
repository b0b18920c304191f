//! Wall-clock time as objects carry it.

use jiff::Timestamp;

/// A moment as Kubernetes objects write it: UTC, whole seconds, `Z`.
pub(crate) fn stamp(at: Timestamp) -> String {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    seconds.to_string()
}

pub(crate) fn now() -> String {
    stamp(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_cut_off() {
        let at: Timestamp = "2026-02-03T04:05:06.789Z".parse().unwrap();
        assert_eq!(stamp(at), "2026-02-03T04:05:06Z");
    }
}
