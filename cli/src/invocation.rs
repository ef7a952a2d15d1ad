//! The invocation of this process: its output format, and the options by which another command reaches the same cluster.
//! Set once, when the command line is parsed; hints and errors read it.
//!
//! # Invariants
//!
//! - I84: A command that a hint prints can be copied: it carries the options that select the cluster.
//!   (`cli/tests/command_line.rs::hints_can_be_copied`, `cli/src/invocation.rs::hints_have_the_options_that_select_the_cluster`)
//! - I273: A hint to resume a run whose cluster stops with its command carries the options by which the next cluster provides the same
//!   capabilities. (`cli/tests/command_line.rs::resume_hint_of_a_run_with_a_capability_file_continues_it`)

use std::sync::OnceLock;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use millrace_runtime::nats::connection::without_passwords;

static INVOCATION: OnceLock<Invocation> = OnceLock::new();

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    is_json: bool,
    /// The options that select the cluster, as a user types them; empty if none are needed.
    cluster_options: String,
    /// The options that add capabilities to the workers of the cluster that `run` or `resume` starts.
    worker_options: String,
}

impl Invocation {
    /// Reads the parsed command line; `has_nats_variable` is `true` if the environment names a NATS server.
    pub fn read(matches: &ArgMatches, has_nats_variable: bool) -> Self {
        let (mut deepest, command) = (matches, crate::Cli::command());
        let mut command = &command;
        while let Some((name, inner)) = deepest.subcommand() {
            deepest = inner;
            command = command.find_subcommand(name).unwrap_or(command);
        }
        let is_typed = |name: &str| {
            deepest.try_contains_id(name).unwrap_or_default()
                && deepest.value_source(name) == Some(ValueSource::CommandLine)
        };
        let is_json = deepest.try_get_one::<bool>("json").ok().flatten().copied().unwrap_or_default();
        let data = || deepest.try_get_one::<std::path::PathBuf>("data").ok().flatten();
        let nats = || deepest.try_get_one::<String>("nats").ok().flatten();
        // A command for a local cluster only: other commands would use the server that the environment names.
        let is_local_only = !command.get_arguments().any(|argument| argument.get_id() == "nats");
        let profile = deepest.try_get_one::<String>("profile").ok().flatten().filter(|_| is_typed("profile"));
        let profile = profile.map(|name| format!(" --profile {}", quote(name))).unwrap_or_default();
        let cluster_options = match (nats(), data()) {
            (Some(url), _) if is_typed("nats") => format!(" --nats {}", quote(&without_passwords(url))),
            (None, Some(data)) if is_typed("data") || (is_local_only && has_nats_variable) => {
                format!(" --data {}", quote(&data.display().to_string()))
            }
            (_, _) => String::new(),
        };
        // The cluster of `run --open` keeps running, and a running one takes no more capabilities.
        let is_kept = deepest.try_get_one::<bool>("open").ok().flatten().copied().unwrap_or_default();
        let starts_workers = matches!(command.get_name(), "run" | "resume") && !is_kept;
        let files = deepest.try_get_many::<std::path::PathBuf>("capability").ok().flatten();
        let files = files.into_iter().flatten().filter(|_| starts_workers);
        let files = files.map(|file| format!(" --capability {}", quote(&file.display().to_string())));
        let web = (starts_workers && is_typed("web")).then(|| " --web".to_owned());
        let worker_options = files.chain(web).collect();
        Self { is_json, cluster_options: cluster_options + &profile, worker_options }
    }

    /// Makes this the invocation of the process. Only the first one counts.
    pub fn set(self) {
        // Unit tests run in one process and set none.
        let _ = INVOCATION.set(self);
    }
}

/// `true` if the command prints JSON.
pub fn is_json() -> bool {
    INVOCATION.get().map_or_else(asks_for_json, |invocation| invocation.is_json)
}

/// `true` if the arguments of this process ask for JSON, whether or not they are valid.
pub fn asks_for_json() -> bool {
    std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Returns a `millrace` command that a user can copy: with the options that select this cluster. `command` is the name of
/// the command and its arguments.
pub fn command_hint(command: &str) -> String {
    let Some(Invocation { cluster_options, worker_options, .. }) = INVOCATION.get() else {
        return format!("millrace {command}");
    };
    let workers = if command.starts_with("resume ") { worker_options } else { "" };
    format!("millrace {command}{workers}{cluster_options}")
}

/// Adds the options that select the cluster to the `millrace` commands in a text of a library, which does not know them.
pub fn complete_hints(text: &str) -> String {
    let options = INVOCATION.get().map_or("", |invocation| invocation.cluster_options.as_str());
    add_to_hints(text, options)
}

fn add_to_hints(text: &str, options: &str) -> String {
    let takes_options = |command: &str| {
        let name = command.split(' ').nth(1).filter(|_| command.starts_with("millrace "));
        let command = name.and_then(|name| crate::Cli::command().find_subcommand(name).cloned());
        let option = options.trim_start().trim_start_matches("--").split(' ').next().unwrap_or_default();
        command.is_some_and(|command| {
            command.get_arguments().any(|argument| argument.get_id() == option) || command.has_subcommands()
        })
    };
    let parts = text.split('`').enumerate().map(|(at, part)| {
        let is_hint = at % 2 == 1 && !options.is_empty() && !part.contains(options) && takes_options(part);
        if is_hint { format!("{part}{options}") } else { part.to_owned() }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// `true` if hints are about a cluster on another server, which `run` can't use.
pub fn is_remote() -> bool {
    let typed = INVOCATION.get().is_some_and(|invocation| invocation.cluster_options.starts_with(" --nats"));
    let has_data = || INVOCATION.get().is_some_and(|it| it.cluster_options.starts_with(" --data"));
    typed || (!has_data() && std::env::var_os("MILLRACE_NATS_URL").is_some_and(|url| !url.is_empty()))
}

/// Returns the command line of this process, as a user types it.
pub fn this_command() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quote(&argument.to_string_lossy()));
    std::iter::once("millrace".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Quotes an argument for a shell, if that is necessary.
pub fn quote(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_of(line: &[&str], has_nats_variable: bool) -> String {
        let matches = crate::Cli::command().get_matches_from(line);
        Invocation::read(&matches, has_nats_variable).cluster_options
    }

    #[test]
    fn hints_have_the_options_that_select_the_cluster() {
        assert_eq!(options_of(&["millrace", "watch", "latest", "--data", "/d"], false), " --data /d");
        assert_eq!(
            options_of(&["millrace", "limits", "clear", "openai:x", "--data", "a b's"], false),
            r" --data 'a b'\''s'"
        );
        let with_password = ["millrace", "list", "--nats", "nats://u:secret@h:1"];
        let shown = options_of(&with_password, false);
        assert!(shown.starts_with(" --nats ") && !shown.contains("secret"), "{shown}");
        assert_eq!(options_of(&["millrace", "run", "x", "--data", "/d"], false), " --data /d");
    }

    #[test]
    fn hints_to_resume_have_the_options_that_add_capabilities() {
        let options_of = |line: &[&str]| {
            Invocation::read(&crate::Cli::command().get_matches_from(line), false).worker_options
        };
        let run = ["millrace", "run", "x", "--capability", "a b.yaml", "--capability", "c.yaml", "--web"];
        assert_eq!(options_of(&run), " --capability 'a b.yaml' --capability c.yaml --web");
        assert_eq!(options_of(&["millrace", "resume", "--capability", "c.yaml"]), " --capability c.yaml");
        assert_eq!(options_of(&["millrace", "run", "x", "--open", "--capability", "c.yaml"]), "");
        assert_eq!(options_of(&["millrace", "retry", "r", "t", "--capability", "research"]), "");
    }

    #[test]
    fn hints_of_libraries_get_the_options_that_their_command_takes() {
        let text = "run r has not ended; `millrace cancel r`, `millrace token list` or `millrace list --data /d`; set `x`";
        assert_eq!(
            add_to_hints(text, " --data /d"),
            "run r has not ended; `millrace cancel r --data /d`, `millrace token list --data /d` or \
             `millrace list --data /d`; set `x`"
        );
        for other in ["`millrace nats-config --out DIR` renews it", "`millrace` alone", "no command"] {
            assert_eq!(add_to_hints(other, " --data /d"), other);
        }
        assert_eq!(add_to_hints("`millrace run X`", " --nats h"), "`millrace run X`");
    }

    /// The source files of the workspace, without tests.
    fn source_files(folder: &std::path::Path, into: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                source_files(&path, into);
            } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
                into.push(path);
            }
        }
    }

    /// The `millrace` commands in a source file: in texts between backticks, in hints, and in examples of the help.
    fn commands_in_source(source: &str) -> Vec<String> {
        let code = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        let mut joined = String::new();
        let mut is_continued = false;
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let line = if is_continued { line.trim_start() } else { line };
            is_continued = line.ends_with('\\');
            joined.push_str(line.trim_end_matches('\\'));
            if !is_continued {
                joined.push('\n');
            }
        }
        let joined = joined.replace("\\\"", "\u{1}");
        let quoted = |line: &str| -> Vec<String> {
            let parts = line.split('`').skip(1).step_by(2).filter(|part| part.starts_with("millrace "));
            let hints = line
                .split("command_hint(")
                .skip(1)
                .filter_map(|rest| rest.trim_start_matches("&format!(").strip_prefix('"')?.split('"').next());
            let examples = line.strip_prefix("  millrace ").map(|rest| rest.split("\"").next().unwrap());
            let hints = hints.chain(examples).map(|hint| format!("millrace {hint}"));
            parts.map(str::to_owned).chain(hints).collect()
        };
        joined.lines().flat_map(quoted).map(|command| command.replace('\u{1}', "\"")).collect()
    }

    /// Returns the arguments of a command as a user who copies it would give them, with values for its placeholders.
    fn arguments_of_hint(hint: &str) -> Vec<String> {
        let ends = ["  ", " && ", " | ", " > "];
        let command = ends.iter().fold(hint, |command, end| command.split(end).next().unwrap());
        let value = |word: &str| -> String {
            let known = [
                ("URL", "nats://h:1"),
                ("MODEL", "openai:m"),
                ("PROVIDER:MODEL", "openai:m"),
                ("planner=PROVIDER:MODEL", "planner=openai:m"),
                ("N", "5"),
                ("NAME=AMOUNT", "tokens=5"),
                ("{submit}", "submit"),
                ("{first}", "--approve"),
            ];
            let known = known.iter().find(|(name, _)| *name == word).map(|(_, value)| (*value).to_owned());
            known.unwrap_or_else(|| word.replace(['{', '}'], "x"))
        };
        let mut words = vec![String::new()];
        let mut quote_char = None;
        for c in command.trim_end_matches(['\\', ' ']).chars() {
            match (c, quote_char) {
                ('"' | '\'', None) => quote_char = Some(c),
                (c, Some(open)) if c == open => quote_char = None,
                (' ', None) => words.push(String::new()),
                (c, _) => words.last_mut().unwrap().push(c),
            }
        }
        words.iter().filter(|word| !word.is_empty()).map(|word| value(word)).collect()
    }

    #[test]
    fn every_command_in_a_text_of_the_program_is_one_that_it_takes() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        for folder in ["cli", "gateway", "worker", "critic", "supervisor", "protocol", "crates"] {
            source_files(&root.join(folder), &mut files);
        }
        let (mut tried, mut bad) = (0, Vec::new());
        for file in files {
            for hint in commands_in_source(&std::fs::read_to_string(&file).unwrap()) {
                let arguments = arguments_of_hint(&hint);
                if arguments.len() < 2 || arguments[1] == "COMMAND" || hint.contains('…') {
                    continue;
                }
                tried += 1;
                let error = crate::Cli::command().try_get_matches_from(&arguments).err();
                let is_mention = arguments.iter().all(|word| !word.starts_with('-')) && arguments.len() <= 3;
                use clap::error::ErrorKind as Kind;
                let is_fine = match error.as_ref().map(clap::Error::kind) {
                    None | Some(Kind::DisplayHelp) => true,
                    // The name of a command, not a command to copy.
                    Some(
                        Kind::MissingRequiredArgument
                        | Kind::MissingSubcommand
                        | Kind::DisplayHelpOnMissingArgumentOrSubcommand,
                    ) => is_mention,
                    Some(_) => false,
                };
                if !is_fine {
                    bad.push(format!("{}: `{hint}`: {}", file.display(), error.unwrap()));
                }
            }
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
        assert!(tried > 150, "only {tried} commands");
    }

    #[test]
    fn hints_of_local_commands_overrule_a_server_in_the_environment() {
        let shown = options_of(&["millrace", "run", "x"], true);
        assert!(shown.starts_with(" --data /"), "{shown}");
    }

    #[test]
    fn json_is_read_from_the_command_at_any_depth() {
        let is_json =
            |line: &[&str]| Invocation::read(&crate::Cli::command().get_matches_from(line), false).is_json;
        assert!(is_json(&["millrace", "list", "--json"]));
        assert!(is_json(&["millrace", "limits", "clear", "openai:x", "--json"]));
        assert!(!is_json(&["millrace", "list"]));
    }
}
