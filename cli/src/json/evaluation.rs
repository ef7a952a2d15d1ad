//! Evaluations: a line for each sample, then one for each configuration and method.

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::EndReason;
use millrace_protocol::result::Usage;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, tagged};
use crate::evaluation::score::{AnswerKind, ConfigurationScore, SampleScore};
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
    /// The names of the wrong statements in the answer.
    wrong: &'a [String],
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
    pub fn new(key: &'a SampleKey, record: &'a SampleRecord, score: &'a SampleScore) -> Self {
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
            wrong: &score.wrong,
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
    /// The number of wrong statements.
    wrong: u32,
    /// The number of samples of questions that the documents do not answer.
    unanswerable: u32,
    /// Those of them whose deliverable says so.
    not_answered: u32,
    /// Those of them that were answered all the same.
    unfounded: u32,
    /// The number of samples of other questions whose deliverable states that there is no answer.
    answers_missed: u32,
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
    share_of_ceiling: Option<ShareJson>,
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct ShareJson {
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
        score: &ConfigurationScore,
        share_of_ceiling: Option<(u32, u32)>,
    ) -> Self {
        Self {
            configuration,
            method,
            samples_selected: score.selected,
            samples: score.samples,
            accepted: score.accepted,
            facts_expected: score.facts_expected,
            facts_found: score.facts_found,
            wrong: score.wrong,
            unanswerable: score.unanswerable,
            not_answered: score.not_answered,
            unfounded: score.unfounded,
            answers_missed: score.answers_missed,
            citations: score.citations,
            citations_resolved: score.resolved_citations,
            usage: score.usage,
            elapsed_ms: score.elapsed_ms,
            share_of_ceiling: share_of_ceiling.map(|(found, expected)| ShareJson { found, expected }),
        }
    }
}
