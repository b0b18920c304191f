//! Syntax of values that several kinds share: paths, environment names, ids. Each function says what is
//! wrong with a value, `None` when nothing is.

/// Lowest and highest user or group id that a workload may run as.
pub const RUN_AS_IDS: std::ops::RangeInclusive<i64> = 1..=4_294_967_294;

fn has_forbidden_char(text: &str) -> bool {
    text.contains([' ', '\t', '\r', '\n', '\0', ':', '\\'])
}

/// An absolute path in its shortest form. The root passes.
pub fn mount_path_fault(path: &str) -> Option<&'static str> {
    if has_forbidden_char(path) {
        return Some("must not contain whitespace, ':' or '\\'");
    }
    let Some(relative) = path.strip_prefix('/') else { return Some("must be absolute") };
    if relative.is_empty() {
        return None;
    }
    (!relative.split('/').all(is_plain_segment)).then_some("must be a clean path, without '.', '..' or '//'")
}

/// A relative path in its shortest form that stays below where it starts.
pub fn relative_path_fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("must not be empty");
    }
    if has_forbidden_char(path) {
        return Some("must not contain whitespace, ':' or '\\'");
    }
    if path.starts_with('/') {
        return Some("must be relative");
    }
    if path == "." {
        return None;
    }
    (!path.split('/').all(is_plain_segment)).then_some("must be a clean path, without '.', '..' or '//'")
}

fn is_plain_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..")
}

/// One component of a path.
pub fn base_name_fault(name: &str) -> Option<&'static str> {
    if has_forbidden_char(name) {
        return Some("must not contain whitespace, ':' or '\\'");
    }
    (name.contains('/') || !is_plain_segment(name)).then_some("must be a single path component")
}

/// The name of an environment variable.
pub fn env_name_fault(name: &str) -> Option<&'static str> {
    let mut bytes = name.bytes();
    let good = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    (!good).then_some("must consist of letters, digits and '_', and must not begin with a digit")
}

/// Whether a text would break the line-based files in which the node keeps it.
pub fn breaks_line(text: &str) -> bool {
    text.contains(['\n', '\r', '\0'])
}

/// A block of ids, written `<first>/<count>`; `None` when it is no such thing or leaves the permitted range.
pub fn parse_id_range(text: &str) -> Option<(i64, i64)> {
    let decimal = |text: &str| {
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse::<i64>().ok()).flatten()
    };
    let (first, count) = text.split_once('/')?;
    let (first, count) = (decimal(first)?, decimal(count)?);
    let last = first.checked_add(count)?.checked_sub(1)?;
    (count > 0 && first >= *RUN_AS_IDS.start() && last <= *RUN_AS_IDS.end()).then_some((first, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths() {
        for good in ["/creds", "/", "/var/cache/x", "/a.b/-c"] {
            assert_eq!(mount_path_fault(good), None, "{good}");
        }
        for bad in [
            "/data /etc:/x",
            "/data:/x",
            "/data/../../etc",
            "data",
            "",
            "/a/",
            "//a",
            "/a//b",
            "/./a",
            "/a\\b",
            "/a\nb",
        ] {
            assert!(mount_path_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn relative_paths_and_base_names() {
        for good in ["sub/key", "key", "."] {
            assert_eq!(relative_path_fault(good), None, "{good}");
        }
        for bad in ["../../etc/shadow", "/etc/shadow", "", "a/../b", "a//b", "a/", "a b"] {
            assert!(relative_path_fault(bad).is_some(), "{bad}");
        }
        assert_eq!(base_name_fault("tls.crt"), None);
        for bad in ["a/b", "", ".", "..", "../etc/shadow", "a b"] {
            assert!(base_name_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn environment_names() {
        for good in ["A", "_x9", "log_LEVEL"] {
            assert_eq!(env_name_fault(good), None, "{good}");
        }
        for bad in ["", "1PASSWORD", "pg.password", "pg-", "é", "A B"] {
            assert!(env_name_fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn id_ranges() {
        assert_eq!(parse_id_range("1000000000/65536"), Some((1_000_000_000, 65536)));
        assert_eq!(parse_id_range("2000000000/1000"), Some((2_000_000_000, 1000)));
        assert_eq!(parse_id_range("4294967294/1"), Some((4_294_967_294, 1)));
        for bad in [
            "",
            "1",
            "0/5",
            "5/0",
            "-1/5",
            "4294967294/2",
            "9223372036854775807/9223372036854775807",
            "+1/2",
            "a/b",
            "1/2/3",
        ] {
            assert_eq!(parse_id_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn run_as_ids() {
        for good in [65532, 1, 4_294_967_294] {
            assert!(RUN_AS_IDS.contains(&good));
        }
        for bad in [0, -1, -4_294_901_760, 4_294_967_296, 4_295_032_828, 1_099_511_627_776, 4_294_967_295] {
            assert!(!RUN_AS_IDS.contains(&bad));
        }
    }
}
