//! The questions to a model about statements, in two forms, and how a reply is read.
//!
//! | form | for | question | reply |
//! |---|---|---|---|
//! | [`Form::Single`] | small models and dedicated verifiers | `Document: … Claim: …` | `Yes` or `No`, with its probability |
//! | [`Form::Several`] | strong models | several claims, each with labelled lines | a verdict, lines and a reason for each |

use millrace_models::model::{AnswerSchema, Message, ModelAbility, Reply, Request};
use millrace_protocol::result::{SourceLines, StatementVerdict};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The most tokens of a reply in the single form: a model that reasons in plain text gets a few words.
const MAX_OUTPUT_SINGLE: u32 = 16;
/// The most tokens of a reply for each statement in the other form.
const MAX_OUTPUT_EACH: u32 = 400;
/// The most statements in one question.
const MAX_STATEMENTS: usize = 8;
/// A change of the texts of the questions is another form, for which a model is probed again.
const VERSION: u32 = 1;

/// The form of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// One statement, answered with yes or no.
    Single,
    /// Several statements, answered with JSON.
    Several,
}

impl Form {
    /// The form that a model of this ability understands.
    pub fn for_ability(ability: ModelAbility) -> Self {
        if ability.is_small() { Self::Single } else { Self::Several }
    }

    /// The most statements in one question.
    pub fn max_statements(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Several => MAX_STATEMENTS,
        }
    }

    /// A name that changes with the texts of the questions.
    pub fn version(self) -> String {
        let name = match self {
            Self::Single => "single",
            Self::Several => "several",
        };
        format!("{name}.{VERSION}")
    }
}

/// A statement with the lines that it is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    /// The words of the statement.
    pub claim: String,
    /// The question that it answers, or its heading: with it, the statement stands alone.
    pub context: String,
    /// The passages, the best first, each with its text.
    pub passages: Vec<(SourceLines, String)>,
    /// The number of passages for a first judgement: those that the statement cites and those with its figures, or the best one.
    pub first: usize,
}

impl Case {
    /// The statement, made to stand alone.
    fn whole_claim(&self) -> String {
        format!("{} {}", self.context, self.claim).trim().to_owned()
    }

    /// The case with only its first passages.
    pub fn narrowed(&self) -> Self {
        Self { passages: self.passages.iter().take(self.first).cloned().collect(), ..self.clone() }
    }

    /// `true` if there are more passages than those for a first judgement.
    pub fn has_more(&self) -> bool {
        self.first < self.passages.len()
    }

    fn document(&self) -> String {
        self.passages.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n")
    }
}

/// A question about statements.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The numbers of its statements.
    pub(crate) statements: Vec<usize>,
    pub request: Request,
    pub(crate) form: Form,
    pub(crate) subject: Subject,
}

/// The subject of a question to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The support of the passages for the statements.
    Statements,
    /// The answer of the passages to the question of the text.
    Answer,
}

/// The claim that a document answers a question.
pub(crate) fn answer_claim(question: &str) -> String {
    format!("The document answers this question: {question}")
}

/// The judgement of a model on one statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judgement {
    /// The probability that it is supported; `None` if the reply tells none.
    pub probability: Option<f64>,
    /// The verdict of a reply that gives one.
    pub verdict: Option<StatementVerdict>,
    /// The numbers of the passages that decided it, from 0.
    pub passages: Vec<usize>,
    pub reason: Option<String>,
}

impl Judgement {
    /// The probability that the statement is supported: 1 or 0 for a verdict alone; `None` if there is neither.
    pub fn likelihood(&self) -> Option<f64> {
        self.probability.or(self.verdict.map(|verdict| match verdict {
            StatementVerdict::Supported => 1.0,
            StatementVerdict::Partly
            | StatementVerdict::Contradicted
            | StatementVerdict::Unsupported
            | StatementVerdict::Unverified => 0.0,
        }))
    }
}

/// Writes the question about cases, by their numbers.
pub(crate) fn write_question(form: Form, cases: &[(usize, &Case)]) -> Question {
    let statements = cases.iter().map(|(number, _)| *number).collect();
    let request = match (form, cases) {
        (Form::Single, [(_, case)]) => write_single(case),
        (Form::Single | Form::Several, cases) => write_several(cases),
    };
    Question { statements, request, form, subject: Subject::Statements }
}

/// Writes the question whether the passages of a case answer a question, in the single form.
pub(crate) fn write_answer_question(number: usize, question: &str, case: &Case) -> Question {
    let request = ask_directly(&case.document(), &answer_claim(question));
    Question { statements: vec![number], request, form: Form::Single, subject: Subject::Answer }
}

fn write_single(case: &Case) -> Request {
    ask_directly(&case.document(), &case.whole_claim())
}

/// The question in the single form about a claim and a whole document, for a comparison with the verifier.
pub fn ask_directly(document: &str, claim: &str) -> Request {
    let text = format!("Document: {document}\nClaim: {claim}");
    Request {
        system: include_str!("../prompts/single.md").trim_end().to_owned(),
        messages: vec![Message::User { text }],
        max_output_tokens: MAX_OUTPUT_SINGLE,
        first_token_probabilities: true,
        ..Request::default()
    }
}

fn write_several(cases: &[(usize, &Case)]) -> Request {
    let mut text = String::new();
    for (at, (_, case)) in cases.iter().enumerate() {
        let context =
            if case.context.is_empty() { String::new() } else { format!("About: {}\n", case.context) };
        text.push_str(&format!("## Statement {}\n\n{context}{}\n\nLines:\n", at + 1, case.claim));
        for (number, (_, passage)) in case.passages.iter().enumerate() {
            text.push_str(&format!("L{}: {}\n", number + 1, json!(passage)));
        }
        text.push('\n');
    }
    let most = u32::try_from(cases.len()).unwrap_or(1) * MAX_OUTPUT_EACH;
    Request {
        system: include_str!("../prompts/several.md").trim_end().to_owned(),
        messages: vec![Message::User { text: text.trim_end().to_owned() }],
        answer: Some(verdicts_schema(cases.len())),
        max_output_tokens: most,
        ..Request::default()
    }
}

fn verdicts_schema(statements: usize) -> AnswerSchema {
    let verdict = json!({
        "type": "object",
        "properties": {
            "statement": {"type": "integer", "minimum": 1, "maximum": statements},
            "lines": {"type": "array", "items": {"type": "string"}, "maxItems": 12},
            "reason": {"type": "string", "maxLength": 400},
            "verdict": {"type": "string", "enum": ["supported", "partly", "contradicted", "unsupported"]},
        },
        "required": ["statement", "lines", "reason", "verdict"],
        "additionalProperties": false,
    });
    let schema = json!({
        "type": "object",
        "properties": {"verdicts": {"type": "array", "items": verdict, "minItems": statements, "maxItems": statements}},
        "required": ["verdicts"],
        "additionalProperties": false,
    });
    AnswerSchema { name: "verdicts".into(), schema }
}

#[derive(Deserialize)]
struct GivenVerdicts {
    verdicts: Vec<GivenVerdict>,
}

#[derive(Deserialize)]
struct GivenVerdict {
    statement: usize,
    #[serde(default)]
    lines: Vec<String>,
    #[serde(default)]
    reason: String,
    verdict: StatementVerdict,
}

/// Reads the reply to a question: a judgement for each of its statements; `None` where it tells nothing.
pub(crate) fn read_reply(form: Form, statements: usize, reply: &Reply) -> Vec<Option<Judgement>> {
    match form {
        Form::Single => vec![read_single(reply)],
        Form::Several => read_several(statements, reply),
    }
}

/// Reads yes or no: by the probabilities of the first token if there are any, otherwise by the first word.
fn read_single(reply: &Reply) -> Option<Judgement> {
    let sum = |word: &str| -> f64 {
        let begins = |token: &str| {
            let token = token.trim_start_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            !token.is_empty() && (token.starts_with(word) || word.starts_with(&token))
        };
        reply.first_token.iter().filter(|one| begins(&one.token)).map(|one| one.probability).sum()
    };
    let (yes, no) = (sum("yes"), sum("no"));
    let probability = (yes + no > 0.0).then(|| yes / (yes + no));
    let first = reply.text.split(|c: char| !c.is_alphabetic()).find(|word| !word.is_empty());
    let said = first.and_then(|word| match word.to_lowercase().as_str() {
        "yes" => Some(StatementVerdict::Supported),
        "no" => Some(StatementVerdict::Unsupported),
        _ => None,
    });
    (probability.is_some() || said.is_some()).then_some(Judgement {
        probability,
        verdict: said.filter(|_| probability.is_none()),
        passages: Vec::new(),
        reason: None,
    })
}

/// The probability that a reply in the single form calls its claim supported: 1 or 0 if it tells none; `None` if it is no answer.
pub fn read_direct_reply(reply: &Reply) -> Option<f64> {
    read_single(reply)?.likelihood()
}

fn read_several(statements: usize, reply: &Reply) -> Vec<Option<Judgement>> {
    let mut judgements = vec![None; statements];
    let Ok(given) = serde_json::from_str::<GivenVerdicts>(&reply.text) else { return judgements };
    for one in given.verdicts {
        let label = |text: &String| text.trim().strip_prefix('L')?.parse::<usize>().ok()?.checked_sub(1);
        let Some(place) = one.statement.checked_sub(1).and_then(|at| judgements.get_mut(at)) else {
            continue;
        };
        *place = Some(Judgement {
            probability: None,
            verdict: Some(one.verdict),
            passages: one.lines.iter().filter_map(label).collect(),
            reason: Some(one.reason).filter(|reason| !reason.trim().is_empty()),
        });
    }
    judgements
}
