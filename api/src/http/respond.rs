//! Answers: bodies, headers, compression.

use std::convert::Infallible;
use std::io::Write;

use bytes::Bytes;
use horchestra_core::status::Status;
use horchestra_core::yaml;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::negotiate::{Wire, accepts_gzip};

/// A stream that was cut: the connection (or the HTTP/2 stream) is reset, so that the client cannot take
/// what came for the whole.
#[derive(Debug, thiserror::Error)]
#[error("the stream was cut: {0}")]
pub struct Cut(pub &'static str);

pub type Body = UnsyncBoxBody<Bytes, Cut>;
pub type Answer = Response<Body>;

/// From this size on, answers are compressed for clients that take it.
pub const GZIP_FROM: usize = 128 * 1024;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

pub fn empty() -> Body {
    Empty::new().map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// JSON text with the newline that ends every document of ours.
pub fn json(code: StatusCode, value: &Value) -> Answer {
    let mut text = serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec());
    text.push(b'\n');
    encoded(code, Wire::Json, text)
}

/// Bytes that are already JSON, without their newline, in the encoding that was negotiated.
pub fn document(code: StatusCode, wire: Wire, json: Bytes) -> Result<Answer, Status> {
    match wire {
        Wire::Json => {
            let mut text = Vec::with_capacity(json.len() + 1);
            text.extend_from_slice(&json);
            text.push(b'\n');
            Ok(encoded(code, wire, text))
        }
        Wire::Yaml => {
            let value: Value = serde_json::from_slice(&json)
                .map_err(|_| Status::internal("an object could not be written as YAML"))?;
            Ok(encoded(code, wire, yaml::write(&value)))
        }
    }
}

pub fn encoded(code: StatusCode, wire: Wire, text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(full(text));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, wire.content_type());
    answer
}

pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(full(body));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// A failure in its wire form. Errors are always JSON: every client reads them as such, whatever it asked
/// for.
pub fn failure(status: &Status) -> Answer {
    let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = json(code, &status.to_value());
    if let Some(seconds) = status.details.retry_after_seconds {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// An immutable document with its entity tag.
#[derive(Clone, Debug)]
pub struct Tagged {
    pub bytes: Bytes,
    pub etag: HeaderValue,
    pub content_type: HeaderValue,
}

impl Tagged {
    pub fn new(bytes: impl Into<Bytes>, content_type: HeaderValue) -> Tagged {
        let bytes = bytes.into();
        let etag = HeaderValue::from_str(&format!("\"{}\"", hex(&Sha256::digest(&bytes))))
            .unwrap_or_else(|_| HeaderValue::from_static("\"\""));
        Tagged { bytes, etag, content_type }
    }

    /// The document, or 304 when the client has it.
    pub fn answer(&self, request: &HeaderMap) -> Answer {
        let known = request
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || self.etag == tag);
        let mut answer = if known { Response::new(empty()) } else { Response::new(full(self.bytes.clone())) };
        if known {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            answer.headers_mut().insert(header::CONTENT_TYPE, self.content_type.clone());
        }
        let headers = answer.headers_mut();
        headers.insert(header::ETAG, self.etag.clone());
        headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        answer
    }
}

pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Adds one `Warning` header per text (code 299). The texts come from validation and may carry anything, so
/// what a header cannot hold is replaced; the sum is bounded.
pub fn warn(answer: &mut Answer, warnings: &[String]) {
    let mut room = 4096usize;
    for warning in warnings {
        let mut text = String::with_capacity(warning.len() + 8);
        for c in warning.chars().take(512) {
            match c {
                '"' | '\\' => {
                    text.push('\\');
                    text.push(c);
                }
                ' '..='~' => text.push(c),
                _ => text.push('?'),
            }
        }
        let value = format!("299 - \"{text}\"");
        if value.len() > room {
            break;
        }
        room -= value.len();
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Compresses a large complete answer for a client that takes gzip. Streams have no known size and are
/// never touched.
pub async fn compress(request: &HeaderMap, answer: Answer) -> Answer {
    let size = answer.body().size_hint().exact().unwrap_or(0);
    if size < GZIP_FROM as u64
        || answer.headers().contains_key(header::CONTENT_ENCODING)
        || !accepts_gzip(request)
    {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    let Ok(collected) = body.collect().await else {
        return failure(&Status::internal("the answer could not be encoded"));
    };
    let plain = collected.to_bytes();
    let squeezed = tokio::task::spawn_blocking(move || {
        let mut encoder =
            flate2::write::GzEncoder::new(Vec::with_capacity(plain.len() / 6), flate2::Compression::fast());
        encoder.write_all(&plain)?;
        encoder.finish()
    })
    .await;
    let Ok(Ok(squeezed)) = squeezed else {
        return failure(&Status::internal("the answer could not be compressed"));
    };
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, full(squeezed))
}

/// Takes the body off the answer to a HEAD and leaves the headers as the GET would have them.
pub fn headers_only(answer: Answer) -> Answer {
    let (mut parts, body) = answer.into_parts();
    if let Some(size) = body.size_hint().exact() {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    Response::from_parts(parts, empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_survive_any_text() {
        let mut answer = json(StatusCode::OK, &Value::Null);
        warn(&mut answer, &["unknown field \"spec.bogus\"".into(), "line\nbreak \u{1F980}".into()]);
        let seen: Vec<&str> =
            answer.headers().get_all(header::WARNING).iter().map(|v| v.to_str().unwrap()).collect();
        assert_eq!(seen, [r#"299 - "unknown field \"spec.bogus\"""#, r#"299 - "line?break ?""#]);
    }

    #[test]
    fn a_known_entity_tag_is_not_sent_again() {
        let document = Tagged::new("{}", Wire::Json.content_type());
        let mut request = HeaderMap::new();
        assert_eq!(document.answer(&request).status(), StatusCode::OK);
        request.insert(header::IF_NONE_MATCH, document.etag.clone());
        let answer = document.answer(&request);
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer.body().size_hint().exact(), Some(0));
    }

    #[tokio::test]
    async fn only_large_answers_are_compressed() {
        let mut request = HeaderMap::new();
        request.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        let large = Value::String("x".repeat(GZIP_FROM));
        let answer = compress(&request, json(StatusCode::OK, &large)).await;
        assert_eq!(answer.headers().get(header::CONTENT_ENCODING).unwrap(), "gzip");
        let answer = compress(&request, json(StatusCode::OK, &Value::Null)).await;
        assert!(answer.headers().get(header::CONTENT_ENCODING).is_none());
        let answer = compress(&HeaderMap::new(), json(StatusCode::OK, &large)).await;
        assert!(answer.headers().get(header::CONTENT_ENCODING).is_none());
    }
}
