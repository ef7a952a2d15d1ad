//! `millrace trace`: shows what a run did as spans, with their durations, tokens and cost, or writes them in the OpenTelemetry
//! protocol.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use millrace_client::find_run;
use millrace_runtime::Bus;
use millrace_runtime::clock::parse_duration;
use millrace_traces::otlp::{export_request, to_json};
use millrace_traces::read::trace_run;
use millrace_traces::{Span, TraceSettings, render_traces};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::print_json;
use crate::target::{ClusterTarget, refuse_damaged_log};
use crate::view::print_stdout_line;

const EXAMPLES: &str = "\
Traces are derived from the log of the run, so that any run has one, at any
time, always with the same ids. Prompts, replies, arguments and results are
left out unless MILLRACE_TRACE_CONTENT=1.

Examples:
  millrace trace latest
  millrace trace latest --otlp trace.json
  millrace trace latest --otlp - | curl -s http://127.0.0.1:4318/v1/traces \\
      -H 'Content-Type: application/json' --data-binary @-";

/// The arguments of `millrace trace`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TraceArguments {
    /// Run id, a unique prefix of it, or `latest`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    run: String,
    /// Write the spans as OTLP/JSON to this file, - for standard output
    #[arg(long, value_name = "FILE|-")]
    otlp: Option<PathBuf>,
    /// Begin the run's next trace after this long without any work
    #[arg(long, env = "MILLRACE_TRACE_SPLIT", value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    trace_split: Duration,
    #[command(flatten, next_help_heading = "Cluster")]
    target: ClusterTarget,
}

pub async fn run_command(arguments: TraceArguments) -> CommandResult {
    arguments.target.read(async |bus| show_trace(bus, &arguments).await).await
}

async fn show_trace(bus: &Bus, arguments: &TraceArguments) -> CommandResult {
    let run = find_run(bus, &arguments.run).await?;
    let settings = TraceSettings::from_environment(arguments.trace_split);
    let spans = trace_run(bus, &run, settings.options.clone()).await?;
    if spans.is_empty() {
        refuse_damaged_log(bus, &run).await?;
        note!("run {run} has no spans yet: it has not started");
    }
    match &arguments.otlp {
        Some(file) => write_otlp(file, &spans, &settings)?,
        None => render_traces(&spans, true).iter().for_each(|line| print_stdout_line(line)),
    }
    Ok(CommandExit::Completed)
}

fn write_otlp(file: &Path, spans: &[Span], settings: &TraceSettings) -> Result<(), CommandError> {
    if file == Path::new("-") {
        print_json(&export_request(spans, &settings.resource));
        return Ok(());
    }
    let json = to_json(spans, &settings.resource);
    std::fs::write(file, format!("{json}\n"))
        .with_context(|| format!("can't write the trace to {}", file.display()))
        .map_err(CommandError::unusable_environment)?;
    note!("wrote {} spans to {}", spans.len(), file.display());
    Ok(())
}
