//! The items of an evaluation. Runs and the model alone answer objectives; the verifier and its model alone judge claims.

use std::fmt::Debug;

use millrace_agent::corpus::Corpus;

use super::input::ItemOrigin;
use super::input::claims::Claim;
use super::input::file::{EntryName, Objective};
use super::score::MethodScore;
use super::score::answers::{AnswerSample, AnswerSums};
use super::score::claims::{ClaimSample, ClaimSums};
use super::setup::SampleConditions;
use super::store::{SampleKey, SampleMethod, SampleRecord};
use crate::json::{EvaluationClaimJson, EvaluationSampleJson, print_json};

/// An item of an evaluation.
pub trait EvaluationItem: Debug {
    /// The word for items of this kind.
    const NOUN: &'static str;
    /// The sums of the samples of a configuration.
    type Sums: Debug + Default;
    /// The score of a sample.
    type Sample;

    fn id(&self) -> &EntryName;

    fn origin(&self) -> &ItemOrigin;

    /// `true` if it has samples that are measured in this way.
    fn is_measured_by(&self, method: SampleMethod) -> bool;

    /// Returns the parts of the fingerprint that do not depend on the configuration.
    fn fingerprint_parts(
        &self,
        method: SampleMethod,
        conditions: &SampleConditions,
        corpus: &Corpus,
    ) -> Vec<String>;

    /// Scores a sample and adds it to the sums.
    fn score(&self, record: &SampleRecord, sums: &mut Self::Sums) -> Self::Sample;

    /// Scores a sample and adds it to the score of its method.
    fn add_to(&self, score: &mut MethodScore<Self::Sums>, record: &SampleRecord) -> Self::Sample {
        score.add_usage(record);
        self.score(record, &mut score.sums)
    }

    /// The score of a sample, for a person.
    fn describe(sample: &Self::Sample, record: &SampleRecord) -> Vec<String>;

    fn print_sample_json(&self, key: &SampleKey, record: &SampleRecord, sample: &Self::Sample);
}

impl EvaluationItem for Objective {
    const NOUN: &'static str = "objective";
    type Sums = AnswerSums;
    type Sample = AnswerSample;

    fn id(&self) -> &EntryName {
        &self.id
    }

    fn origin(&self) -> &ItemOrigin {
        &self.origin
    }

    /// The ceiling is measured for objectives that have facts.
    fn is_measured_by(&self, method: SampleMethod) -> bool {
        match method {
            SampleMethod::Run => true,
            SampleMethod::Ceiling => self.is_answerable(),
            SampleMethod::Verification | SampleMethod::Direct => false,
        }
    }

    fn fingerprint_parts(
        &self,
        method: SampleMethod,
        conditions: &SampleConditions,
        corpus: &Corpus,
    ) -> Vec<String> {
        let is_run = method == SampleMethod::Run;
        let is_read = |path: &String| match (is_run, &self.passage) {
            (true, _) => !self.left_out.contains(path),
            (false, None) => self.documents.contains(path),
            (false, Some(_)) => false,
        };
        let documents = corpus.documents().iter().filter(|one| is_read(&one.path));
        let documents = Corpus::cache_key(documents.map(|one| (one.path.as_str(), one.sha256.as_str())));
        let budget = || serde_json::to_string(&conditions.budget).expect("a budget can be serialized");
        let budget = if is_run { budget() } else { String::new() };
        let passage = self.passage.clone().filter(|_| !is_run);
        [self.text.clone(), method.name().to_owned(), documents, budget].into_iter().chain(passage).collect()
    }

    fn score(&self, record: &SampleRecord, sums: &mut AnswerSums) -> AnswerSample {
        sums.add(self, record)
    }

    fn describe(sample: &AnswerSample, record: &SampleRecord) -> Vec<String> {
        sample.describe(record)
    }

    fn print_sample_json(&self, key: &SampleKey, record: &SampleRecord, sample: &AnswerSample) {
        print_json(&EvaluationSampleJson::new(key, record, sample));
    }
}

impl EvaluationItem for Claim {
    const NOUN: &'static str = "claim";
    type Sums = ClaimSums;
    type Sample = ClaimSample;

    fn id(&self) -> &EntryName {
        &self.id
    }

    fn origin(&self) -> &ItemOrigin {
        &self.origin
    }

    fn is_measured_by(&self, method: SampleMethod) -> bool {
        match method {
            SampleMethod::Run | SampleMethod::Ceiling => false,
            SampleMethod::Verification | SampleMethod::Direct => true,
        }
    }

    fn fingerprint_parts(&self, method: SampleMethod, _: &SampleConditions, _: &Corpus) -> Vec<String> {
        vec![self.text.clone(), method.name().to_owned(), self.evidence.join("\n")]
    }

    fn score(&self, record: &SampleRecord, sums: &mut ClaimSums) -> ClaimSample {
        sums.add(self, record)
    }

    fn describe(sample: &ClaimSample, _: &SampleRecord) -> Vec<String> {
        sample.describe()
    }

    fn print_sample_json(&self, key: &SampleKey, record: &SampleRecord, sample: &ClaimSample) {
        print_json(&EvaluationClaimJson::new(key, record, sample));
    }
}
