//! Evaluations: a line for each sample, then one for each configuration and method.

use std::collections::BTreeMap;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::EndReason;
use millrace_protocol::result::{StatementVerdict, Usage, VerifiedStatement};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, tagged};
use crate::evaluation::input::claims::ClaimLabel;
use crate::evaluation::score::MethodScore;
use crate::evaluation::score::answers::{AnswerKind, AnswerSample, AnswerSums, RIGHT_WITHOUT_ANSWER};
use crate::evaluation::score::claims::{ClaimSample, ClaimSums, DeciderKind};
use crate::evaluation::score::share::Share;
use crate::evaluation::store::{SampleKey, SampleMethod, SampleRecord};

/// A sample of an evaluation that has ended.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "evaluation_sample")]
#[schemars(transform = tagged("evaluation_sample"))]
pub struct EvaluationSampleJson<'a> {
    /// The configuration.
    configuration: &'a str,
    /// The objective.
    objective: &'a str,
    /// The number of the sample, from 1.
    sample: u32,
    /// The way it was measured.
    method: SampleMethod,
    /// When it ended.
    ended_at: Time,
    /// The run; absent for the ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a RunId>,
    /// The end of the run; absent for the ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<EndReason>,
    /// Details of the end, for a person.
    detail: &'a str,
    /// `true` if there is an accepted deliverable.
    accepted: bool,
    /// The kind of answer.
    answer_kind: AnswerKind,
    /// The text of the deliverable; `null` if there is none.
    answer: Option<&'a str>,
    /// The names of the facts that the answer states.
    facts_found: &'a [String],
    /// The names of the other facts.
    facts_missed: &'a [String],
    /// The names of those found that a verified statement has.
    facts_verified: &'a [String],
    /// The names of the wrong statements in the answer.
    wrong: &'a [String],
    /// The statements with an expected fact: those that carry a mark, of all.
    true_statements_marked: Share,
    /// The numbers in statements without a mark that no document and not the question has.
    invented_figures: &'a [String],
    /// The number of citations.
    citations: u32,
    /// The number of citations that resolve.
    citations_resolved: u32,
    /// The usage.
    usage: Usage,
    /// The working time.
    elapsed_ms: u64,
}

impl<'a> EvaluationSampleJson<'a> {
    pub fn new(key: &'a SampleKey, record: &'a SampleRecord, score: &'a AnswerSample) -> Self {
        Self {
            configuration: &key.configuration,
            objective: &key.objective,
            sample: key.sample,
            method: key.method,
            ended_at: record.at.into(),
            run: record.run.as_ref(),
            end: record.end,
            detail: &record.detail,
            accepted: score.is_accepted,
            answer_kind: score.kind,
            answer: record.answer.as_deref(),
            facts_found: &score.facts_found,
            facts_missed: &score.facts_missed,
            facts_verified: &score.facts_verified,
            wrong: &score.wrong,
            true_statements_marked: score.marked,
            invented_figures: &record.invented,
            citations: record.citations,
            citations_resolved: record.resolved_citations,
            usage: record.usage,
            elapsed_ms: record.elapsed_ms,
        }
    }
}

/// The sums of a configuration, for one method.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "evaluation_configuration")]
#[schemars(transform = tagged("evaluation_configuration"))]
pub struct EvaluationConfigurationJson<'a> {
    /// The configuration.
    configuration: &'a str,
    /// The method.
    method: SampleMethod,
    /// The number of selected samples.
    samples_selected: u32,
    /// The number of samples that have ended.
    samples: u32,
    /// The number of samples with an accepted deliverable.
    accepted: u32,
    /// The number of expected facts.
    facts_expected: u32,
    /// The number of facts found.
    facts_found: u32,
    /// The bounds of the 95% interval of the share of facts found, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts_interval: Option<(f64, f64)>,
    /// The facts that were found, by file; absent for a single file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    facts_by_file: BTreeMap<&'a str, Share>,
    /// The facts found in deliverables that were verified: those that a verified statement has, of all.
    facts_verified: Share,
    /// The statements with an expected fact: those that carry a mark, of all.
    true_statements_marked: Share,
    /// The number of statements without a mark that have a figure which no document has.
    invented_figures: u32,
    /// The number of wrong statements.
    wrong: u32,
    /// The number of samples of questions that the documents do not answer.
    unanswerable: u32,
    /// Those of them whose deliverable states this, states that nothing was found, or has a mark on every statement.
    not_answered: u32,
    /// Those of them that were answered all the same.
    unfounded: u32,
    /// The number of samples of other questions whose deliverable states that there is no answer.
    answers_missed: u32,
    /// The numbers of samples of questions that the documents answer, by the kind of answer.
    answer_kinds: BTreeMap<AnswerKind, u32>,
    /// The number of citations.
    citations: u32,
    /// The number of citations that resolve.
    citations_resolved: u32,
    /// The usage of all samples.
    usage: Usage,
    /// The working time of all samples.
    elapsed_ms: u64,
    /// The facts that the model alone finds in at least one sample: those expected of the runs, and those that they found.
    /// Absent if the ceiling was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_ceiling: Option<FoundShareJson>,
}

/// The facts found, of those expected.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct FoundShareJson {
    /// The facts found.
    found: u32,
    /// The facts expected.
    expected: u32,
}

impl<'a> EvaluationConfigurationJson<'a> {
    /// Returns the line for a configuration and method.
    pub fn new(
        configuration: &'a str,
        method: SampleMethod,
        score: &'a MethodScore<AnswerSums>,
        share_of_ceiling: Option<Share>,
    ) -> Self {
        let sums = &score.sums;
        let by_file = sums.facts_by_file.iter().filter(|(file, _)| !file.is_empty());
        Self {
            configuration,
            method,
            samples_selected: score.selected,
            samples: score.samples,
            facts_by_file: by_file.map(|(file, share)| (file.as_str(), *share)).collect(),
            accepted: sums.accepted,
            facts_expected: sums.facts_expected,
            facts_found: sums.facts_found,
            facts_interval: sums.facts().interval(),
            facts_verified: sums.verified,
            true_statements_marked: sums.marked,
            invented_figures: sums.invented,
            wrong: sums.wrong,
            unanswerable: sums.unanswerable.values().sum(),
            not_answered: sums.count_unanswerable(&RIGHT_WITHOUT_ANSWER).part,
            unfounded: sums.count_unanswerable(&[AnswerKind::Answered]).part,
            answers_missed: sums.count_answerable(&[AnswerKind::NotAnswered]).part,
            answer_kinds: sums.answerable.clone(),
            citations: sums.citations.whole,
            citations_resolved: sums.citations.part,
            usage: score.usage,
            elapsed_ms: score.elapsed_ms,
            share_of_ceiling: share_of_ceiling
                .map(|share| FoundShareJson { found: share.part, expected: share.whole }),
        }
    }
}

/// A claim that was judged.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "evaluation_claim")]
#[schemars(transform = tagged("evaluation_claim"))]
pub struct EvaluationClaimJson<'a> {
    /// The configuration.
    configuration: &'a str,
    /// The claim.
    claim: &'a str,
    /// The number of the sample, from 1.
    sample: u32,
    /// The way it was judged.
    method: SampleMethod,
    /// When it ended.
    ended_at: Time,
    /// The error of the model, for a person; empty if there is none.
    detail: &'a str,
    /// The label.
    label: ClaimLabel,
    /// The verdict on the whole claim: the worst one on its statements.
    verdict: StatementVerdict,
    /// `true` if the verdict agrees with the label; a claim that is supported in part is not supported.
    right: bool,
    /// The kind of the finder of the verdict.
    decided_by: DeciderKind,
    /// The probability that it is supported, from 0 to 1; absent if the model gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
    /// The statements with their verdicts.
    statements: &'a [VerifiedStatement],
    /// The usage.
    usage: Usage,
    /// The working time.
    elapsed_ms: u64,
}

impl<'a> EvaluationClaimJson<'a> {
    pub fn new(key: &'a SampleKey, record: &'a SampleRecord, sample: &ClaimSample) -> Self {
        Self {
            configuration: &key.configuration,
            claim: &key.objective,
            sample: key.sample,
            method: key.method,
            ended_at: record.at.into(),
            detail: &record.detail,
            label: sample.label,
            verdict: sample.verdict,
            right: sample.is_right(),
            decided_by: sample.decider,
            probability: sample.probability,
            statements: &record.statements,
            usage: record.usage,
            elapsed_ms: record.elapsed_ms,
        }
    }
}

/// The sums of a configuration's claims, for one method.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename = "evaluation_claims")]
#[schemars(transform = tagged("evaluation_claims"))]
pub struct EvaluationClaimsJson<'a> {
    /// The configuration.
    configuration: &'a str,
    /// The method.
    method: SampleMethod,
    /// The number of selected claims.
    samples_selected: u32,
    /// The number of claims that were judged.
    samples: u32,
    /// The number of their statements.
    statements: u32,
    /// The mean of the shares of both kinds of claims that were recognised; absent without claims of both kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    balanced_accuracy: Option<f64>,
    /// The bounds of its 95% interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    balanced_accuracy_interval: Option<(f64, f64)>,
    /// The claims labelled as supported: those recognised, of all.
    supported: Share,
    /// The other claims: those recognised, of all.
    others: Share,
    /// The area under the ROC curve of the probabilities; absent if no model gives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    area_under_curve: Option<f64>,
    /// The numbers of claims by label and verdict.
    counts: Vec<LabelVerdictCount>,
    /// The right verdicts by decider.
    deciders: Vec<DeciderShare>,
    /// The outcome of the verifier's probe, for a person; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<&'a str>,
    /// The usage of all claims, without the probe.
    usage: Usage,
    /// The working time of all claims.
    elapsed_ms: u64,
}

/// The number of claims with a label and a verdict.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct LabelVerdictCount {
    /// The label.
    label: ClaimLabel,
    /// The verdict.
    verdict: StatementVerdict,
    /// The number of claims.
    claims: u32,
}

/// The right verdicts of a decider.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct DeciderShare {
    /// The decider.
    decided_by: DeciderKind,
    /// The claims that were judged rightly, of all that it decided.
    right: Share,
}

impl<'a> EvaluationClaimsJson<'a> {
    pub fn new(configuration: &'a str, method: SampleMethod, score: &'a MethodScore<ClaimSums>) -> Self {
        let sums = &score.sums;
        let accuracy = sums.balanced_accuracy();
        let counts = sums.counts().into_iter();
        let deciders = sums.by_decider().into_iter();
        Self {
            configuration,
            method,
            samples_selected: score.selected,
            samples: score.samples,
            statements: sums.statements(),
            balanced_accuracy: accuracy.map(|(mean, _)| mean),
            balanced_accuracy_interval: accuracy.map(|(_, interval)| interval),
            supported: sums.recall(true),
            others: sums.recall(false),
            area_under_curve: sums.area_under_curve(),
            counts: counts
                .map(|((label, verdict), claims)| LabelVerdictCount { label, verdict, claims })
                .collect(),
            deciders: deciders.map(|(decided_by, right)| DeciderShare { decided_by, right }).collect(),
            probe: sums.probe.as_deref(),
            usage: score.usage,
            elapsed_ms: score.elapsed_ms,
        }
    }
}
