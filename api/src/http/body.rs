//! Reading request bodies.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use horchestra_core::status::Status;
use http::{HeaderMap, header};
use http_body::Body;
use http_body_util::BodyExt;

/// Largest request body, in bytes.
pub const LIMIT: usize = 3 << 20;

/// How much of a body that is too large is still read before the refusal goes out: most clients write all
/// of it before they read, and would see a reset connection instead of the answer.
const DISCARD: usize = 32 << 20;
const DISCARD_FOR: Duration = Duration::from_secs(5);

/// The whole body, 413 above [`LIMIT`], 415 for a compressed one.
pub async fn read<B>(headers: &HeaderMap, body: B) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    read_up_to(LIMIT, headers, body).await
}

/// As [`read`], with a limit of its own.
pub async fn read_up_to<B>(limit: usize, headers: &HeaderMap, mut body: B) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Status::unsupported_media_type("compressed request bodies are not taken"));
    }
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u64>().ok());
    let mut whole = BytesMut::new();
    let mut too_large = announced.is_some_and(|length| length > limit as u64);
    while !too_large {
        let Some(frame) = body.frame().await else { return Ok(whole.freeze()) };
        let frame = frame.map_err(|_| Status::bad_request("the body of the request ended early"))?;
        if let Ok(data) = frame.into_data() {
            too_large = whole.len() + data.len() > limit;
            whole.extend_from_slice(&data);
        }
    }
    let mut read = whole.len();
    drop(whole);
    if announced.is_none_or(|length| length <= DISCARD as u64) {
        let _ = tokio::time::timeout(DISCARD_FOR, async {
            while read < DISCARD
                && let Some(Ok(frame)) = body.frame().await
            {
                read += frame.data_ref().map_or(0, Bytes::len);
            }
        })
        .await;
    }
    Err(Status::too_large(format!("limit is {limit}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http_body_util::Full;

    #[tokio::test]
    async fn bodies_up_to_the_limit_are_read() {
        let none = HeaderMap::new();
        for (size, fits) in [(0, true), (LIMIT, true), (LIMIT + 1, false), (LIMIT * 4 / 3, false)] {
            let body = Full::new(Bytes::from(vec![b' '; size]));
            let read = read(&none, body).await;
            match read {
                Ok(bytes) => assert!(fits && bytes.len() == size, "{size}"),
                Err(status) => assert!(!fits && status.code() == 413, "{size}"),
            }
        }
        let mut gzip = HeaderMap::new();
        gzip.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(read(&gzip, Full::new(Bytes::new())).await.unwrap_err().code(), 415);
    }
}
