//! Verifies a text that no agent of a run wrote, against documents: its marks are those of our reports, links, footnotes, or none.

use std::collections::BTreeMap;

use millrace_protocol::result::{SourceLines, Usage, VerifiedStatement};
use millrace_verification::{CitedLines, Verification};

use super::{LineSources, Verifier};
use crate::answers::remove_source_list;
use crate::citations::read_line_range;
use crate::corpus::{Corpus, Document};
use crate::model::{ModelError, Request};

/// A text with the verdicts on its statements.
#[derive(Debug, Clone, PartialEq)]
pub struct VerifiedText {
    pub statements: Vec<VerifiedStatement>,
    /// The usage of the model, its probe included.
    pub usage: Usage,
}

/// Verifies a text with the documents of a corpus. Without a verifier only code decides.
///
/// # Errors
/// The model can't be reached, or refuses all requests. One that refuses a question leaves its statements unverified.
pub async fn verify_text(
    text: &str,
    corpus: &Corpus,
    verifier: Option<&Verifier>,
) -> Result<VerifiedText, ModelError> {
    let mut verification = begin_text_verification(text, "", corpus);
    let mut usage = Usage::default();
    let reason = match verifier.filter(|_| !verification.is_decided()) {
        None => Some(verification.phrases().no_text_verifier.clone()),
        Some(verifier) => {
            let calibration = verifier.recall_or_probe(&mut usage).await?;
            match calibration.is_believed() {
                true => {
                    loop {
                        let questions = verification.questions(&calibration);
                        if questions.is_empty() {
                            break;
                        }
                        let requests: Vec<Request> =
                            questions.iter().map(|one| one.request.clone()).collect();
                        for (number, reply) in verifier.ask_all(&requests, &mut usage).await? {
                            verification.answer(&questions[number], &reply, &calibration);
                        }
                    }
                    None
                }
                false => Some(calibration.describe_disbelief(verification.phrases())),
            }
        }
    };
    Ok(VerifiedText { statements: verification.finish(reason.as_deref()), usage })
}

/// Splits a text, reads its marks, and decides what code can decide about its statements.
pub(crate) fn begin_text_verification(text: &str, question: &str, corpus: &Corpus) -> Verification {
    let marks = read_marks(text, corpus);
    let sources = LineSources { corpus: corpus.clone(), marks, read: Vec::new() };
    let is_mark = |mark: &str| sources.marks.contains_key(mark);
    Verification::new(remove_source_list(text), &is_mark, question, &sources, [])
}

/// The targets of the marks of a text: the numbers of its list of sources, `[PATH:8]`, and the addresses of links to documents.
fn read_marks(text: &str, corpus: &Corpus) -> BTreeMap<String, Vec<CitedLines>> {
    let listed = text.lines().filter_map(|line| {
        let (number, rest) = line.trim_start().strip_prefix("- [")?.split_once(']')?;
        let location = corpus.documents().iter().map(|document| document.path.as_str());
        let location =
            location.filter(|path| rest.contains(&format!(": {path}"))).max_by_key(|path| path.len())?;
        let lines = rest.rsplit_once(location).map(|(_, lines)| read_lines(lines)).unwrap_or_default();
        Some((number.to_owned(), cite(location, &lines)))
    });
    let marks: BTreeMap<String, Vec<CitedLines>> = listed.collect();
    let brackets =
        text.match_indices('[').filter_map(|(at, _)| text[at + 1..].split_once(']').map(|(inner, _)| inner));
    let paths = brackets.filter_map(|inner| {
        let (path, lines) = inner.rsplit_once(':')?;
        let document = corpus.find_document(path)?;
        Some((inner.to_owned(), cite(&document.path, &read_lines(lines))))
    });
    let links = text
        .match_indices("](")
        .filter_map(|(at, _)| text[at + 2..].split_once([')', ' ']).map(|(link, _)| link));
    let links = links.filter_map(|link| {
        let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
        let path = path.trim_start_matches("./").trim_start_matches('/');
        // The folder of the documents may be a part of the path.
        let inside =
            |document: &&Document| path.strip_suffix(&document.path).is_some_and(|rest| rest.ends_with('/'));
        let found = || corpus.documents().iter().filter(inside).max_by_key(|document| document.path.len());
        let document = corpus.find_document(path).or_else(found)?;
        Some((link.to_owned(), cite(&document.path, &read_lines(&fragment.replace('L', " ")))))
    });
    paths.chain(links).chain(marks.clone()).collect()
}

/// The ranges of lines in a text such as `, lines 3–4, 9`.
fn read_lines(text: &str) -> Vec<(u32, u32)> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && !['–', '-'].contains(&c));
    parts.filter_map(read_line_range).collect()
}

fn cite(location: &str, lines: &[(u32, u32)]) -> Vec<CitedLines> {
    let source = location.to_owned();
    match lines {
        [] => vec![CitedLines::Source(source)],
        lines => lines
            .iter()
            .map(|(first_line, last_line)| {
                let (first_line, last_line) = (*first_line, *last_line);
                CitedLines::Lines(SourceLines { source: source.clone(), first_line, last_line })
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::result::StatementVerdict;

    use super::*;
    use crate::corpus::InputFile;

    fn corpus() -> Corpus {
        let file = |path: &str, text: &str| InputFile { path: path.into(), bytes: text.as_bytes().to_vec() };
        let files = vec![
            file("docs/kiln.md", "# Kiln\n\nThe kiln at Osterby fires at 1,240 °C.\nIt was built in 1931.\n"),
            file("log.txt", "The lamp broke in May and nobody has repaired it since.\n"),
        ];
        Corpus::build_or_load(files, None).unwrap()
    }

    #[test]
    fn marks_of_reports_links_and_footnotes_cite_lines() {
        let text = "It is hot [1], [old](docs/kiln.md#L4), broken [log.txt:1].\n\n## Sources\n\n- [1] Kiln: docs/kiln.md, lines 3–4\n";
        let marks = read_marks(text, &corpus());
        let lines = |source: &str, first_line, last_line| {
            vec![CitedLines::Lines(SourceLines { source: source.into(), first_line, last_line })]
        };
        assert_eq!(marks["1"], lines("docs/kiln.md", 3, 4));
        assert_eq!(marks["docs/kiln.md#L4"], lines("docs/kiln.md", 4, 4));
        assert_eq!(marks["log.txt:1"], lines("log.txt", 1, 1));
    }

    #[tokio::test]
    async fn text_is_verified_without_a_model_as_far_as_code_can() {
        let text = "The kiln at Osterby fires at 1,240 °C [1]. It was built in 1913 [1]. The lamp is old.\n\n## Sources\n\n\
            - [1] Kiln: docs/kiln.md, line 3\n";
        let verified = verify_text(text, &corpus(), None).await.unwrap();
        let verdicts: Vec<StatementVerdict> = verified.statements.iter().map(|one| one.verdict).collect();
        use StatementVerdict::{Supported, Unsupported, Unverified};
        assert_eq!(verdicts, [Supported, Unsupported, Unverified]);
        assert_eq!(verified.statements[2].reason, "No model verifies this text.");
    }
}
