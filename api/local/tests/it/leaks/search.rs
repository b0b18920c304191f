//! Looking for a token in whatever form it may have been written.
//!
//! A token is made of small hexadecimal digits, which no encoder writes in more than one way, and whose base64 has
//! neither `+` nor `/`. The forms are: as it is; in base64, at each of the three places that it can have in a group
//! of three bytes; and of all these: in hexadecimal, with escapes for every character as JSON (`\\u0061`) and
//! others (`\\x61`) write them, quoted up to three times, in percent escapes, and as the list of numbers that
//! Rust prints for bytes.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// One token in all its forms.
pub struct Search {
    forms: Vec<(String, Vec<u8>)>,
    /// The forms that begin with two bytes, by these.
    starts: Vec<Vec<usize>>,
}

/// Where a token was found.
pub struct Found {
    /// The form that it has there.
    form: String,
    /// What stands around it, as far as it is text.
    context: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: … {} …", self.form, self.context)
    }
}

impl Search {
    pub fn of(token: &str) -> Search {
        assert!(token.len() >= 16 && token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        let mut plain = vec![("as it is".to_owned(), token.as_bytes().to_vec())];
        for shift in 0..3 {
            let shifted = [&[0; 2][..shift], token.as_bytes()].concat();
            let text = STANDARD.encode(shifted);
            // Without the characters that neighbours have a part in.
            let from = [0, 2, 3][shift];
            plain.push((
                format!("in base64, {shift} bytes on"),
                text.as_bytes()[from..text.len() - 4].to_vec(),
            ));
        }
        let mut forms = Vec::new();
        for (name, bytes) in plain {
            for (how, written) in encodings(&bytes) {
                forms.push((format!("{name}{how}"), written));
            }
        }
        let mut starts = vec![Vec::new(); 1 << 16];
        for (at, (_, form)) in forms.iter().enumerate() {
            starts[start(form)].push(at);
        }
        Search { forms, starts }
    }

    /// The first place where the token is.
    pub fn find(&self, haystack: &[u8]) -> Option<Found> {
        for at in 0..haystack.len().saturating_sub(1) {
            let rest = &haystack[at..];
            for form in &self.starts[start(rest)] {
                let (name, bytes) = &self.forms[*form];
                if rest.starts_with(bytes) {
                    let around =
                        &haystack[at.saturating_sub(80)..(at + bytes.len() + 80).min(haystack.len())];
                    let context = String::from_utf8_lossy(around).into_owned();
                    return Some(Found { form: name.clone(), context });
                }
            }
        }
        None
    }
}

fn start(bytes: &[u8]) -> usize {
    (usize::from(bytes[0]) << 8) | usize::from(bytes[1])
}

/// The bytes as they are, and written in other ways.
fn encodings(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![(String::new(), bytes.to_vec())];
    let mut put = |how: &str, each: &dyn Fn(u8) -> String, between: &str| {
        let parts: Vec<String> = bytes.iter().map(|byte| each(*byte)).collect();
        all.push((format!(", {how}"), parts.join(between).into_bytes()));
    };
    put("in hexadecimal", &|byte| format!("{byte:02x}"), "");
    put("in capital hexadecimal", &|byte| format!("{byte:02X}"), "");
    put("in percent escapes", &|byte| format!("%{byte:02X}"), "");
    put("as numbers", &|byte| byte.to_string(), ", ");
    for quoted in 0..3 {
        let slashes = "\\".repeat(1 << quoted);
        put(&format!("in JSON escapes, quoted {quoted} times"), &|byte| format!("{slashes}u{byte:04x}"), "");
        put(&format!("in byte escapes, quoted {quoted} times"), &|byte| format!("{slashes}x{byte:02x}"), "");
        put(&format!("in octal escapes, quoted {quoted} times"), &|byte| format!("{slashes}{byte:03o}"), "");
    }
    all
}

#[test]
fn a_token_is_found_in_every_form() {
    let token = "0123456789abcdef0123456789abcdef";
    let search = Search::of(token);
    let json = |text: &str| serde_json::to_string(text).unwrap();
    let base64 = |text: String| STANDARD.encode(text);
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let escaped = |text: &str| text.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>();
    for text in [
        token.to_owned(),
        json(&format!("\"{token}\"\n")),
        json(&json(&format!("a \"{token}\""))),
        base64(token.to_owned()),
        base64(format!("x{token}y")),
        base64(format!("xy{token}z")),
        base64(format!("xyz{token}")),
        json(&base64(format!("{token}, and more"))),
        hex(token),
        hex(token).to_uppercase(),
        format!("\\x{}", hex(&json(token))),
        hex(&base64(format!("xy{token}"))),
        escaped(token),
        json(&escaped(token)),
        json(&json(&escaped(token))),
        escaped(&base64(format!("x{token}"))),
        token.bytes().map(|byte| format!("\\x{byte:02x}")).collect(),
        token.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        format!("{:?}", token.as_bytes()),
        format!("{:?}", base64(format!("x{token}")).as_bytes()),
    ] {
        for around in ["", "\0", "before and after, so that nothing is aligned"] {
            assert!(search.find(format!("{around}{text}{around}").as_bytes()).is_some(), "{text}");
        }
    }
    for text in ["", "0", &token[1..], &base64(token[..24].to_owned()), "fedcba9876543210fedcba9876543210"] {
        assert!(search.find(text.as_bytes()).is_none(), "{text}");
    }
}
