//! The probe of a model before its verdicts are believed: claims of our own with known answers, in several languages. It sets the
//! threshold for the probabilities that the model gives, and finds out a model that does no better than chance.

use millrace_models::model::Reply;
use millrace_protocol::result::SourceLines;
use serde::{Deserialize, Serialize};

use crate::phrases::Phrases;
use crate::question::{Case, Form, Question, read_reply, write_question};

/// The least balanced accuracy at which a model is believed. With 32 claims, a guess reaches it once in 50 times.
const MIN_ACCURACY: f64 = 0.7;
/// The probability above which a claim counts as supported unless the probe sets another threshold.
const MIDDLE: f64 = 0.5;

/// A claim with a known answer.
struct Probe {
    case: Case,
    is_supported: bool,
}

#[derive(Deserialize)]
struct ProbePair {
    document: String,
    #[serde(rename = "true")]
    supported: String,
    #[serde(rename = "false")]
    refuted: String,
}

/// The claims of the probe: as many true as false ones.
fn read_probes() -> Vec<Probe> {
    let pairs: Vec<ProbePair> =
        serde_json::from_str(include_str!("../data/probe.json")).expect("the file of the program is valid");
    let both = |(at, pair): (usize, ProbePair)| {
        let source = SourceLines { source: format!("probe-{at}"), first_line: 1, last_line: 1 };
        let probe = |claim, is_supported| Probe {
            case: Case {
                claim,
                context: String::new(),
                passages: vec![(source.clone(), pair.document.clone())],
                first: 1,
            },
            is_supported,
        };
        [probe(pair.supported, true), probe(pair.refuted, false)]
    };
    pairs.into_iter().enumerate().flat_map(both).collect()
}

/// The questions of the probe, in order.
pub fn probe_questions(form: Form) -> Vec<Question> {
    questions_about(&read_probes(), form)
}

fn questions_about(probes: &[Probe], form: Form) -> Vec<Question> {
    let cases: Vec<(usize, &Case)> = probes.iter().map(|probe| &probe.case).enumerate().collect();
    cases.chunks(form.max_statements()).map(|cases| write_question(form, cases)).collect()
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The full name of the model.
    pub model: String,
    /// The form of the questions.
    pub form: Form,
    /// The least probability of a supported claim.
    pub threshold: f64,
    /// The mean of the parts of true and of false claims that it told right, each judged by a threshold from the others.
    pub accuracy: f64,
    /// The number of claims that it answered.
    pub answered: usize,
    /// The number of claims.
    pub claims: usize,
}

impl Calibration {
    /// Reads the replies to the questions of the probe, each with the number of its question.
    pub fn of_replies(model: &str, form: Form, replies: &[(usize, Reply)]) -> Self {
        let probes = read_probes();
        let questions = questions_about(&probes, form);
        let mut answers = Vec::new();
        for (number, reply) in replies {
            let Some(question) = questions.get(*number) else { continue };
            let judgements = read_reply(form, question.statements.len(), reply);
            let read = question.statements.iter().zip(judgements);
            answers.extend(read.filter_map(|(at, judgement)| {
                Some((judgement?.likelihood()?, probes.get(*at)?.is_supported))
            }));
        }
        Self::fit(model, form, &answers, probes.len())
    }

    /// Fits the threshold to the probabilities of the probe's claims, each with its known answer. `claims` counts those without
    /// an answer too.
    pub fn fit(model: &str, form: Form, answers: &[(f64, bool)], claims: usize) -> Self {
        let judge_other = |at: usize| {
            let others: Vec<(f64, bool)> = answers
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, answer)| *answer)
                .collect();
            let (probability, is_supported) = answers[at];
            (probability >= fit_threshold(&others)) == is_supported
        };
        let share = |kind: bool| {
            let own = || (0..answers.len()).filter(|at| answers[*at].1 == kind);
            let right = own().filter(|at| judge_other(*at)).count();
            // A claim without an answer counts as wrong.
            right as f64 / (claims as f64 / 2.0).max(own().count() as f64).max(1.0)
        };
        let accuracy = f64::midpoint(share(true), share(false));
        let threshold = fit_threshold(answers);
        Self { model: model.to_owned(), form, threshold, accuracy, answered: answers.len(), claims }
    }

    /// `true` if the model's verdicts are believed.
    pub fn is_believed(&self) -> bool {
        self.accuracy >= MIN_ACCURACY
    }

    /// The reason, for a person, that the model is not believed.
    pub fn describe_disbelief(&self, phrases: &Phrases) -> String {
        let percent = (self.accuracy * 100.0).round();
        match self.answered {
            0 => phrases.describe_no_answers(&self.model, self.claims),
            _ => phrases.describe_low_accuracy(&self.model, percent, MIN_ACCURACY * 100.0),
        }
    }
}

/// The threshold with the best balanced accuracy: the one nearest to the middle of those that are equally good.
fn fit_threshold(answers: &[(f64, bool)]) -> f64 {
    let mut values: Vec<f64> = answers.iter().map(|(probability, _)| *probability).collect();
    values.sort_by(f64::total_cmp);
    let between = values.windows(2).filter(|two| two[0] < two[1]).map(|two| f64::midpoint(two[0], two[1]));
    let count = |kind: bool| answers.iter().filter(|(_, known)| *known == kind).count().max(1) as f64;
    let (supported, refuted) = (count(true), count(false));
    let score = |threshold: f64| {
        let right = |kind: bool| {
            answers.iter().filter(|(p, known)| *known == kind && (*p >= threshold) == kind).count()
        };
        right(true) as f64 / supported + right(false) as f64 / refuted
    };
    let nearer = |one: f64, other: f64| (one - MIDDLE).abs().total_cmp(&(other - MIDDLE).abs());
    let best = between
        .chain([MIDDLE])
        .max_by(|one, other| score(*one).total_cmp(&score(*other)).then_with(|| nearer(*other, *one)));
    best.unwrap_or(MIDDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_half_true_and_half_false() {
        let all = read_probes();
        assert_eq!(all.len(), 32);
        assert_eq!(all.iter().filter(|probe| probe.is_supported).count(), 16);
    }

    #[test]
    fn threshold_follows_the_probe() {
        let answers: Vec<(f64, bool)> =
            (0..32).map(|at| (if at % 2 == 0 { 0.2 } else { 0.05 }, at % 2 == 0)).collect();
        let calibration = Calibration::fit("m", Form::Single, &answers, 32);
        assert!(calibration.is_believed() && (0.05..0.2).contains(&calibration.threshold), "{calibration:?}");
    }

    #[test]
    fn model_that_always_says_no_is_not_believed() {
        let answers: Vec<(f64, bool)> = (0..32).map(|at| (0.0, at % 2 == 0)).collect();
        assert!(!Calibration::fit("m", Form::Single, &answers, 32).is_believed());
        assert!(!Calibration::fit("m", Form::Single, &[], 32).is_believed());
        let few: Vec<(f64, bool)> = (0..8).map(|at| (f64::from(at % 2), at % 2 == 1)).collect();
        assert!(!Calibration::fit("m", Form::Single, &few, 32).is_believed(), "most claims have no answer");
    }
}
