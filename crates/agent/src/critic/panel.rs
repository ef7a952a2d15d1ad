//! Several models that judge one result independently: when the outcome is decided, and the combined verdict. Pure.

use millrace_protocol::result::{CriterionOutcome, JudgeOpinion, Verdict};

/// One model's verdict.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelVerdict {
    pub model: String,
    pub verdict: Verdict,
}

/// Models that judge one after another until the outcome is decided.
#[derive(Debug)]
pub(crate) struct ReviewPanel {
    /// The number of judges.
    judges: usize,
    /// The number of judges who must accept the result.
    quorum: usize,
    judged: Vec<ModelVerdict>,
}

impl ReviewPanel {
    /// A panel of `judges` models. `quorum` is the number that must accept, clamped to `1..=judges`.
    pub fn new(judges: usize, quorum: u32) -> Self {
        let quorum = usize::try_from(quorum).unwrap_or(usize::MAX).clamp(1, judges.max(1));
        Self { judges, quorum, judged: Vec::new() }
    }

    pub fn add_verdict(&mut self, judged: ModelVerdict) {
        self.judged.push(judged);
    }

    fn count_verdicts(&self, passed: bool) -> usize {
        self.judged.iter().filter(|judged| judged.verdict.passed == passed).count()
    }

    /// Returns `true` for acceptance, once the remaining judges can't change the outcome.
    pub fn majority_decision(&self) -> Option<bool> {
        if self.count_verdicts(true) >= self.quorum {
            return Some(true);
        }
        (self.count_verdicts(false) > self.judges - self.quorum).then_some(false)
    }

    /// The combined verdict; `None` while undecided.
    pub fn into_verdict(self) -> Option<Verdict> {
        let passed = self.majority_decision()?;
        let (judges, responded, quorum) = (self.judges, self.judged.len(), self.quorum);
        let same: Vec<&ModelVerdict> =
            self.judged.iter().filter(|judged| judged.verdict.passed == passed).collect();
        if let ([only], 1) = (self.judged.as_slice(), judges) {
            return Some(only.verdict.clone());
        }
        let reasons_of = |judged: &&ModelVerdict| format!("{}: {}", judged.model, judged.verdict.reasoning);
        let accepted = self.count_verdicts(true);
        let head =
            format!("{accepted} of {responded} responding models accept it; {quorum} of {judges} must.");
        let reasons: Vec<String> = std::iter::once(head).chain(same.iter().map(reasons_of)).collect();
        let feedback: Vec<&str> =
            same.iter().filter_map(|judged| judged.verdict.feedback.as_deref()).collect();
        Some(Verdict {
            passed,
            criteria: self.combine_criteria(passed),
            reasoning: reasons.join("\n"),
            feedback: (!passed).then(|| feedback.join("\n")),
            confidence: compute_mean(same.iter().filter_map(|judged| judged.verdict.confidence)),
            opinions: self.judged.iter().map(to_opinion).collect(),
            ..Verdict::default()
        })
    }

    /// The outcome of every criterion that any judge lists. One is met unless more judges deny it than the quorum can
    /// spare; if they reject a result for different reasons each, a criterion that any of them denies is not met.
    fn combine_criteria(&self, passed: bool) -> Vec<CriterionOutcome> {
        let most = self.judges - self.quorum;
        let merged = self.merge_criterion_outcomes(most);
        if passed || merged.iter().any(|outcome| !outcome.met) {
            merged
        } else {
            self.merge_criterion_outcomes(0)
        }
    }

    fn merge_criterion_outcomes(&self, most_denials: usize) -> Vec<CriterionOutcome> {
        let mut names: Vec<&str> = Vec::new();
        for outcome in self.criterion_outcomes() {
            if !names.contains(&outcome.criterion.as_str()) {
                names.push(&outcome.criterion);
            }
        }
        let merge = |name: &str| {
            let denials =
                || self.criterion_outcomes().filter(|outcome| outcome.criterion == name && !outcome.met);
            let met = denials().count() <= most_denials;
            let gaps: Vec<&str> = denials().filter_map(|outcome| outcome.gap.as_deref()).collect();
            let gap = (!met && !gaps.is_empty()).then(|| gaps.join(" "));
            CriterionOutcome { criterion: name.to_owned(), met, gap }
        };
        names.into_iter().map(merge).collect()
    }

    fn criterion_outcomes(&self) -> impl Iterator<Item = &CriterionOutcome> {
        self.judged.iter().flat_map(|judged| &judged.verdict.criteria)
    }
}

fn to_opinion(judged: &ModelVerdict) -> JudgeOpinion {
    JudgeOpinion {
        model: judged.model.clone(),
        passed: judged.verdict.passed,
        reasoning: judged.verdict.reasoning.clone(),
        confidence: judged.verdict.confidence,
    }
}

fn compute_mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), number| (sum + number, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An opinion with these criteria met or not.
    fn model_verdict(model: &str, met: [bool; 2]) -> ModelVerdict {
        let criteria = ["short", "true"].iter().zip(met).map(|(name, met)| CriterionOutcome {
            criterion: (*name).into(),
            met,
            gap: (!met).then(|| format!("{model} finds it is not {name}.")),
        });
        let passed = met == [true, true];
        let verdict = Verdict {
            passed,
            criteria: criteria.collect(),
            reasoning: format!("reasons of {model}"),
            feedback: (!passed).then(|| format!("feedback of {model}")),
            confidence: Some(if passed { 0.5 } else { 1.0 }),
            ..Verdict::default()
        };
        ModelVerdict { model: model.into(), verdict }
    }

    #[test]
    fn the_outcome_is_decided_as_early_as_possible() {
        let (yes, no) = ([true, true], [false, true]);
        for (judges, quorum, spoken, expected) in [
            (3, 2, vec![], None),
            (3, 2, vec![yes], None),
            (3, 2, vec![yes, yes], Some(true)),
            (3, 2, vec![yes, no], None),
            (3, 2, vec![no, no], Some(false)),
            (3, 2, vec![no, yes, yes], Some(true)),
            (3, 3, vec![no], Some(false)),
            (3, 1, vec![yes], Some(true)),
            (3, 1, vec![no, no], None),
            (1, 1, vec![no], Some(false)),
            (2, 9, vec![yes], None),
            (2, 0, vec![yes], Some(true)),
        ] {
            let mut panel = ReviewPanel::new(judges, quorum);
            spoken.iter().for_each(|met| panel.add_verdict(model_verdict("m", *met)));
            assert_eq!(panel.majority_decision(), expected, "{judges} {quorum} {spoken:?}");
        }
    }

    #[test]
    fn a_combined_verdict_is_always_consistent() {
        let mets = [[true, true], [false, true], [true, false], [false, false]];
        for (judges, combinations) in [(1, 4_usize), (2, 16), (3, 64)] {
            for (combination, quorum) in (0..combinations).flat_map(|one| (1..=judges).map(move |q| (one, q)))
            {
                let mut panel = ReviewPanel::new(judges as usize, quorum);
                let mut choices = (0..judges).map(|at| mets[(combination >> (2 * at)) % 4]);
                while panel.majority_decision().is_none() {
                    panel.add_verdict(model_verdict("m", choices.next().expect("a full panel has decided")));
                }
                let verdict = panel.into_verdict().unwrap();
                assert_eq!(
                    verdict.find_inconsistency(),
                    None,
                    "{judges} {quorum} {combination}: {verdict:?}"
                );
                assert_eq!(verdict.feedback.is_some(), !verdict.passed);
            }
        }
    }

    #[test]
    fn a_rejection_has_the_reasons_and_feedback_of_its_judges() {
        let mut panel = ReviewPanel::new(3, 2);
        for (model, met) in [("a", [true, false]), ("b", [true, true]), ("c", [false, true])] {
            panel.add_verdict(model_verdict(model, met));
        }
        let verdict = panel.into_verdict().unwrap();
        assert!(!verdict.passed);
        assert_eq!(verdict.feedback.as_deref(), Some("feedback of a\nfeedback of c"));
        assert_eq!(
            verdict.reasoning,
            "1 of 3 responding models accept it; 2 of 3 must.\na: reasons of a\nc: reasons of c"
        );
        assert_eq!(verdict.criteria.iter().filter(|outcome| !outcome.met).count(), 2);
        assert_eq!(verdict.criteria[0].gap.as_deref(), Some("c finds it is not short."));
        let models: Vec<(&str, bool)> =
            verdict.opinions.iter().map(|opinion| (opinion.model.as_str(), opinion.passed)).collect();
        assert_eq!(models, [("a", false), ("b", true), ("c", false)]);
        assert_eq!(verdict.confidence, Some(1.0));
    }
}
