//! Logging: short lines on standard error, filtered by `MILLRACE_LOG` (the syntax of `RUST_LOG`), as JSON if
//! `MILLRACE_LOG_FORMAT=json` is set. The last warning or error is kept for the heartbeat of the process.
//!
//! Limits log lines about messages that anybody with credentials can cause: one line per kind and minute, with the
//! number of events since the line before. Otherwise the log would be a second way to fill a disk.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use millrace_protocol::registry::{MAX_PROBLEM, ProblemReport};
use millrace_protocol::safe_text::{self, terminal_text};
use millrace_protocol::secrets::redact_text;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt as log_format};

/// Filters for libraries whose spans and messages are noise here.
const LIBRARY_FILTER: &str = "ractor=warn,async_nats=warn";

static LAST_PROBLEM: Mutex<Option<ProblemReport>> = Mutex::new(None);

/// Checks a filter, such as `info,millrace_worker=debug`.
pub fn validate_log_filter(filter: &str) -> Result<(), String> {
    EnvFilter::try_new(filter).map(drop).map_err(|error| error.to_string())
}

/// Starts logging. `default` is the filter if `MILLRACE_LOG` is not set, such as "info".
pub fn init_logging(default: &str) {
    let filter = std::env::var("MILLRACE_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = filter.unwrap_or_else(|| default.to_owned());
    let filter = format!("{LIBRARY_FILTER},{filter}");
    let filter = EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        let text =
            format!("millrace: MILLRACE_LOG={filter:?} is not a valid filter ({error}); using {default:?}");
        eprintln!("{}", terminal_text(&text));
        EnvFilter::new(default)
    });
    let is_json = std::env::var("MILLRACE_LOG_FORMAT").is_ok_and(|format| format == "json");
    let has_colours = !is_json && std::io::stderr().is_terminal();
    let writer = move || LogWriter { output: std::io::stderr(), is_json, has_colours };
    let lines = log_format::layer().with_writer(writer).with_ansi(has_colours);
    let lines = if is_json { lines.json().boxed() } else { lines.with_target(false).boxed() };
    let subscriber = tracing_subscriber::registry().with(filter).with(lines).with(ProblemLayer);
    // A second call, as in tests that share a process, has no effect.
    let _ = subscriber.try_init();
}

/// Returns the last warning or error that this process logged.
#[must_use]
pub fn last_problem() -> Option<ProblemReport> {
    LAST_PROBLEM.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Writes lines of the log without the unsafe characters of the texts in them.
struct LogWriter<W> {
    output: W,
    is_json: bool,
    /// `true` if lines contain colour codes, which are kept.
    has_colours: bool,
}

impl<W: std::io::Write> std::io::Write for LogWriter<W> {
    /// Writes a line; the layer passes whole lines.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        // Libraries log URLs and answers, too.
        let text = redact_text(&text);
        let safe = if self.is_json {
            safe_text::escape_json(&text)
        } else if self.has_colours {
            text.split_inclusive('m').map(keep_colour_code).collect()
        } else {
            terminal_text(&text)
        };
        self.output.write_all(safe.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

/// Returns a part of a line that may end with a colour code, such as `ESC [ 31 m`, safe but for this code.
fn keep_colour_code(part: &str) -> String {
    if let Some((before, code)) = part.rsplit_once("\u{1b}[")
        && let Some(numbers) = code.strip_suffix('m')
        && numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';')
    {
        return format!("{}\u{1b}[{code}", terminal_text(before));
    }
    terminal_text(part)
}

/// Keeps the last warning or error.
struct ProblemLayer;

impl<S: Subscriber> Layer<S> for ProblemLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO | Level::DEBUG | Level::TRACE => return,
        };
        let mut line = ProblemLine::default();
        event.record(&mut line);
        let message = line.finish();
        let problem = ProblemReport { at: Timestamp::now(), level: level.to_owned(), message };
        *LAST_PROBLEM.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    }
}

/// The message of an event and its fields, as in a line of the log.
#[derive(Default)]
struct ProblemLine {
    message: String,
    fields: String,
}

impl ProblemLine {
    fn finish(self) -> String {
        redact_text(&(self.message + &self.fields)).chars().take(MAX_PROBLEM).collect()
    }
}

impl Visit for ProblemLine {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
        written.expect("writing to a String can't fail");
    }
}

/// The minimum time between two lines of the same kind.
const INTERVAL: Duration = Duration::from_secs(60);

/// A limit on the log lines of each kind of event.
#[derive(Debug)]
pub struct LogLimit(Mutex<BTreeMap<&'static str, KindState>>);

/// The events of one kind.
#[derive(Debug)]
struct KindState {
    logged: Instant,
    /// The events since the last line.
    suppressed: u64,
}

impl LogLimit {
    /// Creates a limit; every kind may be logged at once.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Counts an event of a kind. Returns the number of events since the last line, this one included, if a line may
    /// be logged now.
    pub fn count_event(&self, kind: &'static str) -> Option<u64> {
        self.count_event_at(kind, Instant::now())
    }

    fn count_event_at(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = kinds.get_mut(kind) else {
            kinds.insert(kind, KindState { logged: now, suppressed: 0 });
            return Some(1);
        };
        state.suppressed += 1;
        if now.duration_since(state.logged) < INTERVAL {
            return None;
        }
        state.logged = now;
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_no_control_characters_of_others() {
        use std::io::Write as _;

        let hostile = "a \u{1b}]0;x\u{7}\u{9b}31m \u{202e}b \u{1b}[2J\n";
        let write = |text: &str, is_json, has_colours| {
            let mut output = Vec::new();
            LogWriter { output: &mut output, is_json, has_colours }.write_all(text.as_bytes()).unwrap();
            String::from_utf8(output).unwrap()
        };
        assert_eq!(write(hostile, false, false), "a �]0;x��31m �b �[2J\n");
        let coloured = format!("\u{1b}[31mERROR\u{1b}[0m {hostile}");
        assert_eq!(write(&coloured, false, true), "\u{1b}[31mERROR\u{1b}[0m a �]0;x��31m �b �[2J\n");
        assert_eq!(write("{\"a\":\"\u{9b}\"}\n", true, false), "{\"a\":\"\\u009b\"}\n");
    }

    #[test]
    fn last_warning_or_error_is_kept_with_its_fields() {
        let subscriber = tracing_subscriber::registry().with(ProblemLayer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(run = "r-1", fault = %"no answer", "heartbeat failed");
            tracing::info!("nothing is wrong");
        });
        let problem = last_problem().unwrap();
        assert_eq!(problem.level, "warn");
        assert_eq!(problem.message, "heartbeat failed run=\"r-1\" fault=no answer");
        let subscriber = tracing_subscriber::registry().with(ProblemLayer);
        tracing::subscriber::with_default(subscriber, || tracing::error!("{}", "x".repeat(9_000)));
        let problem = last_problem().unwrap();
        assert_eq!((problem.level.as_str(), problem.message.len()), ("error", MAX_PROBLEM));
    }

    #[test]
    fn each_kind_is_logged_once_per_minute_with_its_count() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.count_event_at("forged", start), Some(1));
        for second in 1..60 {
            assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(second)), None);
        }
        assert_eq!(
            limit.count_event_at("unreadable", start + Duration::from_secs(30)),
            Some(1),
            "another kind"
        );
        assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(60)), Some(60));
        assert_eq!(limit.count_event_at("forged", start + Duration::from_secs(61)), None);
    }
}
