//! Reads question files in the format of SQuAD, versions 1 and 2: each article is a document, and each question an objective whose fact
//! is one of the answers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use millrace_agent::corpus::ListedFile;
use millrace_protocol::plan::MAX_OBJECTIVE;
use serde::Deserialize;

use super::file::{EntryName, Objective};
use super::reading::{ItemOrigin, file_names, json_message, name_in_file, read_input_text, unique_name};
use super::statement::Statement;
use crate::exit::CommandError;

/// The number of characters of a deliverable that are searched for an answer, if nothing sets it.
pub const ANSWER_CHARACTERS: u32 = 1_200;

const CONTENT: &str = "the field \"data\", a list of articles with questions, as SQuAD has it";

/// The terms under which the questions are put.
#[derive(Debug, Clone, Copy)]
pub struct QuestionTerms {
    /// `true` if the article of a question is left out of its folder.
    pub without_article: bool,
    /// The number of characters of the deliverable that are searched for the answer.
    pub answer_characters: u32,
}

#[derive(Deserialize)]
struct QuestionFile {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    #[serde(default)]
    title: String,
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    #[serde(default)]
    qas: Vec<Question>,
}

#[derive(Deserialize)]
struct Question {
    #[serde(default)]
    id: String,
    question: String,
    #[serde(default)]
    answers: Vec<Answer>,
    #[serde(default)]
    is_impossible: bool,
}

#[derive(Deserialize)]
struct Answer {
    text: String,
}

/// An article as a document.
struct ArticleDocument {
    title: String,
    path: String,
}

/// Reads question files. Returns the questions, and the documents of all of them.
pub fn load_questions(
    paths: &[PathBuf],
    terms: &QuestionTerms,
) -> Result<(Vec<Objective>, Vec<ListedFile>), CommandError> {
    let mut reader = QuestionReader { terms: *terms, ..QuestionReader::default() };
    for (path, file) in paths.iter().zip(file_names(paths)) {
        reader.read_file(path, &file)?;
    }
    if terms.without_article {
        reader.leave_articles_out();
    }
    Ok((reader.objectives, reader.files))
}

impl Default for QuestionTerms {
    fn default() -> Self {
        Self { without_article: false, answer_characters: ANSWER_CHARACTERS }
    }
}

#[derive(Default)]
struct QuestionReader {
    terms: QuestionTerms,
    objectives: Vec<Objective>,
    files: Vec<ListedFile>,
    articles: Vec<ArticleDocument>,
    /// The article of each objective.
    article_of: Vec<usize>,
    ids: BTreeSet<String>,
    paths: BTreeSet<String>,
}

impl QuestionReader {
    fn read_file(&mut self, path: &Path, file: &str) -> Result<(), CommandError> {
        let text = read_input_text(path, CONTENT)?;
        let parsed: QuestionFile = serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            refused!(
                "{}:{line}:{column}: {}; a question file has {CONTENT}",
                path.display(),
                json_message(&error)
            )
        })?;
        let before = self.objectives.len();
        for (at, article) in parsed.data.iter().enumerate() {
            self.add_document(at, article, file);
            for paragraph in &article.paragraphs {
                for question in &paragraph.qas {
                    let origin = ItemOrigin { file: file.to_owned(), id: question.id.clone() };
                    let objective = self.read_question(question, &paragraph.context, origin);
                    let objective = objective.map_err(|why| {
                        let title = &self.articles[self.articles.len() - 1].title;
                        refused!("{}: article {title:?}, question {:?} {why}", path.display(), question.id)
                    })?;
                    self.objectives.push(objective);
                    self.article_of.push(self.articles.len() - 1);
                }
            }
        }
        match self.objectives.len() == before {
            true => Err(refused!("{} has no questions; a question file has {CONTENT}", path.display())),
            false => Ok(()),
        }
    }

    fn add_document(&mut self, at: usize, article: &Article, file: &str) {
        let title = match article.title.replace('_', " ").trim() {
            "" => format!("Article {}", at + 1),
            title => title.to_owned(),
        };
        let is_allowed = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let name: String = title.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(100).collect();
        let name = name_in_file(file, '/', name.trim_matches('.'));
        let path = format!("{}.md", unique_name(&name, &mut self.paths));
        let paragraphs = article.paragraphs.iter().map(|paragraph| paragraph.context.trim());
        let text: Vec<String> = paragraphs.map(|paragraph| format!("\n{paragraph}\n")).collect();
        let text = format!("# {title}\n{}", text.concat());
        self.files.push(ListedFile::from_bytes(path.clone(), text.into_bytes()));
        self.articles.push(ArticleDocument { title, path });
    }

    fn read_question(
        &mut self,
        question: &Question,
        context: &str,
        origin: ItemOrigin,
    ) -> Result<Objective, String> {
        let text = question.question.trim();
        if text.is_empty() || text.len() > MAX_OBJECTIVE {
            return Err(format!("must have a text of 1 to {MAX_OBJECTIVE} bytes in \"question\""));
        }
        let answers = question.answers.iter().map(|answer| answer.text.as_str());
        let fact = Statement::of_answers(answers, context);
        let fact = match (fact, question.is_impossible) {
            (_, true) => None,
            (Some(fact), false) => Some(fact),
            (None, false) => {
                return Err("has no answer; give one in \"answers\", or set \"is_impossible\" to true".into());
            }
        };
        let name = match question.id.as_str() {
            "" => format!("question-{}", self.objectives.len() + 1),
            id => id.to_owned(),
        };
        let name = EntryName::from_any_text(&name_in_file(&origin.file, '.', &name));
        let id = EntryName::from_any_text(&unique_name(name.as_str(), &mut self.ids));
        let path = self.articles.last().map(|article| article.path.clone());
        Ok(Objective {
            id,
            documents: if fact.is_some() { path.into_iter().collect() } else { Vec::new() },
            facts: fact.into_iter().collect(),
            passage: Some(context.trim().to_owned()),
            answer_characters: Some(self.terms.answer_characters as usize),
            origin,
            ..Objective::new(text)
        })
    }

    /// Leaves the article of each question out of its folder, and those with the same title: the same text in other languages.
    fn leave_articles_out(&mut self) {
        for (objective, article) in self.objectives.iter_mut().zip(&self.article_of) {
            let title = &self.articles[*article].title;
            let same = self.articles.iter().filter(|other| other.title == *title);
            objective.left_out = same.map(|article| article.path.clone()).collect();
            objective.documents.clear();
            objective.facts.clear();
            objective.passage = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::wording::Wording;

    const MILL: &str = r#"{"version": "2.0", "data": [
        {"title": "Mill_of/Osterby", "paragraphs": [
            {"context": "The mill has 12 sails. It was built in 1811.", "qas": [
                {"id": "a1", "question": " How many sails has the mill? ", "answers": [{"text": "12", "answer_start": 13}]},
                {"id": "a2", "question": "Who owns it?", "answers": [], "is_impossible": true}]},
            {"context": "The miller is Anton Berg.", "qas": []}]},
        {"title": "Mill_of/Osterby", "paragraphs": [{"context": "Another one.", "qas": [
            {"id": "a1", "question": "Which?", "answers": [{"text": "Another"}, {"text": "another one"}]}]}]}]}"#;

    fn load(
        texts: &[(&str, &str)],
        terms: QuestionTerms,
    ) -> Result<(Vec<Objective>, Vec<ListedFile>), String> {
        let folder = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name)
        };
        let paths: Vec<PathBuf> = texts.iter().map(write).collect();
        let prefix = format!("{}/", folder.path().display());
        load_questions(&paths, &terms).map_err(|error| error.error.to_string().replace(&prefix, ""))
    }

    #[test]
    fn articles_are_documents_and_questions_objectives() {
        let (objectives, files) = load(&[("mill.json", MILL)], QuestionTerms::default()).unwrap();
        let ids: Vec<&str> = objectives.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["a1", "a2", "a1-2"]);
        assert_eq!(objectives[0].text, "How many sails has the mill?");
        assert!(objectives[0].facts[0].is_stated_in(&Wording::read("It has **12** sails.")));
        assert_eq!(objectives[0].documents, ["Mill_of_Osterby.md"]);
        assert_eq!(objectives[0].passage.as_deref(), Some("The mill has 12 sails. It was built in 1811."));
        assert!(!objectives[1].is_answerable() && objectives[1].left_out.is_empty());
        assert_eq!(files[1].path, "Mill_of_Osterby-2.md");
        let text = String::from_utf8(files[0].clone().read_file().unwrap().bytes).unwrap();
        assert_eq!(
            text,
            "# Mill of/Osterby\n\nThe mill has 12 sails. It was built in 1811.\n\nThe miller is Anton Berg.\n"
        );
    }

    #[test]
    fn articles_of_several_files_are_in_one_folder_and_left_out_by_title() {
        let german = r#"{"data": [{"title": "Mill_of/Osterby", "paragraphs": [{"context": "Sie hat 12 Flügel.",
            "qas": [{"id": "a1", "question": "Wie viele Flügel?", "answers": [{"text": "12 Flügel"}]}]}]}]}"#;
        let files = [("q.en.json", MILL), ("q.de.json", german)];
        let (objectives, _) = load(&files, QuestionTerms::default()).unwrap();
        assert_eq!(objectives[3].id.as_str(), "q.de.a1");
        assert_eq!(objectives[3].documents, ["q.de/Mill_of_Osterby.md"]);
        assert_eq!(objectives[3].origin, ItemOrigin { file: "q.de".into(), id: "a1".into() });
        let terms = QuestionTerms { without_article: true, ..QuestionTerms::default() };
        let (objectives, files) = load(&files, terms).unwrap();
        assert_eq!(files.len(), 3);
        assert!(!objectives[3].is_answerable());
        let all = ["q.en/Mill_of_Osterby.md", "q.en/Mill_of_Osterby-2.md", "q.de/Mill_of_Osterby.md"];
        assert_eq!(objectives[3].left_out, all);
    }

    #[test]
    fn mistakes_name_the_file_the_place_and_the_remedy() {
        for (text, expected) in [
            (" \n", "q.json is empty; it should have the field \"data\", a list of articles"),
            ("{\"data\": [", "q.json:1:10: EOF while parsing a list; a question file has"),
            ("{\"rows\": []}", "q.json:1:12: missing field `data`; a question file has"),
            ("{\"data\": []}", "q.json has no questions; a question file has the field \"data\""),
            (
                &MILL.replace("\"is_impossible\": true", "\"is_impossible\": false"),
                "q.json: article \"Mill of/Osterby\", question \"a2\" has no answer; give one in \"answers\"",
            ),
            (&MILL.replace("Who owns it?", " "), "question \"a2\" must have a text of 1 to"),
        ] {
            let error = load(&[("q.json", text)], QuestionTerms::default()).map(drop).unwrap_err();
            assert!(error.contains(expected), "expected {expected}\nactual   {error}");
        }
    }
}
