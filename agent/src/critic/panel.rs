//! Several models that judge one result, each by itself: when enough of them have spoken, and what they come to
//! together. Pure.

use millrace_protocol::result::{CriterionOutcome, Opinion, Verdict};

/// One judge's word.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judged {
    /// The model.
    pub model: String,
    /// What it says.
    pub verdict: Verdict,
}

/// Judges who speak one after another until it is clear what they come to.
#[derive(Debug)]
pub(crate) struct Bench {
    /// How many there are.
    judges: usize,
    /// How many of them must accept the result.
    quorum: usize,
    judged: Vec<Judged>,
}

impl Bench {
    /// A bench of so many judges, of whom `quorum` must accept; a quorum that can't be is the nearest that can.
    pub fn of(judges: usize, quorum: u32) -> Self {
        let quorum = usize::try_from(quorum).unwrap_or(usize::MAX).clamp(1, judges.max(1));
        Self { judges, quorum, judged: Vec::new() }
    }

    pub fn hear(&mut self, judged: Judged) {
        self.judged.push(judged);
    }

    fn count(&self, passed: bool) -> usize {
        self.judged.iter().filter(|judged| judged.verdict.passed == passed).count()
    }

    /// Whether the result is accepted, once nobody who has not spoken could change that.
    pub fn decision(&self) -> Option<bool> {
        if self.count(true) >= self.quorum {
            return Some(true);
        }
        (self.count(false) > self.judges - self.quorum).then_some(false)
    }

    /// What those who have spoken come to; `None` while that is open.
    pub fn verdict(self) -> Option<Verdict> {
        let passed = self.decision()?;
        let (judges, spoken, quorum) = (self.judges, self.judged.len(), self.quorum);
        let same: Vec<&Judged> =
            self.judged.iter().filter(|judged| judged.verdict.passed == passed).collect();
        if let ([only], 1) = (self.judged.as_slice(), judges) {
            return Some(only.verdict.clone());
        }
        let said = |judged: &&Judged| format!("{}: {}", judged.model, judged.verdict.reasoning);
        let accepted = self.count(true);
        let head = format!(
            "{accepted} of the {spoken} models that were asked accept it; {quorum} of {judges} must."
        );
        let reasons: Vec<String> = std::iter::once(head).chain(same.iter().map(said)).collect();
        let feedback: Vec<&str> =
            same.iter().filter_map(|judged| judged.verdict.feedback.as_deref()).collect();
        Some(Verdict {
            passed,
            criteria: self.criteria(passed),
            reasoning: reasons.join("\n"),
            feedback: (!passed).then(|| feedback.join("\n")),
            confidence: mean(same.iter().filter_map(|judged| judged.verdict.confidence)),
            opinions: self.judged.iter().map(opinion).collect(),
            ..Verdict::default()
        })
    }

    /// Every criterion that somebody speaks of. One is met unless more deny it than the quorum can do without; where
    /// they reject a result for a different reason each, what any of them denies is not met.
    fn criteria(&self, passed: bool) -> Vec<CriterionOutcome> {
        let most = self.judges - self.quorum;
        let merged = self.merged(most);
        if passed || merged.iter().any(|outcome| !outcome.met) { merged } else { self.merged(0) }
    }

    fn merged(&self, most_denials: usize) -> Vec<CriterionOutcome> {
        let mut names: Vec<&str> = Vec::new();
        for outcome in self.outcomes() {
            if !names.contains(&outcome.criterion.as_str()) {
                names.push(&outcome.criterion);
            }
        }
        let merge = |name: &str| {
            let denials = || self.outcomes().filter(|outcome| outcome.criterion == name && !outcome.met);
            let met = denials().count() <= most_denials;
            let gaps: Vec<&str> = denials().filter_map(|outcome| outcome.gap.as_deref()).collect();
            let gap = (!met && !gaps.is_empty()).then(|| gaps.join(" "));
            CriterionOutcome { criterion: name.to_owned(), met, gap }
        };
        names.into_iter().map(merge).collect()
    }

    fn outcomes(&self) -> impl Iterator<Item = &CriterionOutcome> {
        self.judged.iter().flat_map(|judged| &judged.verdict.criteria)
    }
}

fn opinion(judged: &Judged) -> Opinion {
    Opinion {
        model: judged.model.clone(),
        passed: judged.verdict.passed,
        reasoning: judged.verdict.reasoning.clone(),
        confidence: judged.verdict.confidence,
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), number| (sum + number, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A judge who finds these criteria met or not.
    fn judged(model: &str, met: [bool; 2]) -> Judged {
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
        Judged { model: model.into(), verdict }
    }

    #[test]
    fn it_is_decided_as_soon_as_nobody_can_change_it() {
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
            let mut bench = Bench::of(judges, quorum);
            spoken.iter().for_each(|met| bench.hear(judged("m", *met)));
            assert_eq!(bench.decision(), expected, "{judges} {quorum} {spoken:?}");
        }
    }

    #[test]
    fn whatever_judges_say_their_verdict_never_contradicts_itself() {
        let mets = [[true, true], [false, true], [true, false], [false, false]];
        for (judges, combinations) in [(1, 4_usize), (2, 16), (3, 64)] {
            for (combination, quorum) in (0..combinations).flat_map(|one| (1..=judges).map(move |q| (one, q)))
            {
                let mut bench = Bench::of(judges as usize, quorum);
                let mut choices = (0..judges).map(|at| mets[(combination >> (2 * at)) % 4]);
                while bench.decision().is_none() {
                    bench.hear(judged("m", choices.next().expect("all have spoken, and nothing is decided")));
                }
                let verdict = bench.verdict().unwrap();
                assert_eq!(verdict.inconsistency(), None, "{judges} {quorum} {combination}: {verdict:?}");
                assert_eq!(verdict.feedback.is_some(), !verdict.passed);
            }
        }
    }

    #[test]
    fn reasons_and_feedback_are_those_of_the_judges_who_reject() {
        let mut bench = Bench::of(3, 2);
        for (model, met) in [("a", [true, false]), ("b", [true, true]), ("c", [false, true])] {
            bench.hear(judged(model, met));
        }
        let verdict = bench.verdict().unwrap();
        assert!(!verdict.passed);
        assert_eq!(verdict.feedback.as_deref(), Some("feedback of a\nfeedback of c"));
        assert_eq!(
            verdict.reasoning,
            "1 of the 3 models that were asked accept it; 2 of 3 must.\na: reasons of a\nc: reasons of c"
        );
        assert_eq!(verdict.criteria.iter().filter(|outcome| !outcome.met).count(), 2);
        assert_eq!(verdict.criteria[0].gap.as_deref(), Some("c finds it is not short."));
        let models: Vec<(&str, bool)> =
            verdict.opinions.iter().map(|opinion| (opinion.model.as_str(), opinion.passed)).collect();
        assert_eq!(models, [("a", false), ("b", true), ("c", false)]);
        assert_eq!(verdict.confidence, Some(1.0));
    }
}
