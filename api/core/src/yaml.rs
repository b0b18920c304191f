//! YAML request bodies and YAML answers.
//!
//! Reading gives what kubectl would make of the same text: YAML 1.1 scalars (`yes` and `on` are true,
//! `0400` is octal, `1_000` is a number), merge keys, the first document of a stream only when nothing
//! follows it. Two keys that are the same are reported as in JSON. Guarantees: nesting is bounded, and the
//! copies that aliases make are bounded together, so that a small text cannot become a large
//! tree. Tags other than those of the core schema are refused. No error repeats anything of the text, which
//! may be that of a Secret: where something is wrong is said by its line.
//!
//! The parser gives events; resolution of scalars is ours, because the YAML readers at hand resolve by the
//! 1.2 rules, where `0400` is four hundred.

use std::borrow::Cow;
use std::collections::HashMap;

use granit_parser::{Event, Options, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};

use crate::decode::{DecodeError, Document, MAX_DEPTH, Sink};
use crate::path::Step;

/// Most nodes of a document, aliases counted with everything they copy.
const MAX_NODES: usize = 1_000_000;

/// Reads one YAML document that is a mapping.
pub fn read(body: &[u8]) -> Result<Document, DecodeError> {
    let text = std::str::from_utf8(body).map_err(|_| syntax("the text is not UTF-8"))?;
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader {
        events: Parser::new_from_str_with_options(text, options),
        anchors: HashMap::new(),
        nodes: 0,
        sink: Sink::default(),
        line: 0,
    };
    let value = reader.document()?;
    reader.sink.finish().into_document(value)
}

fn syntax(message: impl ToString) -> DecodeError {
    DecodeError::Syntax(format!("error converting YAML to JSON: yaml: {}", message.to_string()))
}

struct Reader<'a> {
    events: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, (Value, usize)>,
    nodes: usize,
    sink: Sink,
    /// Where the last event began.
    line: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, DecodeError> {
        match self.events.next() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(error)) => Err(syntax(error)),
            None => Err(syntax("unexpected end of the text")),
        }
    }

    fn document(&mut self) -> Result<Value, DecodeError> {
        let mut value = None;
        loop {
            match self.next()? {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) => {
                    let event = self.next()?;
                    let read = self.node(event, 0)?;
                    match (&value, &read) {
                        (None, _) => value = Some(read),
                        // A trailing `---` makes an empty document.
                        (Some(_), Value::Null) => {}
                        (Some(_), _) => return Err(syntax("more than one document in the body")),
                    }
                }
                Event::StreamEnd => return value.ok_or(DecodeError::Empty),
                _ => return Err(syntax("unexpected content")),
            }
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), DecodeError> {
        self.nodes += nodes;
        if self.nodes > MAX_NODES { Err(syntax("document contains excessive aliasing")) } else { Ok(()) }
    }

    fn node(&mut self, event: Event<'a>, depth: usize) -> Result<Value, DecodeError> {
        if depth > MAX_DEPTH {
            return Err(syntax("exceeded the depth limit"));
        }
        self.count(1)?;
        let before = self.nodes;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref(), self.line)?;
                if let Value::String(text) = &value {
                    self.sink.look_at(text);
                }
                (value, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "seq", self.line)?;
                (self.sequence(depth)?, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "map", self.line)?;
                (self.mapping(depth)?, anchor)
            }
            Event::Alias(anchor) => {
                let (value, nodes) =
                    self.anchors.get(&anchor).cloned().ok_or_else(|| syntax("unknown anchor"))?;
                self.count(nodes)?;
                if depth + depth_of(&value) > MAX_DEPTH {
                    return Err(syntax("exceeded the depth limit"));
                }
                return Ok(value);
            }
            _ => return Err(syntax("unexpected content")),
        };
        if anchor != 0 {
            // The copy that is kept for aliases counts as well: anchors within anchors multiply.
            let nodes = self.nodes - before + 1;
            self.count(nodes)?;
            self.anchors.insert(anchor, (value.clone(), nodes));
        }
        Ok(value)
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd => return Ok(Value::Array(list)),
                event => {
                    let mark = self.sink.mark();
                    let item = self.node(event, depth + 1)?;
                    self.sink.step_out(mark, Step::Index(list.len()));
                    list.push(item);
                }
            }
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, DecodeError> {
        let mut map = Map::new();
        let mut merged = Map::new();
        loop {
            let (name, merge) = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, style, _, tag) => {
                    self.count(1)?;
                    let merge = text == "<<" && style == ScalarStyle::Plain;
                    (key(&text, style, tag.as_deref(), self.line)?, merge)
                }
                Event::Alias(anchor) => match self.anchors.get(&anchor) {
                    Some((Value::String(text), _)) => (text.clone(), false),
                    _ => return Err(syntax("a key must be a text")),
                },
                _ => return Err(syntax("a key must be a text")),
            };
            let event = self.next()?;
            let mark = self.sink.mark();
            let value = self.node(event, depth + 1)?;
            if merge {
                for map in merge_sources(value)? {
                    for (name, value) in map {
                        merged.entry(name).or_insert(value);
                    }
                }
                continue;
            }
            self.sink.look_at(&name);
            if map.contains_key(&name) {
                self.sink.duplicate();
            }
            self.sink.step_out(mark, Step::Member(&name));
            map.insert(name, value);
        }
        for (name, value) in merged {
            map.entry(name).or_insert(value);
        }
        Ok(Value::Object(map))
    }
}

fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

fn merge_sources(value: Value) -> Result<Vec<Map<String, Value>>, DecodeError> {
    let one = |value| match value {
        Value::Object(map) => Ok(map),
        _ => Err(syntax("map merge requires map or sequence of maps as the value")),
    };
    match value {
        Value::Array(list) => list.into_iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

fn check_tag(tag: Option<&Tag>, want: &str, line: usize) -> Result<(), DecodeError> {
    match tag {
        None => Ok(()),
        Some(tag) if tag.core_suffix() == Some(want) => Ok(()),
        Some(_) => Err(unsupported_tag(line)),
    }
}

/// A text that begins with `!` and lacks its quotes is a tag as well, so the tag is not shown.
fn unsupported_tag(line: usize) -> DecodeError {
    syntax(format!("line {line}: the tag is not supported here; a text that begins with ! needs quotes"))
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<Value, DecodeError> {
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { plain(text) } else { Ok(Value::from(text)) };
    };
    let bad = || syntax(format!("line {line}: the value cannot be read as what its tag says"));
    match tag.core_suffix() {
        Some("str" | "binary") => Ok(Value::from(text)),
        Some("null") => Ok(Value::Null),
        Some("bool") => boolean(text).map(Value::Bool).ok_or_else(bad),
        Some("int") => integer(text).map(Value::Number).ok_or_else(bad),
        Some("float") => number(text).map(Value::Number).ok_or_else(bad),
        _ if tag.original() == "!" => Ok(Value::from(text)),
        _ => Err(unsupported_tag(line)),
    }
}

/// Keys become texts the way kubectl turns them into JSON.
fn key(text: &str, style: ScalarStyle, tag: Option<&Tag>, line: usize) -> Result<String, DecodeError> {
    Ok(match scalar(text, style, tag, line)? {
        Value::String(text) => text,
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null => "null".to_owned(),
        _ => return Err(syntax("a key must be a text")),
    })
}

/// Resolves a plain scalar by the rules of YAML 1.1 as Go programs apply them.
fn plain(text: &str) -> Result<Value, DecodeError> {
    if matches!(text, "" | "~" | "null" | "Null" | "NULL") {
        return Ok(Value::Null);
    }
    if let Some(flag) = boolean(text) {
        return Ok(Value::Bool(flag));
    }
    if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        if let Some(number) = integer(text) {
            return Ok(Value::Number(number));
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
            return Err(syntax(format!("{text} has no form in JSON")));
        }
        if let Some(number) = number(text) {
            return Ok(Value::Number(number));
        }
    }
    Ok(Value::from(text))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Number> {
    let text = without_underscores(text);
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let (radix, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', _, ..] => (8, &unsigned[1..]),
        _ => (10, unsigned),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let value = u64::from_str_radix(digits, radix).ok()?;
    if negative { 0i64.checked_sub_unsigned(value).map(Number::from) } else { Some(Number::from(value)) }
}

/// Digits with an optional fraction and exponent.
fn number(text: &str) -> Option<Number> {
    let text = without_underscores(text);
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(&text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mantissa_good = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            (digits(whole) && (fraction.is_empty() || digits(fraction)))
                || (whole.is_empty() && digits(fraction))
        }
        None => digits(mantissa),
    };
    if !mantissa_good || exponent.is_some_and(|exponent| !digits(exponent)) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    // Whole numbers are written without a fraction in JSON, so 1e3 and 1000 are the same.
    if value.fract() == 0.0 && value.abs() < 9.0e15 {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number well within 64 bits")]
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

fn without_underscores(text: &str) -> Cow<'_, str> {
    if text.contains('_') { Cow::Owned(text.replace('_', "")) } else { Cow::Borrowed(text) }
}

/// A JSON value as YAML, in block style, with members in the order of the tree. Every YAML 1.1 or 1.2 reader
/// gets the same value back (member names longer than 1,000 characters excepted): texts that one of them
/// would take for something else are quoted.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(map, 0, &mut out),
        Value::Array(list) if !list.is_empty() => write_list(list, 0, &mut out),
        scalar => {
            write_scalar(scalar, &mut out);
            out.push('\n');
        }
    }
    out
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn write_map(map: &Map<String, Value>, depth: usize, out: &mut String) {
    for (at, (name, value)) in map.iter().enumerate() {
        if at > 0 {
            indent(depth, out);
        }
        write_text(name, out);
        out.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                indent(depth + 1, out);
                write_map(inner, depth + 1, out);
            }
            // Items stand below their name, as kubectl prints them.
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                indent(depth, out);
                write_list(list, depth, out);
            }
            scalar => {
                out.push(' ');
                write_scalar(scalar, out);
                out.push('\n');
            }
        }
    }
}

fn write_list(list: &[Value], depth: usize, out: &mut String) {
    for (at, value) in list.iter().enumerate() {
        if at > 0 {
            indent(depth, out);
        }
        out.push_str("- ");
        match value {
            Value::Object(inner) if !inner.is_empty() => write_map(inner, depth + 1, out),
            Value::Array(inner) if !inner.is_empty() => write_list(inner, depth + 1, out),
            scalar => {
                write_scalar(scalar, out);
                out.push('\n');
            }
        }
    }
}

fn write_scalar(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => write_text(text, out),
        // Empty containers, numbers, booleans and null are written alike in both notations.
        other => out.push_str(&other.to_string()),
    }
}

fn write_text(text: &str, out: &mut String) {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let plain_safe = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '_'))
        && text.ends_with(safe)
        && text.chars().all(|c| safe(c) || c == ' ' || c == ':' || c == '=' || c == '@')
        && !text.contains(": ")
        && matches!(plain(text), Ok(Value::String(_)));
    if plain_safe {
        out.push_str(text);
    } else {
        // JSON's quoting is YAML's double quoting, but YAML calls more characters unprintable.
        for c in Value::from(text).to_string().chars() {
            if matches!(
                c,
                '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
            ) {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            } else {
                out.push(c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        read(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}")).object.into_value()
    }

    #[test]
    fn scalars_are_read_as_kubectl_reads_them() {
        let cases = [
            ("0400", json!(256)),
            ("0o400", json!(256)),
            ("0x1F", json!(31)),
            ("-0b11", json!(-3)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("yes", json!(true)),
            ("Off", json!(false)),
            ("y", json!(true)),
            ("~", json!(null)),
            ("", json!(null)),
            ("1.5", json!(1.5)),
            ("1e3", json!(1000)),
            ("\"yes\"", json!("yes")),
            ("'0400'", json!("0400")),
            ("250m", json!("250m")),
            ("2024-01-01", json!("2024-01-01")),
            ("1.2.3", json!("1.2.3")),
            ("nginx:1", json!("nginx:1")),
            ("!!str 12", json!("12")),
            ("|\n  a\n  b\n", json!("a\nb\n")),
            ("18446744073709551615", json!(18_446_744_073_709_551_615u64)),
        ];
        for (text, want) in cases {
            assert_eq!(value(&format!("v: {text}"))["v"], want, "{text}");
        }
    }

    #[test]
    fn anchors_merge_keys_and_documents() {
        let text = "---\nbase: &b {a: 1, b: 2}\nuse:\n  <<: *b\n  b: 3\nagain: *b\n---\n";
        assert_eq!(
            value(text),
            json!({"base": {"a": 1, "b": 2}, "use": {"a": 1, "b": 3}, "again": {"a": 1, "b": 2}})
        );
        assert!(read(b"a: 1\n---\nb: 2\n").is_err());
        assert!(read(b"").is_err());
        assert!(read(b"- a\n").is_err());
        assert!(read(b"a: !odd 1\n").is_err());
        assert!(read(b"a: .inf\n").is_err());
        assert!(read(b"a: [1\n").is_err());
    }

    #[test]
    fn duplicates_and_nul_are_found() {
        let document = read(b"spec:\n  a: 1\n  list:\n  - {k: 1, k: 2}\n  a: 2\n  z: \"x\\0\"\n").unwrap();
        assert_eq!(document.duplicates, ["spec.list[0].k", "spec.a"]);
        assert_eq!(document.nul, ["spec.z"]);
    }

    #[test]
    fn errors_say_where_and_repeat_nothing() {
        for text in [
            "a: 1\nb: !!int hunter2",
            "a: 1\nb: !hunter2",
            "a: 1\nb: !hunter2 x",
            "a: 1\nb: !hunter2 [x]",
            "a: 1\nb: !!hunter2 x",
            "a: 1\nb: *hunter2",
            "a: 1\nb: @hunter2",
            "a: 1\nb: \"hunter2",
            "a: 1\n- hunter2",
            "a: 1\nhunter2",
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("line ") && !error.contains("hunter"), "{text:?}: {error}");
        }
        let error = read(b"a: 1\nb: !hunter2").unwrap_err().to_string();
        assert!(error.contains("line 2: ") && error.contains("needs quotes"), "{error}");
    }

    #[test]
    fn a_small_text_cannot_become_a_large_tree() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let copies = vec![format!("*a{}", level - 1); 10].join(",");
            text.push_str(&format!("a{level}: &a{level} [{copies}]\n"));
        }
        assert!(read(text.as_bytes()).is_err());
        let anchored: String = (0..100).map(|level| format!("{{k: &a{level} ")).collect();
        let nested = format!("a: {anchored}[{}]{}", "1,".repeat(50_000), "}".repeat(100));
        assert!(read(nested.as_bytes()).is_err());
        assert!(read("[".repeat(100_000).as_bytes()).is_err());
        assert!(read(format!("a: {}{}", "[".repeat(200), "]".repeat(200)).as_bytes()).is_err());
    }

    #[test]
    fn writes_what_kubectl_prints() {
        let value = json!({"kind": "X", "spec": {"command": ["sh", "-c"], "env": [{"name": "A", "value": "0400"}],
            "empty": {}, "none": [], "flag": true, "text": "a: b\n"}});
        let want = "kind: X\nspec:\n  command:\n  - sh\n  - \"-c\"\n  empty: {}\n  env:\n  - name: A\n    \
                    value: \"0400\"\n  flag: true\n  none: []\n  text: \"a: b\\n\"\n";
        assert_eq!(write(&value), want);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            members in prop::collection::btree_map("[^\u{0}]{0,6}", prop_oneof![
                "[ -~]{0,12}".prop_map(Value::from),
                "(yes|no|~|null|0400|1e3|0x1|.inf|-|- a|a: b|# c|a #b|\\*x|&x|!x|%|@|`)".prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                any::<bool>().prop_map(Value::from),
                prop::collection::vec("\\PC{0,5}", 0..3).prop_map(Value::from),
            ], 1..6),
        ) {
            let value = Value::Object(members.into_iter().collect());
            prop_assert_eq!(read(write(&value).as_bytes()).unwrap().object.into_value(), value);
        }

        #[test]
        fn never_panics(text in "\\PC{0,80}") {
            let _ = read(text.as_bytes());
        }
    }
}
