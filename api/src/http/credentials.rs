//! Who makes a request.
//!
//! The certificate of the connection decides when there is one; headers are not even looked at then. Else a
//! token is taken from `Authorization` when that begins with `Bearer `, to the letter, good or bad; otherwise the
//! whole of `X-Consul-Token` is one, since clients of Consul have no other place for it. Nothing else in a
//! request says who makes it.

use horchestra_core::status::Status;
use http::{HeaderMap, HeaderValue, header};
use jiff::Timestamp;

use crate::access::Known;
use crate::app::App;

const CONSUL_TOKEN: &str = "x-consul-token";
const BEARER: &[u8] = b"Bearer ";

/// The token of a request; `None`: it has none.
fn token(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let token = match authorization.and_then(|value| value.strip_prefix(BEARER)) {
        Some(token) => token,
        None => headers.get(CONSUL_TOKEN)?.as_bytes(),
    };
    std::str::from_utf8(token).ok().filter(|token| !token.is_empty())
}

/// The token of whoever asks for a TokenReview, with the word `Bearer` or without. May be empty.
pub fn reviewer(headers: &HeaderMap) -> &str {
    let value = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    std::str::from_utf8(value.strip_prefix(BEARER).unwrap_or(value)).unwrap_or_default()
}

impl App {
    /// Who makes a request over a connection whose certificate proves `certified`.
    pub fn authenticate(&self, certified: Option<Known>, headers: &HeaderMap) -> Result<Known, Status> {
        const NOBODY: &str = "no usable credential was presented";
        if let Some(known) = certified {
            let expired = || Status::unauthorized(format!("{NOBODY}: the client certificate has expired"));
            return Some(known).filter(Known::valid).ok_or_else(expired);
        }
        let token = token(headers).ok_or_else(|| Status::unauthorized(NOBODY))?;
        let issuer = self.issuer().ok_or_else(|| Status::unauthorized(NOBODY))?;
        match issuer.identify(token, Timestamp::now()) {
            Ok(identity) => Ok(Known::new(identity)),
            Err(error) => Err(Status::unauthorized(format!("{NOBODY}: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_token_is_found() {
        type Case<'a> = (&'a [(&'a str, &'a [u8])], Option<&'a str>);
        let cases: &[Case<'_>] = &[
            (&[], None),
            (&[("authorization", b"Bearer a.b.c")], Some("a.b.c")),
            (&[("authorization", b"Bearer a"), ("x-consul-token", b"b")], Some("a")),
            (&[("authorization", b"Bearer "), ("x-consul-token", b"b")], None),
            (&[("authorization", b"Bearer  a")], Some(" a")),
            (&[("authorization", b"Bearer\ta")], None),
            (&[("authorization", b"bearer a")], None),
            (&[("authorization", b"bearer a"), ("x-consul-token", b"b")], Some("b")),
            (&[("authorization", b"Basic YTpi"), ("x-consul-token", b"b")], Some("b")),
            (&[("authorization", b"a")], None),
            (&[("authorization", b"Bearer a"), ("authorization", b"Bearer b")], Some("a")),
            (&[("authorization", b"Bearer \xff"), ("x-consul-token", b"b")], None),
            (&[("x-consul-token", b"Bearer b")], Some("Bearer b")),
            (&[("x-consul-token", b"")], None),
            (&[("cookie", b"token=a"), ("x-remote-user", b"admin")], None),
        ];
        for (headers, expected) in cases {
            let mut map = HeaderMap::new();
            for (name, value) in *headers {
                map.append(*name, HeaderValue::from_bytes(value).unwrap());
            }
            assert_eq!(token(&map), *expected, "{headers:?}");
        }
    }

    #[test]
    fn a_reviewer_may_leave_the_word_out() {
        for (value, expected) in [("Bearer a", "a"), ("a", "a"), ("bearer a", "bearer a"), ("", "")] {
            let mut map = HeaderMap::new();
            map.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(reviewer(&map), expected, "{value:?}");
        }
        assert_eq!(reviewer(&HeaderMap::new()), "");
    }
}
