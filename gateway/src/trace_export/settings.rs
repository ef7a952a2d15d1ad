//! The settings of the export, from the standard variables of OpenTelemetry.

use std::time::Duration;

use millrace_protocol::secrets::{SecretRedactor, remember_secrets};
use millrace_traces::otlp::parse_key_values;
use millrace_traces::{DEFAULT_SPLIT, TraceSettings};
use url::Url;

/// The path of traces below `OTEL_EXPORTER_OTLP_ENDPOINT`.
const TRACES_PATH: &str = "v1/traces";
/// The timeout of a request if the user chooses none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct ExportSettings {
    pub url: Url,
    /// The encoding of requests.
    pub protocol: OtlpProtocol,
    /// Headers of requests, with keys of the receiver.
    pub headers: Vec<(String, String)>,
    pub timeout: Duration,
    pub is_compressed: bool,
    /// A file with the certificates of authorities that the receiver's certificate may be from.
    pub certificate: Option<String>,
    /// The content of spans, and their resource.
    pub traces: TraceSettings,
}

/// The encoding of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    Protobuf,
    Json,
}

/// A variable has a value that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct InvalidExportSettings {
    variable: String,
    problem: String,
}

impl ExportSettings {
    /// Reads the variables of this process; `None` if traces are not exported.
    pub fn from_environment() -> Result<Option<Self>, InvalidExportSettings> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidExportSettings> {
        let text = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        // The variable of traces has precedence over that of all signals.
        let find = |name: &str| {
            let own = format!("OTEL_EXPORTER_OTLP_TRACES_{name}");
            let common = format!("OTEL_EXPORTER_OTLP_{name}");
            [own, common].into_iter().find_map(|name| text(&name).map(|value| (name, value)))
        };
        let is_off = text("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || text("OTEL_TRACES_EXPORTER").is_some_and(|value| value.trim() == "none");
        let Some((name, endpoint)) = find("ENDPOINT").filter(|_| !is_off) else { return Ok(None) };
        let url = parse_endpoint(&endpoint, name.contains("TRACES"));
        let url = url.map_err(|problem| InvalidExportSettings { variable: name, problem })?;
        let protocol = match find("PROTOCOL") {
            None => OtlpProtocol::Protobuf,
            Some((name, value)) => {
                parse_protocol(&value).map_err(|problem| InvalidExportSettings { variable: name, problem })?
            }
        };
        let timeout = match find("TIMEOUT") {
            None => DEFAULT_TIMEOUT,
            Some((name, value)) => match value.trim().parse() {
                Ok(milliseconds) => Duration::from_millis(milliseconds),
                Err(_) => {
                    let problem = format!("{value:?} is not a number of milliseconds, such as 10000");
                    return Err(InvalidExportSettings { variable: name, problem });
                }
            },
        };
        let is_compressed = match find("COMPRESSION") {
            None => false,
            Some((name, value)) => match value.trim() {
                "gzip" => true,
                "none" => false,
                other => {
                    let problem = format!("{other:?} is not supported; use gzip or none");
                    return Err(InvalidExportSettings { variable: name, problem });
                }
            },
        };
        let headers = find("HEADERS").map(|(_, text)| parse_key_values(&text)).unwrap_or_default();
        let mut secrets = SecretRedactor::default();
        headers.iter().for_each(|(name, value)| secrets.add_header(name, value));
        secrets.add_url(&endpoint);
        remember_secrets(&secrets);
        Ok(Some(Self {
            url,
            protocol,
            headers,
            timeout,
            is_compressed,
            certificate: find("CERTIFICATE").map(|(_, file)| file),
            traces: TraceSettings::from_variables(parse_split(&text)?, &variable),
        }))
    }
}

#[cfg(test)]
impl ExportSettings {
    /// The settings of a receiver with this base URL, with the defaults.
    pub fn of_receiver(url: &str) -> Option<Self> {
        let endpoint = |name: &str| (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| url.to_owned());
        Self::from_variables(endpoint).ok().flatten()
    }
}

fn parse_split(text: &impl Fn(&str) -> Option<String>) -> Result<Duration, InvalidExportSettings> {
    let name = "MILLRACE_TRACE_SPLIT";
    match text(name) {
        None => Ok(DEFAULT_SPLIT),
        Some(value) => millrace_runtime::clock::parse_duration(&value)
            .map_err(|problem| InvalidExportSettings { variable: name.into(), problem }),
    }
}

/// Parses the URL of a receiver. That of all signals is the base of the one for traces.
fn parse_endpoint(text: &str, is_for_traces: bool) -> Result<Url, String> {
    let wrong = || format!("{text:?} is not the URL of a receiver, such as http://127.0.0.1:4318");
    let mut url = Url::parse(text.trim()).map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong());
    }
    if !is_for_traces {
        let path = format!("{}/{TRACES_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(url)
}

fn parse_protocol(text: &str) -> Result<OtlpProtocol, String> {
    match text.trim() {
        "http/protobuf" => Ok(OtlpProtocol::Protobuf),
        "http/json" => Ok(OtlpProtocol::Json),
        "grpc" => {
            Err("grpc is not supported; use http/protobuf, which receivers usually serve on port 4318".into())
        }
        other => Err(format!("{other:?} is no protocol; use http/protobuf or http/json")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<ExportSettings>, InvalidExportSettings> {
        ExportSettings::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_is_exported_unless_a_receiver_is_named() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/");
        for variables in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
            &[endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
            &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert!(read(variables).unwrap().is_none(), "{variables:?}");
        }
    }

    #[test]
    fn variables_of_traces_have_precedence() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/otlp/");
        let settings = read(&[base]).unwrap().unwrap();
        assert_eq!(settings.url.as_str(), "http://localhost:4318/otlp/v1/traces");
        assert_eq!(settings.protocol, OtlpProtocol::Protobuf);
        let settings = read(&[
            base,
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example/custom"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20abc,x=1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("MILLRACE_TRACE_SPLIT", "2h"),
            ("MILLRACE_TRACE_CONTENT", "1"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!(settings.url.as_str(), "https://traces.example/custom");
        assert_eq!((settings.protocol, settings.timeout.as_millis()), (OtlpProtocol::Json, 2500));
        assert_eq!(settings.headers[0], ("Authorization".into(), "Basic abc".into()));
        assert!(settings.is_compressed && settings.traces.options.has_content);
        assert_eq!(settings.traces.options.split.as_secs(), 7_200);
    }

    #[test]
    fn mistakes_name_the_variable_and_a_way_out() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        for (variables, expected) in [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")][..], "is not the URL of a receiver"),
            (
                &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not",
            ),
            (&[endpoint, ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")], "is not a number of milliseconds"),
            (&[endpoint, ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd")], "use gzip or none"),
            (
                &[endpoint, ("MILLRACE_TRACE_SPLIT", "soon")],
                "MILLRACE_TRACE_SPLIT: \"soon\" is not a duration",
            ),
        ] {
            let error = read(variables).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
