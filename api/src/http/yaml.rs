//! YAML in and out.
//!
//! Reading resolves scalars the way kubectl does and is the core package's business. Writing makes block
//! style for people; a string stays plain only when no YAML version could take it for anything else, and is
//! written as a JSON string (which every YAML reader takes) otherwise.

use bytes::Bytes;

use horchestra_core::status::Status;
use serde_json::Value;

/// Reads one document.
pub fn read(body: &[u8]) -> Result<Value, Status> {
    let _ = body;
    Err(Status::bad_request("todo yaml"))
}

/// Writes one document, newline included.
pub fn write(value: &Value) -> Bytes {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(&mut out, value, 0),
        Value::Array(list) if !list.is_empty() => block(&mut out, value, 0),
        _ => {
            scalar(&mut out, value);
            out.push('\n');
        }
    }
    Bytes::from(out)
}

fn block(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) => {
            for (member, value) in map {
                indent(out, depth);
                text(out, member);
                out.push(':');
                nested(out, value, depth);
            }
        }
        Value::Array(list) => {
            for value in list {
                indent(out, depth);
                out.push('-');
                match value {
                    // The first member stands on the line of the dash.
                    Value::Object(map) if !map.is_empty() => {
                        let at = out.len();
                        block(out, value, depth + 1);
                        let lead = (depth + 1) * 2;
                        out.replace_range(at..at + lead, " ");
                    }
                    _ => nested(out, value, depth),
                }
            }
        }
        _ => {}
    }
}

fn nested(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(out, value, depth + 1);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            block(out, value, depth + 1);
        }
        _ => {
            out.push(' ');
            scalar(out, value);
            out.push('\n');
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn scalar(out: &mut String, value: &Value) {
    match value {
        Value::String(string) => text(out, string),
        // Null, booleans, numbers, `{}` and `[]` read the same in both languages.
        other => out.push_str(&other.to_string()),
    }
}

fn text(out: &mut String, string: &str) {
    if plain(string) {
        out.push_str(string);
    } else {
        out.push_str(&Value::from(string).to_string());
    }
}

/// Whether every reader takes the bare word for this string.
fn plain(string: &str) -> bool {
    let tame = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let lower = string.to_ascii_lowercase();
    string.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && string.chars().all(tame)
        && string.len() <= 256
        && !matches!(
            lower.as_str(),
            "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null" | "nan" | "inf"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_written_in_block_style_and_read_back() {
        let value = json!({
            "apiVersion": "horchestra.io/v1",
            "empty": {}, "none": [], "nothing": null,
            "spec": {
                "command": ["/bin/sh", "-c", "echo a: b # c"],
                "env": [{"name": "A", "value": "0400"}, {"name": "yes", "value": "multi\nline"}],
                "nested": [[1, 2], [{"deep": [true]}]],
                "ratio": 1.5,
            },
            "words": ["no", "", " x", "1e3", "~", "-", "null", "é", "a\u{1}b"],
        });
        let text = write(&value);
        assert!(text.starts_with(b"apiVersion: horchestra.io/v1\nempty: {}\n"));
        assert_eq!(read(&text).unwrap(), value, "{}", String::from_utf8_lossy(&text));
    }
}
