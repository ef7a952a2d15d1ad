//! `millrace logs`: prints the log files of a local cluster, together in the order of time.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use millrace_local_cluster::logs::{LogFollower, log_files};
use millrace_local_cluster::{ChildRole, folders};

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::invocation::command_hint;
use crate::json::{LogLineJson, print_json};
use crate::view::print_stdout_line;

/// The interval at which the files are read while they are followed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Processes of a cluster log at level info; MILLRACE_LOG=debug, set before the
cluster starts, changes it.

Examples:
  millrace logs
  millrace logs --role worker --lines 20
  millrace logs --role supervisor --follow";

/// The arguments of `millrace logs`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Only the processes of this role
    #[arg(long, value_enum)]
    role: Option<LogRole>,
    /// Print new lines until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Number of lines to print, of all processes together
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: usize,
    /// Print a JSON object for each line
    #[arg(long)]
    json: bool,
    /// Data folder of the cluster
    #[arg(long, env = "MILLRACE_DATA", value_name = "DIR", default_value_os_t = folders::default_data_folder())]
    data: PathBuf,
}

/// A role whose logs are printed.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogRole {
    Worker,
    Supervisor,
    Critic,
    Gateway,
    Nats,
}

impl From<LogRole> for ChildRole {
    fn from(role: LogRole) -> Self {
        match role {
            LogRole::Worker => Self::Worker,
            LogRole::Supervisor => Self::Supervisor,
            LogRole::Critic => Self::Critic,
            LogRole::Gateway => Self::Gateway,
            LogRole::Nats => Self::NatsServer,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct LogLine {
    process: String,
    text: String,
    /// When it was logged; for a line without a time, that of the line before it.
    at: Timestamp,
}

pub async fn run_command(arguments: Arguments) -> CommandResult {
    let Arguments { role, follow, lines: count, json, data } = arguments;
    let role = role.map(ChildRole::from);
    let folder = data.join("logs");
    let unreadable = || format!("can't read the logs in {}", folder.display());
    let files = match log_files(&data, role) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(CommandError::unusable_environment(anyhow!(
                "there are no logs in {}; a local cluster (`{}`) writes them there, processes elsewhere log to their \
                 standard error",
                folder.display(),
                command_hint("up")
            )));
        }
        files => files.with_context(unreadable)?,
    };
    let (mut lines, mut read) = (Vec::new(), BTreeMap::new());
    for file in files {
        let (texts, length) = file.last_lines(count).with_context(unreadable)?;
        lines.extend(dated_lines(&file.process, texts));
        read.insert(file.path, length);
    }
    lines.sort_by_key(|line| line.at);
    let skipped = lines.len().saturating_sub(count);
    lines[skipped..].iter().for_each(|line| print_log_line(line, json));
    if !follow {
        return Ok(CommandExit::Completed);
    }
    let mut follower = LogFollower::new(&data, role, read);
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let new = follower.new_lines().with_context(unreadable)?;
        let new = new.into_iter().flat_map(|(file, texts)| dated_lines(&file.process, texts));
        let mut new: Vec<LogLine> = new.collect();
        new.sort_by_key(|line| line.at);
        new.iter().for_each(|line| print_log_line(line, json));
    }
}

fn print_log_line(line: &LogLine, json: bool) {
    if json {
        let at = (line.at != Timestamp::MIN).then(|| line.at.into());
        return print_json(&LogLineJson { process: &line.process, at, text: &line.text });
    }
    print_stdout_line(&format!("{:12} {}", line.process, line.text));
}

/// Returns the lines of one process with their times.
fn dated_lines(process: &str, texts: Vec<String>) -> Vec<LogLine> {
    let mut at = Timestamp::MIN;
    let dated = texts.into_iter().map(|text| {
        at = parse_time(&text).unwrap_or(at);
        LogLine { process: process.to_owned(), text, at }
    });
    dated.collect()
}

/// Returns the time of a line: at its beginning in our own logs, after the process id in those of the server, in a field
/// of JSON logs.
fn parse_time(line: &str) -> Option<Timestamp> {
    if line.starts_with('{') {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        return line["timestamp"].as_str()?.parse().ok();
    }
    let first = line.split_whitespace().next()?;
    if let Ok(at) = first.parse() {
        return Some(at);
    }
    // [4711] 2026/11/22 22:57:30.123456 [INF] …, in local time
    let (_, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let mut words = rest.split_whitespace();
    let text = format!("{}T{}", words.next()?.replace('/', "-"), words.next()?);
    let local: DateTime = text.parse().ok()?;
    local.to_zoned(TimeZone::system()).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_kinds_of_logs_are_read() {
        let at: Timestamp = "2026-11-22T22:57:30.5Z".parse().unwrap();
        assert_eq!(parse_time("2026-11-22T22:57:30.5Z  INFO ready id=w"), Some(at));
        assert_eq!(parse_time(r#"{"timestamp":"2026-11-22T22:57:30.5Z","level":"INFO"}"#), Some(at));
        let local = at.to_zoned(TimeZone::system()).strftime("%Y/%m/%d %H:%M:%S%.f").to_string();
        assert_eq!(parse_time(&format!("[4711] {local} [INF] Server is ready")), Some(at));
        for text in ["", "thread 'main' panicked", "[4711] no time", "{not json"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn a_line_without_a_time_stays_behind_the_line_before_it() {
        let texts =
            ["2026-11-22T22:57:30Z  INFO ready", "note: a backtrace", "2026-11-22T22:57:31Z  INFO more"];
        let lines = dated_lines("worker-1", texts.map(str::to_owned).to_vec());
        assert_eq!(lines[1].at, lines[0].at);
        assert!(lines[2].at > lines[1].at);
    }
}
