//! Responses with the bytes of files and blobs: they are streamed, whole or a range of them (RFC 9110, section 14), and never
//! interpreted by a browser.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millrace_runtime::Fault;

use crate::problem::{ApiResult, Problem, ProblemKind};

/// A content that ends with an error instead of its last part if it is damaged.
pub type Content = BoxStream<'static, Result<Bytes, Fault>>;

pub struct ContentInfo {
    pub size: u64,
    /// Its ETag, without the quotes.
    pub etag: String,
    pub cache_control: Option<&'static str>,
}

/// Answers a request with a content, or with the range that it asks for. `open` opens the content again: a range that does
/// not reach its end is sent only after the whole content was read once and found undamaged.
pub async fn respond_with_content(
    request: &HeaderMap,
    info: ContentInfo,
    content: Content,
    open: impl FnOnce() -> BoxFuture<'static, Result<Content, Problem>>,
) -> ApiResult {
    let etag = format!("\"{}\"", info.etag);
    let mut headers = HeaderMap::new();
    let mut insert = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    // A browser must not run what an agent wrote.
    insert(header::CONTENT_TYPE, "application/octet-stream");
    insert(header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'");
    insert(header::ACCEPT_RANGES, "bytes");
    insert(header::ETAG, &etag);
    if let Some(cache_control) = info.cache_control {
        insert(header::CACHE_CONTROL, cache_control);
    }
    let Some((first, last)) = requested_range(request, &etag, info.size)? else {
        insert(header::CONTENT_LENGTH, &info.size.to_string());
        return Ok((headers, Body::from_stream(content)).into_response());
    };
    insert(header::CONTENT_RANGE, &format!("bytes {first}-{last}/{}", info.size));
    insert(header::CONTENT_LENGTH, &(last - first + 1).to_string());
    let content = if last + 1 < info.size {
        content.try_for_each(|_| futures::future::ready(Ok(()))).await?;
        open().await?
    } else {
        content
    };
    let body = Body::from_stream(cut_range(content, first, last));
    Ok((StatusCode::PARTIAL_CONTENT, headers, body).into_response())
}

/// Returns the first and the last byte that a request asks for; `None` for all. Several ranges are answered with all.
fn requested_range(request: &HeaderMap, etag: &str, size: u64) -> Result<Option<(u64, u64)>, Problem> {
    let text = |name| request.get(name).and_then(|value| value.to_str().ok());
    let Some(range) = text(header::RANGE) else { return Ok(None) };
    // The client has a part of another version.
    if text(header::IF_RANGE).is_some_and(|expected| expected != etag) {
        return Ok(None);
    }
    let Ok(parsed) = http_range_header::parse_range_header(range) else { return Ok(None) };
    let unsatisfiable = || {
        let detail = format!("the content has {size} bytes; Range: {range} is not in it");
        Problem::new(ProblemKind::RangeNotSatisfiable, detail)
    };
    let ranges = parsed.validate(size).map_err(|_| unsatisfiable())?;
    match ranges.as_slice() {
        [range] => Ok(Some((*range.start(), *range.end()))),
        [] => Err(unsatisfiable()),
        _ => Ok(None),
    }
}

/// Leaves out what is before the byte `first` and after the byte `last`.
fn cut_range(content: Content, first: u64, last: u64) -> Content {
    let cut = content.scan(0_u64, move |at, part| {
        let is_over = *at > last;
        let part = part.map(|part| {
            let start = *at;
            *at += part.len() as u64;
            let within = |position: u64| {
                usize::try_from(position.saturating_sub(start)).unwrap_or(usize::MAX).min(part.len())
            };
            part.slice(within(first)..within(last + 1))
        });
        futures::future::ready((!is_over).then_some(part))
    });
    cut.filter(|part| futures::future::ready(!is_empty(part))).boxed()
}

fn is_empty(part: &Result<Bytes, Fault>) -> bool {
    part.as_ref().is_ok_and(Bytes::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(parts: &[&'static str]) -> Content {
        let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).collect();
        futures::stream::iter(parts).boxed()
    }

    #[tokio::test]
    async fn ranges_are_cut_at_every_byte() {
        let whole = "abcdefghij";
        for first in 0..whole.len() {
            for last in first..whole.len() {
                let parts = content(&["abc", "", "defg", "h", "ij"]);
                let cut: Vec<Bytes> =
                    cut_range(parts, first as u64, last as u64).try_collect().await.unwrap();
                assert_eq!(cut.concat(), &whole.as_bytes()[first..=last], "{first}-{last}");
            }
        }
    }

    #[test]
    fn ranges_are_read_or_refused() {
        let asked = |range: &str, if_range: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::from_str(range).unwrap());
            if let Some(etag) = if_range {
                headers.insert(header::IF_RANGE, HeaderValue::from_str(etag).unwrap());
            }
            requested_range(&headers, "\"2\"", 10)
                .map_err(|problem| problem.into_response().status().as_u16())
        };
        assert_eq!(asked("bytes=0-3", None), Ok(Some((0, 3))));
        assert_eq!(asked("bytes=4-", None), Ok(Some((4, 9))));
        assert_eq!(asked("bytes=-2", None), Ok(Some((8, 9))));
        assert_eq!(asked("bytes=4-", Some("\"2\"")), Ok(Some((4, 9))));
        assert_eq!(asked("bytes=4-", Some("\"1\"")), Ok(None));
        assert_eq!(asked("bytes=0-1,3-4", None), Ok(None));
        assert_eq!(asked("lines=1", None), Ok(None));
        assert_eq!(asked("bytes=10-", None), Err(416));
    }
}
