//! `millrace config`: shows the settings in effect, and where each is set. Secrets are hidden.

use std::collections::BTreeSet;

use clap::Args;
use millrace_runtime::nats::connection::without_passwords;
use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::{CommandError, CommandExit, CommandResult};
use crate::json::{print_json, tagged};
use crate::settings::{Setting, SettingOrigin, Settings, SettingsSources, VARIABLES, ValueKind, Variable};
use crate::view::{print_stderr_line, print_stdout_line};

const EXAMPLES: &str = "\
A setting is a variable of the environment, or a key of millrace.toml: MILLRACE_NATS_URL is nats_url.
The first of these places counts: the command line, the environment, .env in the working folder, the profile in
millrace.toml, the top of millrace.toml. millrace.toml is searched for in the working folder and those above it,
and in ~/.config/millrace.

Examples:
  millrace config
  millrace config --profile staging --json";

/// The arguments of `millrace config`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArguments {
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

/// The settings as JSON.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "config")]
#[schemars(transform = tagged("config"))]
pub struct SettingsDocument {
    /// The files that were read.
    files: Vec<String>,
    /// The profile in effect.
    profile: Option<String>,
    /// The settings.
    settings: Vec<SettingLine>,
}

/// A setting as it is shown.
#[derive(Debug, Serialize, JsonSchema)]
struct SettingLine {
    /// The name of the variable.
    name: String,
    /// `null` if it is secret or unset.
    value: Option<String>,
    /// `true` if the value is hidden.
    #[serde(rename = "secret")]
    is_secret: bool,
    /// The place that sets it.
    source: LineSource,
}

/// The origin of a setting.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum LineSource {
    Environment,
    File {
        file: String,
        line: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        profile: Option<String>,
    },
    Default,
}

/// Prints the settings.
pub fn run_command(arguments: &ConfigArguments, profile: Option<String>) -> CommandResult {
    let settings = SettingsSources::of_this_process(profile).and_then(|sources| sources.read_settings());
    let settings = settings.map_err(CommandError::invalid_input)?;
    settings.warnings.iter().for_each(|warning| print_stderr_line(warning));
    let document = describe_settings(&settings);
    if arguments.json {
        print_json(&document);
    } else {
        format_lines(&document).iter().for_each(|line| print_stdout_line(line));
    }
    Ok(CommandExit::Completed)
}

fn describe_settings(settings: &Settings) -> SettingsDocument {
    let own: BTreeSet<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    let others = settings.values.keys().map(String::as_str).filter(|name| !own.contains(name));
    let names = VARIABLES.iter().map(|variable| variable.name).chain(others);
    SettingsDocument {
        files: settings.files.iter().map(|file| file.display().to_string()).collect(),
        profile: settings.profile.clone(),
        settings: names.map(|name| describe_setting(name, settings.values.get(name))).collect(),
    }
}

fn describe_setting(name: &str, setting: Option<&Setting>) -> SettingLine {
    let variable = Variable::by_name(name);
    let is_secret = match variable {
        Some(variable) => variable.kind == ValueKind::Secret,
        // Addresses of providers are shown, their keys are not.
        None => !name.ends_with("_URL") && !name.ends_with("_HOST"),
    };
    let (value, source) = match setting {
        None => (variable.map(|variable| variable.default.to_owned()), LineSource::Default),
        Some(Setting { value, origin }) => {
            let value = value.to_string_lossy();
            let is_address = name.ends_with("_URL") || name.ends_with("_HOST");
            let shown = if is_address { without_passwords(&value) } else { value.into_owned() };
            (Some(shown), describe_origin(origin))
        }
    };
    let value = value.filter(|value| !is_secret && !value.is_empty());
    SettingLine { name: name.to_owned(), value, is_secret, source }
}

fn describe_origin(origin: &SettingOrigin) -> LineSource {
    match origin {
        SettingOrigin::Environment => LineSource::Environment,
        SettingOrigin::File { file, line, profile } => {
            LineSource::File { file: file.display().to_string(), line: *line, profile: profile.clone() }
        }
    }
}

fn format_lines(document: &SettingsDocument) -> Vec<String> {
    let files = if document.files.is_empty() { "none".to_owned() } else { document.files.join(", ") };
    let mut lines = vec![format!("files: {files}")];
    lines.extend(document.profile.iter().map(|profile| format!("profile: {profile}")));
    let width = document.settings.iter().map(|line| line.name.len()).max().unwrap_or_default();
    for line in &document.settings {
        let is_set = !matches!(line.source, LineSource::Default);
        let value = match &line.value {
            Some(value) => value.as_str(),
            None if line.is_secret && is_set => "(hidden)",
            None => "-",
        };
        let source = match &line.source {
            LineSource::Environment => "environment".to_owned(),
            LineSource::File { file, line, profile: None } => format!("{file}:{line}"),
            LineSource::File { file, line, profile: Some(profile) } => {
                format!("{file}:{line} [profile.{profile}]")
            }
            LineSource::Default => "default".to_owned(),
        };
        lines.push(format!("{:<width$}  {value}  ({source})", line.name));
    }
    lines
}
