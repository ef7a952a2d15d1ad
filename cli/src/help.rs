//! The text of `millrace --help`: the commands in groups, instead of one long list.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use millrace_protocol::schema::find_nearest_name;
use millrace_runtime::program;

use crate::exit::CommandExit;
use crate::invocation::{self, Invocation};
use crate::json::{ErrorLine, print_json};

/// All visible commands, by group.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Run an objective on this machine", &["run", "resume", "eval", "verify"]),
    (
        "Work with a cluster",
        &[
            "up", "down", "submit", "watch", "list", "sessions", "show", "files", "memories", "delete",
            "prune",
        ],
    ),
    ("Control a run", &["pause", "cancel", "retry", "edit", "add", "message", "signal"]),
    ("Answer questions of runs", &["inbox", "answer"]),
    (
        "Set up and check",
        &["doctor", "config", "completions", "man", "schema", "limits", "token", "webhook", "nats-config"],
    ),
    (
        "Operate",
        &[
            "status",
            "workers",
            "capabilities",
            "logs",
            "backup",
            "restore",
            "retention",
            "replay",
            "trace",
            "audit",
            "metrics",
            "serve",
            "mcp",
            "acp",
            "bench",
        ],
    ),
    ("Processes of a cluster", &["supervisor", "worker", "critic"]),
];

const PROFILE_ARGUMENT: &str = "profile";

/// Text after the options.
const EXAMPLES: &str = "\
Examples:
  millrace doctor
  millrace run \"What do these licences require?\" --docs licences/
  millrace resume

`millrace COMMAND --help` describes a command.";

/// Parses the arguments of this process, like [`clap::Parser::parse`], with commands grouped in the help. A data folder that
/// is given overrules a NATS server that the environment names.
pub fn parse_command_line<C: CommandFactory + FromArgMatches>() -> C {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let has_nats_variable = std::env::var_os("MILLRACE_NATS_URL").is_some_and(|url| !url.is_empty());
    let command = program::ignore_empty_variables(add_grouped_help(C::command()));
    let parsed = parse_arguments(command, &arguments).and_then(|mut matches| {
        Invocation::read(&matches, has_nats_variable).set();
        C::from_arg_matches_mut(&mut matches)
    });
    parsed.unwrap_or_else(|error| exit_with_usage_error(&error))
}

fn parse_arguments(command: Command, arguments: &[OsString]) -> Result<ArgMatches, clap::Error> {
    match command.clone().try_get_matches_from(arguments) {
        Ok(matches) if has_data_and_nats_variable(&matches) => {
            ignore_variables(command, &|id| id == "nats").try_get_matches_from(arguments)
        }
        Ok(matches) => Ok(matches),
        // The help text names the variables.
        Err(help) if !help.use_stderr() => Err(help),
        Err(error) => {
            // Usage lines show an option that a variable sets as if it were required.
            let without = ignore_variables(command.clone(), &|_| true).try_get_matches_from(arguments);
            let error = without.err().filter(|other| other.kind() == error.kind()).unwrap_or(error);
            Err(suggest_command(error, &command))
        }
    }
}

/// `true` if the data folder is typed and the NATS server comes from the environment.
fn has_data_and_nats_variable(matches: &ArgMatches) -> bool {
    let source = |name: &str| {
        matches.try_contains_id(name).unwrap_or_default().then(|| matches.value_source(name)).flatten()
    };
    let is_here =
        source("data") == Some(ValueSource::CommandLine) && source("nats") == Some(ValueSource::EnvVariable);
    is_here || matches.subcommand().is_some_and(|(_, inner)| has_data_and_nats_variable(inner))
}

/// Returns the command without the environment variables of the arguments that `which` selects.
fn ignore_variables(command: Command, which: &dyn Fn(&str) -> bool) -> Command {
    command
        .mut_args(
            |argument| {
                if which(argument.get_id().as_str()) { argument.env(Resettable::Reset) } else { argument }
            },
        )
        .mut_subcommands(|inner| ignore_variables(inner, which))
}

/// Adds the command that was probably meant to an error about an unknown one.
fn suggest_command(mut error: clap::Error, command: &Command) -> clap::Error {
    let has_suggestion = error.get(ContextKind::SuggestedSubcommand).is_some();
    if let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand)
        && !has_suggestion
    {
        let names = command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
        if let Some(near) = find_nearest_name(unknown, names) {
            let near = ContextValue::Strings(vec![near.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, near);
        }
    }
    error
}

/// Prints an error of the command line, as JSON if the command line asks for it, and ends the process.
fn exit_with_usage_error(error: &clap::Error) -> ! {
    if error.use_stderr() && invocation::asks_for_json() {
        let text = error.render().to_string();
        let message = text.trim().trim_start_matches("error: ").to_owned();
        print_json(&ErrorLine::new(CommandExit::Refused, message));
        std::process::exit(error.exit_code());
    }
    program::exit_with_usage_error(error)
}

/// Returns the name of the subcommand and the value of `--profile` in the arguments of this process, before the settings
/// are known; `None` without a subcommand or with `--help`.
pub fn find_command_and_profile<C: CommandFactory>() -> Option<(String, Option<String>)> {
    let command = program::ignore_empty_variables(C::command()).ignore_errors(true);
    let matches = command.try_get_matches().ok()?;
    let profile = matches.try_get_one::<String>(PROFILE_ARGUMENT).ok().flatten().cloned();
    Some((matches.subcommand_name()?.to_owned(), profile))
}

fn add_grouped_help(command: clap::Command) -> clap::Command {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("{title}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:<12}  {}\n", about.map(ToString::to_string).unwrap_or_default());
        }
        text.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template).after_help(EXAMPLES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::commands::man::name_home_folder;

    fn error_of(line: &[&str]) -> String {
        let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
        parse_arguments(add_grouped_help(crate::Cli::command()), &arguments).unwrap_err().to_string()
    }

    fn append_help(text: &mut String, command: &mut Command, path: &str) {
        let help = command.render_long_help();
        text.push_str(&format!("\n$ {path} --help\n{help}"));
        let visible = command.get_subcommands_mut().filter(|inner| !inner.is_hide_set());
        for inner in visible.filter(|inner| inner.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name());
            append_help(text, inner, &path);
        }
    }

    /// `UPDATE_GOLDEN=1` rewrites `help.txt`.
    #[test]
    fn help_of_all_commands_is_as_reviewed() {
        let home = std::env::home_dir();
        let command = ignore_variables(add_grouped_help(crate::Cli::command()), &|_| true);
        let mut command = name_home_folder(command, home.as_deref());
        command.build();
        let mut text = String::from("Generated: the help of all commands.\n");
        append_help(&mut text, &mut command, "millrace");
        let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        crate::json::tests::assert_golden("src/help.txt", &text);
    }

    #[test]
    fn a_misspelt_command_gets_a_suggestion() {
        for (word, meant) in [("rnu", "run"), ("staus", "status"), ("lst", "list")] {
            let error = error_of(&["millrace", word]);
            assert!(error.contains(&format!("'{meant}'")), "{error}");
        }
        assert!(!error_of(&["millrace", "zebra"]).contains("similar"));
    }

    #[test]
    fn usage_lines_require_only_what_is_required() {
        let error = error_of(&["millrace", "limits", "set", "openai:x"]);
        assert!(error.contains("Usage: millrace limits set [OPTIONS] <MODEL>"), "{error}");
        let error = error_of(&["millrace", "message", "latest"]);
        assert!(!error.contains("--data"), "{error}");
    }

    #[test]
    fn every_command_is_in_one_group_and_fits_80_columns() {
        let command = crate::Cli::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let visible: BTreeSet<&str> = visible.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), visible);
        assert_eq!(grouped.len(), visible.len(), "no command is in two groups");
        let help = add_grouped_help(command).render_help().to_string();
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.len() <= 1, "{long:#?}");
    }
}
