//! Durations the way kubectl prints ages.

/// Two units at most, coarser the longer it is: `95s`, `3m20s`, `5h`, `12d`, `3y40d`. Takes whole seconds.
/// A second or so in the future is clock skew and counts as now.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    let s = seconds;
    match s {
        ..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        _ if s < 2 * MINUTE => format!("{s}s"),
        _ if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        _ if s < 3 * HOUR => format!("{}m", s / MINUTE),
        _ if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        _ if s < 2 * DAY => format!("{}h", s / HOUR),
        _ if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        _ if s < 2 * YEAR => format!("{}d", s / DAY),
        _ if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        _ => format!("{}y", s / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::human_duration;

    #[test]
    fn ages_as_kubectl_prints_them() {
        let cases = [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (1, "1s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600, "8h"),
            (48 * 3600 - 1, "47h"),
            (48 * 3600, "2d"),
            (49 * 3600, "2d1h"),
            (8 * 86400, "8d"),
            (729 * 86400, "729d"),
            (730 * 86400, "2y"),
            (731 * 86400, "2y1d"),
            (8 * 365 * 86400, "8y"),
            (i64::MAX, "292471208677y"),
        ];
        for (seconds, want) in cases {
            assert_eq!(human_duration(seconds), want, "{seconds}");
        }
    }
}
