//! The checks of a judge's answer: its form, and what the verifier says. Of a result that its worker did not verify it judges the
//! statements; a judge that accepts refuted ones gets them once, with the reasons, and judges again. If a small judge rejects a verified
//! result only because it does not answer, the verifier is asked whether it does: small models tell that no better than chance in the
//! form of a judgement, but well in the form of a claim.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use millrace_protocol::result::{StatementVerdict, TaskResult, VerifiedStatement};
use millrace_verification::Verification;

use super::form::{CriterionJudgement, Judgement, JudgementValidator};
use super::standing::ANSWERS;
use super::{ReviewTask, sheet};
use crate::answers::remove_source_list;
use crate::corpus::Corpus;
use crate::material::{NOTICE, prefix_lines_with_bar};
use crate::model::ModelAbility;
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
    ability: ModelAbility,
    sheet: &'a ReviewTask,
    corpus: Option<&'a Corpus>,
    late: &'a LateVerdicts,
    has_verified: AtomicBool,
}

impl<'a> JudgementCheck<'a> {
    pub fn new(
        ability: ModelAbility,
        sheet: &'a ReviewTask,
        corpus: Option<&'a Corpus>,
        late: &'a LateVerdicts,
    ) -> Self {
        let form = JudgementValidator::new(&sheet.task_id, &sheet.criteria);
        Self { form, ability, sheet, corpus, late, has_verified: AtomicBool::new(false) }
    }

    /// The question whether the result answers, if a small judge denies only this of a verified result. Statements that are not
    /// supported are no reason to reject it: they are delivered with their marks.
    fn ask_whether_it_answers(&self, judgement: &Judgement) -> Option<Verification> {
        let ReviewTask { result, objective, .. } = self.sheet;
        let denies_only_this = judgement.criteria.iter().all(|one| one.met || one.criterion == ANSWERS);
        let is_due = self.ability.is_small() && denies_only_this && !result.statements.is_empty();
        is_due.then(|| Verification::of_answer(objective, remove_source_list(&result.output)))
    }
}

impl AnswerCheck<Judgement> for JudgementCheck<'_> {
    fn check(&self, judgement: Judgement) -> Result<Judgement, String> {
        self.form.validate_judgement(judgement)
    }

    fn begin_verification(&self, judgement: &Judgement) -> Option<Verification> {
        if !judgement.passed {
            return self.ask_whether_it_answers(judgement);
        }
        let result = &self.sheet.result;
        let corpus = self.corpus.filter(|corpus| corpus.has_sources())?;
        // A result without sources claims none.
        let is_due = result.statements.is_empty() && !result.sources.is_empty();
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
        if !judgement.passed {
            return Ok(add_opinion(judgement, &statements));
        }
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

/// Adds the verdict on the claim that the result answers to a judgement that denies only this. If it is supported, the result passes.
fn add_opinion(judgement: Judgement, claims: &[VerifiedStatement]) -> Judgement {
    let Some(claim) = claims.iter().find(|claim| claim.verdict == StatementVerdict::Supported) else {
        return judgement;
    };
    let criteria =
        judgement.criteria.into_iter().map(|one| CriterionJudgement { gap: None, met: true, ..one });
    let percent = claim
        .probability
        .map(|one| format!(" with a probability of {:.0}%", one * 100.0))
        .unwrap_or_default();
    let reasoning = format!(
        "The verifier finds that it answers{percent}. The judge, a small model, said: {}",
        judgement.reasoning
    );
    Judgement { criteria: criteria.collect(), reasoning, feedback: None, passed: true, ..judgement }
}
