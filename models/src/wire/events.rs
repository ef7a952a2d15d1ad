//! Events out of bytes: server-sent events, or a JSON value a line. It owns the limits on what a provider may send and
//! knows nothing of what the events say.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use sse_stream::SseByteStream;

use super::fault::causes;

/// One event may not be longer; no provider sends one of a hundredth of it.
pub(super) const MAX_EVENT: usize = 8 << 20;

/// A whole reply may not be longer.
pub(super) const MAX_REPLY: usize = 64 << 20;

/// Why a stream gave no further event.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The connection ended in the middle.
    #[error("the connection broke off: {0}")]
    Cut(String),
    /// The connection stands, and nothing comes.
    #[error("the stream fell silent: nothing came for {0:?}")]
    Silent(Duration),
    /// More came than is taken.
    #[error("{0} is longer than {1} MiB")]
    TooLong(&'static str, usize),
    /// Bytes that are no text.
    #[error("an event is not UTF-8: {0}")]
    NotText(String),
}

/// The bytes of an answer.
pub(super) type Body = BoxStream<'static, Result<Bytes, Broken>>;

/// The data of its events.
pub(super) type Events = BoxStream<'static, Result<String, Broken>>;

/// What was taken since the last event.
type Meter = Arc<AtomicUsize>;

/// The bytes of an answer, with the limit of a whole reply.
pub(super) fn body(bytes: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static) -> Body {
    let mut total = 0;
    let counted = bytes.map(move |piece| {
        let piece = piece.map_err(|error| Broken::Cut(causes(&error)))?;
        total += piece.len();
        if total > MAX_REPLY { Err(Broken::TooLong("the reply", MAX_REPLY >> 20)) } else { Ok(piece) }
    });
    counted.boxed()
}

fn metered(body: Body, meter: &Meter) -> impl Stream<Item = Result<Bytes, Broken>> + Send + Unpin + use<> {
    let meter = Arc::clone(meter);
    body.map(move |piece| {
        let piece = piece?;
        let since = meter.fetch_add(piece.len(), Ordering::Relaxed) + piece.len();
        if since > MAX_EVENT { Err(Broken::TooLong("an event", MAX_EVENT >> 20)) } else { Ok(piece) }
    })
}

/// The same, until nothing comes for so long.
pub(super) fn awake(body: Body, patience: Duration) -> Body {
    let pieces = futures::stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout(patience, body.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(body))),
            Err(_) => Some((Err(Broken::Silent(patience)), None)),
        }
    });
    pieces.fuse().boxed()
}

/// Server-sent events. Comments, names, ids and events without data are passed over.
pub(super) fn server_sent(body: Body) -> Events {
    let meter = Meter::default();
    let events = SseByteStream::new(Box::pin(metered(body, &meter)));
    let data = events.filter_map(move |event| {
        meter.store(0, Ordering::Relaxed);
        std::future::ready(match event {
            Ok(event) => event.data.filter(|data| !data.trim().is_empty()).map(Ok),
            Err(error) => Some(Err(broken(error))),
        })
    });
    data.boxed()
}

fn broken(error: sse_stream::Error) -> Broken {
    let sse_stream::Error::Body(source) = error else { return Broken::NotText(error.to_string()) };
    match source.downcast::<Broken>() {
        Ok(broken) => *broken,
        Err(other) => Broken::Cut(other.to_string()),
    }
}

/// A value a line. The last line needs no end.
pub(super) fn lines(body: Body) -> Events {
    let meter = Meter::default();
    let pieces: Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>> = Box::pin(metered(body, &meter));
    let state = (pieces, BytesMut::new(), meter, 0_usize);
    let lines = futures::stream::try_unfold(state, |(mut pieces, mut held, meter, mut seen)| async move {
        loop {
            if let Some(at) = held[seen..].iter().position(|byte| *byte == b'\n' || *byte == b'\r') {
                let line = held.split_to(seen + at + 1);
                meter.store(held.len(), Ordering::Relaxed);
                seen = 0;
                if let Some(text) = text_of(&line)? {
                    return Ok(Some((text, (pieces, held, meter, seen))));
                }
                continue;
            }
            seen = held.len();
            let Some(piece) = pieces.try_next().await? else { break };
            held.extend_from_slice(&piece);
        }
        let last = held.split();
        Ok(text_of(&last)?.map(|text| (text, (pieces, held, meter, 0))))
    });
    lines.boxed()
}

fn text_of(line: &[u8]) -> Result<Option<String>, Broken> {
    let text = std::str::from_utf8(line).map_err(|error| Broken::NotText(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// What an answer begins with, behind a byte order mark and white space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// JSON.
    Json,
    /// Markup.
    Page,
    /// A field or a comment of server-sent events.
    Event,
    /// Anything else.
    Other,
    /// Nothing came.
    Nothing,
}

/// Looks at the first bytes and puts them back.
pub(super) async fn peeked(mut body: Body) -> Result<(Start, Body), Broken> {
    let mut held = BytesMut::new();
    let start = loop {
        let begun = held.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&held).trim_ascii_start();
        // A field's name is at most six bytes long; a byte order mark may be cut in its middle.
        if begun.len() >= 6 || matches!(begun.first(), Some(b'{' | b'[' | b'<' | b':')) {
            break start_of(begun);
        }
        match body.try_next().await? {
            Some(piece) => held.extend_from_slice(&piece),
            None if begun.is_empty() => break Start::Nothing,
            None => break start_of(begun),
        }
    };
    let first = futures::stream::once(std::future::ready(Ok(held.freeze())));
    Ok((start, first.chain(body).boxed()))
}

fn start_of(begun: &[u8]) -> Start {
    let field = |name: &&[u8]| begun.starts_with(name);
    match begun {
        [b'{' | b'[', ..] => Start::Json,
        [b'<', ..] => Start::Page,
        [b':', ..] => Start::Event,
        _ if [&b"data:"[..], b"event:", b"id:", b"retry:", b"data\n", b"data\r"].iter().any(field) => {
            Start::Event
        }
        _ => Start::Other,
    }
}

/// All of it, as text.
pub(super) async fn whole(mut body: Body, limit: usize) -> Result<String, Broken> {
    let mut held = Vec::new();
    while let Some(piece) = body.try_next().await? {
        held.extend_from_slice(&piece);
        if held.len() >= limit {
            held.truncate(limit);
            break;
        }
    }
    Ok(String::from_utf8_lossy(&held).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(all: &[&[u8]]) -> Body {
        let owned: Vec<_> = all.iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        futures::stream::iter(owned).boxed()
    }

    async fn collected(events: Events) -> Vec<String> {
        events.map(|event| event.unwrap()).collect().await
    }

    #[tokio::test]
    async fn events_and_lines_are_the_same_wherever_the_bytes_are_cut() {
        let text = "\u{feff}: hello\r\n\r\nevent: x\rdata: {\"a\":\rdata: \"ü\"}\r\rretry: 5\n\ndata:\n\ndata: [DONE]\n\n";
        let rows = "\u{feff}{\"a\":\"ü\"}\r\n\n{\"b\":2}\r{\"c\":3}";
        for cut in 0..=text.len() {
            let (one, two) = text.as_bytes().split_at(cut);
            let found = collected(server_sent(pieces(&[one, b"", two]))).await;
            assert_eq!(found, ["{\"a\":\n\"ü\"}", "[DONE]"], "cut at {cut}");
        }
        for cut in 0..=rows.len() {
            let (one, two) = rows.as_bytes().split_at(cut);
            let found = collected(lines(pieces(&[one, two]))).await;
            assert_eq!(found, ["{\"a\":\"ü\"}", "{\"b\":2}", "{\"c\":3}"], "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn what_is_longer_than_the_limits_is_not_held() {
        let piece = vec![b'x'; 1 << 20];
        let flood: Vec<&[u8]> =
            std::iter::once(&b"data: "[..]).chain(std::iter::repeat_n(&piece[..], 20)).collect();
        let of_events = server_sent(pieces(&flood)).next().await.unwrap();
        assert!(matches!(of_events, Err(Broken::TooLong("an event", 8))), "{of_events:?}");
        let of_lines = lines(pieces(&flood)).next().await.unwrap();
        assert!(matches!(of_lines, Err(Broken::TooLong("an event", 8))), "{of_lines:?}");
        let blank = Bytes::from([&piece[..], b"\n"].concat());
        let endless = futures::stream::repeat_with(move || Ok(blank.clone()));
        let mut of_reply = lines(body(endless));
        let end = loop {
            match of_reply.next().await {
                Some(Ok(_)) => {}
                other => break other,
            }
        };
        assert!(matches!(end, Some(Err(Broken::TooLong("the reply", 64)))));
    }

    #[tokio::test]
    async fn the_first_bytes_tell_what_comes() {
        let cases: [(&[&[u8]], Start); 8] = [
            (&[b"\xEF", b"\xBB\xBF", b" {}"], Start::Json),
            (&[b"\r\n", b"d", b"ata: 1\n\n"], Start::Event),
            (&[b": comment"], Start::Event),
            (&[b"<!doctype html>"], Start::Page),
            (&[b"dates"], Start::Other),
            (&[b"upstream error"], Start::Other),
            (&[], Start::Nothing),
            (&[b"  \n", b""], Start::Nothing),
        ];
        for (bytes, expected) in cases {
            let (start, rest) = peeked(pieces(bytes)).await.unwrap();
            assert_eq!(start, expected, "{bytes:?}");
            assert_eq!(whole(rest, 100).await.unwrap().as_bytes(), bytes.concat());
        }
    }
}
