//! The format of `.env`: one `NAME=VALUE` per line, values plain or in quotes, comments after `#`.

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
