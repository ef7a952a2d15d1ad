//! Spans in the OpenTelemetry protocol: protobuf for receivers, JSON for files.

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::secrets::decode_percent;
use prost::Message;

use self::messages::{
    AnyValue, ArrayValue, ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    InstrumentationScope, KeyValue, Link, Resource, ResourceSpans, ScopeSpans, Span as OtlpSpan,
    SpanKind as OtlpSpanKind, Status, StatusCode, Value,
};
use crate::names::own;
use crate::span::{AttributeValue, Span, SpanKind, SpanLink, SpanStatus};

pub mod messages;

/// The name of the service, unless the user chooses another.
pub const DEFAULT_SERVICE: &str = "millrace";

/// The source of spans: its attributes, `service.name` among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceResource {
    pub attributes: Vec<(String, String)>,
}

impl TraceResource {
    /// Creates the resource from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` (`NAME=VALUE,…`, percent-encoded).
    #[must_use]
    pub fn from_settings(service: Option<&str>, attributes: Option<&str>) -> Self {
        let mut all: Vec<(String, String)> = parse_key_values(attributes.unwrap_or_default());
        if let Some(service) = service.filter(|service| !service.is_empty()) {
            all.retain(|(name, _)| name != "service.name");
            all.push(("service.name".into(), service.into()));
        } else if !all.iter().any(|(name, _)| name == "service.name") {
            all.push(("service.name".into(), DEFAULT_SERVICE.into()));
        }
        if !all.iter().any(|(name, _)| name == "service.version") {
            all.push(("service.version".into(), env!("CARGO_PKG_VERSION").into()));
        }
        Self { attributes: all }
    }
}

/// Parses a list `NAME=VALUE,NAME=VALUE` whose values are percent-encoded, as the variables of OpenTelemetry have it. Entries
/// without `=` are left out.
#[must_use]
pub fn parse_key_values(text: &str) -> Vec<(String, String)> {
    let entries = text.split(',').filter_map(|entry| entry.split_once('='));
    let entries = entries.map(|(name, value)| (name.trim().to_owned(), decode_percent(value.trim())));
    entries.filter(|(name, _)| !name.is_empty()).collect()
}

#[must_use]
pub fn export_request(spans: &[Span], resource: &TraceResource) -> ExportTraceServiceRequest {
    let attributes = resource.attributes.iter();
    let attributes =
        attributes.map(|(name, value)| key_value(name, Value::StringValue(value.clone()))).collect();
    let scope = InstrumentationScope { name: "millrace".into(), version: env!("CARGO_PKG_VERSION").into() };
    let spans = spans.iter().map(otlp_span).collect();
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        }],
    }
}

#[must_use]
pub fn to_protobuf(spans: &[Span], resource: &TraceResource) -> Vec<u8> {
    export_request(spans, resource).encode_to_vec()
}

#[must_use]
pub fn to_json(spans: &[Span], resource: &TraceResource) -> String {
    serde_json::to_string(&export_request(spans, resource)).expect("the messages of OTLP serialise to JSON")
}

/// A span as a test compares it: the ids of its trace and of itself in hexadecimal, its name, and everything as text.
pub type DecodedSpan = ((String, String), String, String);

/// Returns the spans of a request in protobuf: their traces and ids in hexadecimal, their names, and everything as a text to compare.
pub fn decode_spans(request: &[u8]) -> Result<Vec<DecodedSpan>, prost::DecodeError> {
    let request = ExportTraceServiceRequest::decode(request)?;
    let scopes = request.resource_spans.into_iter().flat_map(|source| source.scope_spans);
    let spans = scopes.flat_map(|scope| scope.spans).map(|span| {
        let id = (HEXLOWER.encode(&span.trace_id), HEXLOWER.encode(&span.span_id));
        (id, span.name.clone(), format!("{span:?}"))
    });
    Ok(spans.collect())
}

/// Returns the reason why a receiver rejects some of the spans that it has accepted as a whole, if its response has one.
#[must_use]
pub fn read_rejection(response: &[u8], is_json: bool) -> Option<String> {
    let response = match is_json {
        true => parse_foreign_json(response).unwrap_or_default(),
        false => ExportTraceServiceResponse::decode(response).unwrap_or_default(),
    };
    let ExportTracePartialSuccess { rejected_spans, error_message } = response.partial_success?;
    (rejected_spans > 0).then(|| format!("{rejected_spans} rejected: {error_message}"))
}

fn otlp_span(span: &Span) -> OtlpSpan {
    OtlpSpan {
        trace_id: span.context.trace.0.to_vec(),
        span_id: span.context.span.0.to_vec(),
        parent_span_id: span.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Internal => OtlpSpanKind::Internal,
            SpanKind::Client => OtlpSpanKind::Client,
        } as i32,
        start_time_unix_nano: nanoseconds(span.start),
        end_time_unix_nano: nanoseconds(span.end),
        attributes: span.attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
        links: span.links.iter().map(otlp_link).collect(),
        status: match &span.status {
            SpanStatus::Unset => None,
            SpanStatus::Error(message) => {
                Some(Status { message: message.clone(), code: StatusCode::Error as i32 })
            }
        },
    }
}

fn otlp_link(link: &SpanLink) -> Link {
    Link {
        trace_id: link.context.trace.0.to_vec(),
        span_id: link.context.span.0.to_vec(),
        attributes: vec![key_value(own::LINK, Value::StringValue(link.relation.name().into()))],
    }
}

fn attribute(name: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => Value::StringValue(text.clone()),
        AttributeValue::Integer(number) => Value::IntValue(*number),
        AttributeValue::Decimal(number) => Value::DoubleValue(*number),
        AttributeValue::Flag(flag) => Value::BoolValue(*flag),
        AttributeValue::Texts(texts) => {
            let values = texts.iter().map(|text| AnyValue { value: Some(Value::StringValue(text.clone())) });
            Value::ArrayValue(ArrayValue { values: values.collect() })
        }
    };
    key_value(name, value)
}

fn key_value(name: &str, value: Value) -> KeyValue {
    KeyValue { key: name.into(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanoseconds(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_comes_from_the_variables_of_opentelemetry() {
        let text = |service, attributes| {
            let resource = TraceResource::from_settings(service, attributes);
            resource.attributes.iter().map(|(name, value)| format!("{name}={value} ")).collect::<String>()
        };
        let version = format!("service.version={} ", env!("CARGO_PKG_VERSION"));
        assert_eq!(text(None, None), format!("service.name=millrace {version}"));
        assert_eq!(
            text(Some("agents"), Some("service.name=other,team=a%20b,broken")),
            format!("team=a b service.name=agents {version}")
        );
        assert_eq!(
            text(Some(""), Some("service.name=x,service.version=2")),
            "service.name=x service.version=2 "
        );
        assert_eq!(decode_percent("100%,%4"), "100%,%4");
    }
}
