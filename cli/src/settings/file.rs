//! The format of `millrace.toml`: keys of [`variables`](super::variables), and tables `[profile.NAME]` of such keys.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use millrace_strict_yaml::did_you_mean_hint;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::variables::{VARIABLES, ValueKind, Variable, VariableScope};

#[derive(Debug, Default)]
pub struct SettingsFile {
    /// Those that hold without a profile, too.
    pub defaults: Vec<FileSetting>,
    pub profiles: BTreeMap<String, Vec<FileSetting>>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FileSetting {
    pub name: &'static str,
    /// Its value as that of the variable.
    pub value: String,
    /// Its line, from 1.
    pub line: usize,
}

/// The owner of a file, which determines the keys that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOwner {
    User,
    /// The settings of a folder, which others may have written.
    Project,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FileMistake {
    /// The line, from 1.
    pub line: usize,
    pub what: String,
}

pub fn parse_settings_file(text: &str, folder: &Path, owner: FileOwner) -> Result<SettingsFile, FileMistake> {
    let root = DeTable::parse(text).map_err(|error| FileMistake {
        line: line_at(text, error.span().unwrap_or_default()),
        what: error.message().to_owned(),
    })?;
    let reader = Reader { text, folder, owner };
    let mut file = SettingsFile::default();
    for (key, value) in root.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("profile", DeValue::Table(profiles)) => {
                for (name, settings) in profiles {
                    let settings = reader.read_profile(name, settings)?;
                    file.profiles.insert(name.get_ref().to_string(), settings);
                }
            }
            ("profile", _) => {
                let what =
                    "to select a profile, use --profile NAME or MILLRACE_PROFILE; [profile.NAME] defines one";
                return Err(reader.mistake(key.span(), what));
            }
            _ => file.defaults.push(reader.read_setting(key, value)?),
        }
    }
    Ok(file)
}

struct Reader<'a> {
    text: &'a str,
    folder: &'a Path,
    owner: FileOwner,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

impl Reader<'_> {
    fn mistake(&self, place: Range<usize>, what: impl Into<String>) -> FileMistake {
        FileMistake { line: line_at(self.text, place), what: what.into() }
    }

    fn read_profile(
        &self,
        name: &Key<'_>,
        settings: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<FileSetting>, FileMistake> {
        let DeValue::Table(settings) = settings.get_ref() else {
            let what = format!("profile {:?} is a table: [profile.{}]", name.get_ref(), name.get_ref());
            return Err(self.mistake(name.span(), what));
        };
        settings.iter().map(|(key, value)| self.read_setting(key, value)).collect()
    }

    fn read_setting(&self, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<FileSetting, FileMistake> {
        let name = key.get_ref().as_ref();
        let mistake = |what: String| self.mistake(key.span(), what);
        let Some(variable) = Variable::by_key(name) else {
            let known: Vec<String> =
                VARIABLES.iter().filter(|known| self.may_contain(known)).map(Variable::key).collect();
            let hint = did_you_mean_hint(name, known.iter().map(String::as_str).chain(["profile"]));
            return Err(mistake(format!("unknown key {name:?}{hint}")));
        };
        match variable.scope {
            VariableScope::Everywhere => {}
            VariableScope::User if self.owner == FileOwner::User => {}
            VariableScope::User => {
                return Err(mistake(format!(
                    "{name:?} names a program to run or a file to write: set it in your own millrace.toml, or set {}",
                    variable.name
                )));
            }
            VariableScope::Secret => {
                return Err(mistake(format!(
                    "{name:?} is a secret: set {} in .env or in the environment",
                    variable.name
                )));
            }
            VariableScope::Selection | VariableScope::Environment => {
                return Err(mistake(format!("{name:?} can't be set in this file: set {}", variable.name)));
            }
        }
        let value = self.read_value(variable.kind, value.get_ref());
        let value = value.map_err(|expected| mistake(format!("{name:?} is {expected}")))?;
        Ok(FileSetting { name: variable.name, value, line: line_at(self.text, key.span()) })
    }

    fn may_contain(&self, variable: &Variable) -> bool {
        match variable.scope {
            VariableScope::Everywhere => true,
            VariableScope::User => self.owner == FileOwner::User,
            VariableScope::Secret | VariableScope::Selection | VariableScope::Environment => false,
        }
    }

    /// Returns a value as that of its variable, or else what it should be.
    fn read_value(&self, kind: ValueKind, value: &DeValue<'_>) -> Result<String, &'static str> {
        match (kind, value) {
            (ValueKind::Text | ValueKind::Secret, DeValue::String(text)) => Ok(text.to_string()),
            (ValueKind::Text | ValueKind::Secret, _) => Err("a text in quotes"),
            (ValueKind::Number, DeValue::Integer(number)) if number.radix() == 10 => {
                Ok(number.as_str().to_owned())
            }
            (ValueKind::Number, _) => Err("a whole number"),
            (ValueKind::Path, DeValue::String(path)) => Ok(self.absolute_path(path)),
            (ValueKind::Path, _) => Err("a path in quotes"),
            (ValueKind::Texts(separator), value) => {
                join_texts(value, separator, str::to_owned).ok_or("a text, or a list of texts")
            }
            (ValueKind::Paths(separator), value) => {
                join_texts(value, separator, |path| self.absolute_path(path))
                    .ok_or("a path, or a list of paths")
            }
        }
    }

    /// Paths are relative to the file, so that they hold in every folder below it. `~/` is the home folder.
    fn absolute_path(&self, path: &str) -> String {
        let home = std::env::home_dir();
        match (path.strip_prefix("~/"), home) {
            (Some(rest), Some(home)) => home.join(rest).display().to_string(),
            _ => self.folder.join(path).display().to_string(),
        }
    }
}

/// Joins the texts of a list, or returns a single text.
fn join_texts(value: &DeValue<'_>, separator: char, map: impl Fn(&str) -> String) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(map(text));
    }
    let texts = value.as_array()?.iter().map(|one| one.get_ref().as_str().map(&map));
    Some(texts.collect::<Option<Vec<String>>>()?.join(&separator.to_string()))
}

/// Returns the line of a place in a text, from 1.
fn line_at(text: &str, place: Range<usize>) -> usize {
    1 + text.bytes().take(place.start).filter(|byte| *byte == b'\n').count()
}

/// An assignment and its line, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub name: String,
    pub value: String,
    pub line: usize,
}

/// A line that is not an assignment.
#[derive(Debug, PartialEq, Eq)]
pub struct DotenvMistake {
    /// The line, from 1.
    pub line: usize,
    pub what: &'static str,
}

/// Parses the text of a file.
///
/// Values are not expanded: `$` has no meaning. In double quotes, `\n`, `\t`, `\"` and `\\` are escapes; in single quotes
/// nothing is.
pub fn parse_dotenv(text: &str) -> Result<Vec<Assignment>, DotenvMistake> {
    let mut assignments = Vec::new();
    for (index, content) in text.lines().enumerate() {
        let line = index + 1;
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let mistake = |what| DotenvMistake { line, what };
        let content = content.strip_prefix("export ").unwrap_or(content);
        let (name, value) = content.split_once('=').ok_or_else(|| mistake("expected NAME=VALUE"))?;
        let name = name.trim();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if name.is_empty()
            || !name.chars().all(is_name)
            || name.starts_with(|first: char| first.is_ascii_digit())
        {
            return Err(mistake("a name has letters, digits and underscores only"));
        }
        let value = parse_value(value.trim()).map_err(mistake)?;
        assignments.push(Assignment { name: name.to_owned(), value, line });
    }
    Ok(assignments)
}

fn parse_value(text: &str) -> Result<String, &'static str> {
    let (value, rest) = match text.chars().next() {
        Some('"') => parse_double_quoted(&text[1..])?,
        Some('\'') => {
            let (value, rest) = text[1..].split_once('\'').ok_or("the quote ' is not closed")?;
            (value.to_owned(), rest)
        }
        _ => {
            // A comment needs a space before it, since values such as URLs may contain #.
            let end = text.find(" #").or_else(|| text.find("\t#")).unwrap_or(text.len());
            let value = if text.starts_with('#') { "" } else { text[..end].trim_end() };
            return Ok(value.to_owned());
        }
    };
    let rest = rest.trim_start();
    if rest.is_empty() || rest.starts_with('#') {
        Ok(value)
    } else {
        Err("there is text after the closing quote")
    }
}

/// Returns the value and the text after the closing quote.
fn parse_double_quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match letters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, 't')) => value.push('\t'),
                Some((_, escaped @ ('"' | '\\' | '$'))) => value.push(escaped),
                _ => return Err("after \\ in double quotes, only n, t, \", \\ and $ may follow"),
            },
            other => value.push(other),
        }
    }
    Err("the quote \" is not closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SettingsFile, FileMistake> {
        parse_settings_file(text, Path::new("/team"), FileOwner::Project)
    }

    #[test]
    fn keys_become_variables_and_paths_are_relative_to_the_file() {
        let file = parse(
            "model = ['openai:a', 'critic=openai:b']\nslots = 4\n\n[profile.staging]\nnats_url = 'tls://n'\nnats_ca = 'ca.crt'\n\
             prices = '/p.toml'\ncheck_folders = ['a', '/b']\n",
        )
        .unwrap();
        let setting = |name, value: &str, line| FileSetting { name, value: value.into(), line };
        assert_eq!(
            file.defaults,
            [setting("MILLRACE_MODEL", "openai:a;critic=openai:b", 1), setting("MILLRACE_SLOTS", "4", 2)]
        );
        let mut staging: Vec<_> =
            file.profiles["staging"].iter().map(|one| (one.name, one.value.as_str(), one.line)).collect();
        staging.sort_unstable();
        let expected = [
            ("MILLRACE_CHECK_FOLDERS", "/team/a:/b", 8),
            ("MILLRACE_NATS_CA", "/team/ca.crt", 6),
            ("MILLRACE_NATS_URL", "tls://n", 5),
            ("MILLRACE_PRICES", "/p.toml", 7),
        ];
        assert_eq!(staging, expected);
    }

    #[test]
    fn mistakes_have_a_line_and_a_hint() {
        for (text, line, what) in [
            ("\nmodle = 'x'", 2, "unknown key \"modle\"; did you mean \"model\"?"),
            ("[profile.a]\nslot = 3", 2, "did you mean \"slots\"?"),
            ("[profiles.a]", 1, "did you mean \"profile\"?"),
            ("profile = 'a'", 1, "--profile NAME"),
            ("[profile]\na = 1", 2, "[profile.a]"),
            ("\n\nslots = '3'", 3, "\"slots\" is a whole number"),
            ("data = 3", 1, "a path in quotes"),
            ("nats_password = 'x'", 1, "set MILLRACE_NATS_PASSWORD in .env"),
            ("nats_server = 'evil'", 1, "your own millrace.toml"),
            ("config = 'none'", 1, "set MILLRACE_CONFIG"),
            ("a = 1\nb = ", 2, ""),
        ] {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.line == line && mistake.what.contains(what), "{text}: {mistake:?}");
        }
        let own = parse_settings_file("nats_server = 'n'", Path::new("/home/a"), FileOwner::User).unwrap();
        assert_eq!(own.defaults[0].value, "/home/a/n");
    }
}

#[cfg(test)]
mod dotenv_tests {
    use super::*;

    #[test]
    fn values_are_plain_or_quoted() {
        for (line, value) in [
            ("A=b", "b"),
            ("export A = b c ", "b c"),
            ("A=", ""),
            ("A= # empty", ""),
            ("A=http://x/#y # comment", "http://x/#y"),
            ("A='a \"$b\" # c' # d", "a \"$b\" # c"),
            (r#"A="a\n\"b\"\\" # c"#, "a\n\"b\"\\"),
            ("A=sk-=x==", "sk-=x=="),
        ] {
            let parsed = parse_dotenv(&format!("\n# comment\n{line}\n")).unwrap();
            let expected = Assignment { name: "A".into(), value: value.into(), line: 3 };
            assert_eq!(parsed, [expected], "{line}");
        }
    }

    #[test]
    fn mistakes_are_located() {
        for line in ["A", "A-B=c", "=x", "1A=x", "A=\"x", "A='x", "A='x'y", r#"A="\q""#] {
            assert_eq!(parse_dotenv(&format!("B=c\n{line}")).unwrap_err().line, 2, "{line}");
        }
    }
}
