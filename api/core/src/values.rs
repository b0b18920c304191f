//! Syntax of values that several kinds share: paths, environment names, ids, base64. The functions named
//! `…_fault` say what is wrong with a value, `None` when nothing is.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};

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

/// As other writers of manifests are read: left-over bits of the last character do not matter.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The bytes behind a base64 text. Line breaks within it are passed over: wrapped base64 is what many tools
/// put into manifests.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        let joined: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        return LENIENT.decode(joined).ok();
    }
    LENIENT.decode(text).ok()
}

/// The one way in which we write bytes.
pub fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// The name of a component of a set, or of a port of a Service.
pub fn component_name_fault(name: &str) -> Option<&'static str> {
    let bytes = name.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let good = bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain)
        && bytes.iter().all(|b| plain(b) || *b == b'-');
    (!good).then_some(
        "must consist of lower-case letters, digits and '-', and begin and end with a letter or digit",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_tools_write_it_and_written_in_one_way() {
        for (text, bytes) in [
            ("aHVudGVyMg==", &b"hunter2"[..]),
            ("aHVu\ndGVy\r\nMg==\n", b"hunter2"),
            ("aHVudGVyMh==", b"hunter2"),
            ("", b""),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes), "{text}");
        }
        for bad in ["aHVudGVyMg", "aHVudGVyMg=", "a b=", "_w==", "====", "é"] {
            assert_eq!(decode_base64(bad), None, "{bad}");
        }
        assert_eq!(encode_base64(b"hunter2"), "aHVudGVyMg==");
    }

    #[test]
    fn names_of_components_and_ports() {
        for good in ["web", "a", "0", "a-b-9"] {
            assert_eq!(component_name_fault(good), None, "{good}");
        }
        for bad in ["", "A_B", "HTTP_Main", "-a", "a-", "a.b", "é", "a b"] {
            assert!(component_name_fault(bad).is_some(), "{bad}");
        }
    }

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
    fn run_as_ids() {
        for good in [65532, 1, 4_294_967_294] {
            assert!(RUN_AS_IDS.contains(&good));
        }
        for bad in [0, -1, -4_294_901_760, 4_294_967_296, 4_295_032_828, 1_099_511_627_776, 4_294_967_295] {
            assert!(!RUN_AS_IDS.contains(&bad));
        }
    }
}
