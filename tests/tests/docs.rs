//! The Markdown pages of the repository agree with the programs: commands, options, links and examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_tests::pages::{
    HelpTexts, extract_code, first_code_block, heading_anchors, link_targets, parse_millrace_calls,
    repository_folder,
};
use millrace_tests::program::millrace_program;

/// Every page that users and contributors read.
fn list_documentation_pages() -> Vec<PathBuf> {
    let root = repository_folder();
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/README.md", "packaging/README.md"]
            .map(|name| root.join(name))
            .into();
    let topics = fs::read_dir(root.join("docs")).expect("the folder docs exists");
    pages.extend(topics.map(|entry| entry.expect("a readable folder").path()));
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

fn read_page(page: &PathBuf) -> String {
    fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

#[test]
fn documented_commands_and_options_exist() {
    let (mut help, mut tried) = (HelpTexts::default(), 0);
    for page in list_documentation_pages() {
        for line in extract_code(&read_page(&page)) {
            for (command, options) in parse_millrace_calls(&line) {
                let place = page.display();
                let help_text = help
                    .help_of_command(command)
                    .unwrap_or_else(|| panic!("{place}: {line}: no `millrace {command}`"));
                for option in options.iter().filter_map(|option| option.split('=').next()) {
                    let is_known = help_text.split([' ', ',', '\n']).any(|word| word == option);
                    assert!(is_known, "{place}: {line}: `millrace {command}` has no {option}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 40, "only {tried} options");
}

#[test]
fn every_command_is_documented() {
    let output = Command::new(millrace_program()).arg("--help").output().expect("the program starts");
    let help = String::from_utf8(output.stdout).expect("help is text");
    let commands = help.lines().take_while(|line| *line != "Options:");
    let commands = commands.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 20, "{names:?}");
    let lines: Vec<String> =
        list_documentation_pages().iter().flat_map(|page| extract_code(&read_page(page))).collect();
    for name in names {
        let is_shown =
            lines.iter().any(|line| parse_millrace_calls(line).iter().any(|(command, _)| *command == name));
        assert!(is_shown, "no page shows `millrace {name}`");
    }
}

#[test]
fn first_command_of_the_readme_needs_no_optimised_build() {
    let page = read_page(&repository_folder().join("README.md"));
    let first = first_code_block(&page, "console").expect("the page has a command");
    assert!(first.starts_with("$ cargo run -- run "), "{first}");
}

#[test]
fn links_between_pages_resolve() {
    for page in list_documentation_pages() {
        let text = read_page(&page);
        for target in link_targets(&text).into_iter().filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let other = page.parent().expect("a page is in a folder").join(file);
            let other = if file.is_empty() { page.clone() } else { other };
            assert!(other.exists(), "{}: no file {target}", page.display());
            let is_known =
                anchor.is_empty() || heading_anchors(&read_page(&other)).iter().any(|known| known == anchor);
            assert!(is_known, "{}: no heading {target}", page.display());
        }
    }
}

#[test]
fn capabilities_in_the_docs_are_valid() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, page, heading) in [
        ("analyst", "docs/capabilities.md", "# "),
        ("statistician", "docs/skills.md", "# "),
        ("publisher", "docs/people.md", "## Questions in capability files"),
    ] {
        let text = read_page(&repository_folder().join(page));
        let (_, section) = text.split_once(heading).expect("the page has the heading");
        let shown = first_code_block(section, "yaml").expect("the page has an example");
        let file = folder.path().join(format!("{name}.yaml"));
        fs::write(&file, shown).expect("a file in a temporary folder");
        let described = millrace_worker::file::describe_capability_file(&file);
        assert_eq!(described.expect("a valid capability file").name.as_str(), name, "{page}");
    }
}

#[test]
fn plan_in_the_docs_is_valid() {
    let page = read_page(&repository_folder().join("docs/plans.md"));
    let shown = first_code_block(&page, "yaml").expect("the page has an example");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plan.yaml");
    fs::write(&file, shown).expect("a file in a temporary folder");
    let submit = |text: &str| {
        fs::write(&file, text).expect("a file in a temporary folder");
        let mut command = Command::new(millrace_program());
        command.args(["submit", "--nats", "nats://127.0.0.1:1", "--plan"]).arg(&file);
        command.output().expect("the program starts").status.code()
    };
    let text = fs::read_to_string(&file).expect("the file that was just written");
    assert_eq!(submit(&text), Some(4), "a valid plan gets as far as the connection");
    assert_eq!(submit(&text.replace("depends_on", "depend_on")), Some(2), "a mistake is refused before");
}

/// Returns the names of environment variables in a text.
fn find_variables(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_';
    let rests = text.match_indices("MILLRACE_").filter(|(at, _)| !text[..*at].ends_with(is_part));
    let names =
        rests.map(|(at, _)| text[at..].chars().take_while(|letter| is_part(*letter)).collect::<String>());
    // A prefix such as MILLRACE_NATS_ is no name, and the placeholder in the alert rules is no variable.
    names.filter(|name| !name.ends_with('_') && name != "MILLRACE_WRITE").collect()
}

/// Adds the variables in the sources below a folder.
fn collect_variables(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            collect_variables(&path, names);
        } else if path
            .extension()
            .is_some_and(|extension| ["rs", "yaml"].iter().any(|known| extension == *known))
        {
            names.extend(find_variables(&read_page(&path)));
        }
    }
}

#[test]
fn page_of_settings_has_exactly_the_variables_of_the_sources() {
    let root = repository_folder();
    let mut in_sources = BTreeSet::new();
    for folder in ["protocol", "supervisor", "worker", "critic", "gateway", "cli", "tests"] {
        collect_variables(&root.join(folder).join("src"), &mut in_sources);
    }
    for folder in ["crates", "examples", "tests/tests", "deploy/compose", "deploy/kubernetes"] {
        collect_variables(&root.join(folder), &mut in_sources);
    }
    let page = read_page(&root.join("docs/settings.md"));
    let on_page = find_variables(&page);
    let difference: Vec<_> = in_sources.symmetric_difference(&on_page).collect();
    assert!(difference.is_empty(), "only in the sources or only on the page: {difference:?}");

    let output =
        Command::new(millrace_program()).args(["config", "--json"]).env("MILLRACE_CONFIG", "none").output();
    let config: serde_json::Value =
        serde_json::from_slice(&output.expect("the program starts").stdout).expect("JSON");
    let known = config["settings"].as_array().expect("a list").iter().map(|setting| &setting["name"]);
    let known: BTreeSet<String> = known.map(|name| name.as_str().expect("a name").to_owned()).collect();
    let (settings, _) = page.split_once("Variables of `deploy/compose`").expect("the page has this section");
    assert_eq!(find_variables(settings), known, "the settings on the page and in `millrace config`");
}
