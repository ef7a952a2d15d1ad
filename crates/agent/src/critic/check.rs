//! The checks of a judge's answer: its form, and the verdicts on the statements of a result that its worker did not verify. A judge that
//! accepts a result with refuted statements gets them once, with the reasons, and judges again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use millrace_protocol::ids::TaskId;
use millrace_protocol::result::{TaskResult, VerifiedStatement};
use millrace_verification::Verification;

use super::form::{Judgement, JudgementValidator};
use super::{ReviewTask, sheet};
use crate::answers::remove_source_list;
use crate::corpus::Corpus;
use crate::material::{NOTICE, prefix_lines_with_bar};
use crate::turn::AnswerCheck;
use crate::verification::{LineSources, cited_lines};

/// The verdicts on a result that its worker did not verify, found once for all judges of a panel.
#[derive(Debug, Default)]
pub(crate) struct LateVerdicts(Mutex<Vec<VerifiedStatement>>);

impl LateVerdicts {
    /// Adds the verdicts to a result that has none.
    pub fn add_to(&self, result: TaskResult) -> TaskResult {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let statements = if result.statements.is_empty() { found } else { result.statements };
        TaskResult { statements, ..result }
    }
}

/// Checks the answers of one judge.
pub(crate) struct JudgementCheck<'a> {
    form: JudgementValidator<'a>,
    sheet: &'a ReviewTask,
    corpus: Option<&'a Corpus>,
    late: &'a LateVerdicts,
    has_verified: AtomicBool,
}

impl<'a> JudgementCheck<'a> {
    pub fn new(
        task: &'a TaskId,
        sheet: &'a ReviewTask,
        corpus: Option<&'a Corpus>,
        late: &'a LateVerdicts,
    ) -> Self {
        let form = JudgementValidator::new(task, &sheet.criteria);
        Self { form, sheet, corpus, late, has_verified: AtomicBool::new(false) }
    }
}

impl AnswerCheck<Judgement> for JudgementCheck<'_> {
    fn check(&self, judgement: Judgement) -> Result<Judgement, String> {
        self.form.validate_judgement(judgement)
    }

    fn begin_verification(&self, judgement: &Judgement) -> Option<Verification> {
        let result = &self.sheet.result;
        let corpus = self.corpus.filter(|corpus| corpus.has_sources())?;
        // A result without sources claims none.
        let is_due = judgement.passed && result.statements.is_empty() && !result.sources.is_empty();
        if !is_due || self.has_verified.swap(true, Ordering::Relaxed) {
            return None;
        }
        let cited = result
            .sources
            .iter()
            .filter_map(|source| Some((source.id.clone(), cited_lines(source, &result.quotations, corpus)?)));
        let marks: BTreeMap<_, _> = cited.collect();
        let sources = LineSources { marks, read: Vec::new(), corpus: corpus.clone() };
        let is_mark = |text: &str| result.sources.iter().any(|source| source.id == text);
        let text = remove_source_list(&result.output);
        Some(Verification::new(text, &is_mark, &self.sheet.objective, &sources, []))
    }

    fn conclude(
        &self,
        judgement: Judgement,
        statements: Vec<VerifiedStatement>,
    ) -> Result<Judgement, String> {
        let is_refuted = statements.iter().any(VerifiedStatement::is_refuted);
        let verdicts = sheet::describe_verdicts(&statements);
        *self.late.0.lock().unwrap_or_else(PoisonError::into_inner) = statements;
        match is_refuted {
            true => Err(format!(
                "The verifier has compared the statements of the result with its sources, and some are refuted. {NOTICE}\n\n{}\nJudge \
                 every criterion again with these verdicts.",
                prefix_lines_with_bar(&verdicts, sheet::MAX_OUTPUT)
            )),
            false => Ok(judgement),
        }
    }
}
