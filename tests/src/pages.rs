//! The commands, code blocks and links of the Markdown pages in the repository. Tests compare them with the programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::millrace_program;

/// The folder of the repository.
#[must_use]
pub fn repository_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are in the repository").to_owned()
}

/// The code spans of a page, and the command lines of its code blocks (those that begin with `$ `).
#[must_use]
pub fn extract_code(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 1 {
            let joined = part.replace("\\\n", " ");
            all.extend(joined.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned));
        } else {
            all.extend(part.split('`').skip(1).step_by(2).map(|code| code.replace('\n', " ")));
        }
    }
    all
}

/// The first code block of a language.
#[must_use]
pub fn first_code_block(page: &str, language: &str) -> Option<String> {
    let (_, rest) = page.split_once(&format!("```{language}\n"))?;
    rest.split("```").next().map(str::to_owned)
}

/// The calls of `millrace` in a line: the subcommand and its options.
#[must_use]
pub fn parse_millrace_calls(line: &str) -> Vec<(&str, Vec<&str>)> {
    let line = line.split_once(" # ").map_or(line, |(code, _)| code);
    let words: Vec<&str> =
        line.split([' ', '(', ')', '"', '[', ']']).filter(|word| !word.is_empty()).collect();
    let is_name = |word: &&&str| word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-');
    let is_call = |at: &usize| match words[*at] {
        // `-n millrace` is a namespace.
        "millrace" => *at == 0 || !words[at - 1].starts_with(['-', 'n']),
        // `cargo run -- run` calls the program, too.
        "--" => words.starts_with(&["cargo", "run"]) || words.contains(&"cargo"),
        _ => false,
    };
    let starts = (0..words.len()).filter(is_call);
    let call = |at: usize| {
        let command = words.get(at + 1).filter(is_name).filter(|word| !word.starts_with('-'))?;
        let own = words[at + 2..].iter().take_while(|word| !["millrace", "|", "&&"].contains(word));
        Some((*command, own.filter(|word| word.starts_with("--")).copied().collect()))
    };
    starts.filter_map(call).collect()
}

/// The targets of the links of a page.
#[must_use]
pub fn link_targets(page: &str) -> Vec<&str> {
    page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

/// The anchors of a page's headings, as renderers of Markdown make them.
#[must_use]
pub fn heading_anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = text.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        letters.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// The help texts of the program's subcommands, read once per command.
#[derive(Debug, Default)]
pub struct HelpTexts(BTreeMap<String, Option<String>>);

impl HelpTexts {
    /// Returns the help text of a subcommand; `None` if there is no such subcommand.
    ///
    /// # Panics
    /// The program does not start.
    pub fn help_of_command(&mut self, command: &str) -> Option<&str> {
        let text = self.0.entry(command.to_owned()).or_insert_with(|| {
            let done = Command::new(millrace_program())
                .args([command, "--help"])
                .output()
                .expect("the program starts");
            done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
        });
        text.as_deref()
    }
}
