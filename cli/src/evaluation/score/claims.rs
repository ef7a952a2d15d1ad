//! Scores verdicts on claims against their labels, and sums them up. Pure.

use std::collections::BTreeMap;

use millrace_protocol::result::{Finder, StatementVerdict, VerifiedStatement};
use schemars::JsonSchema;
use serde::Serialize;

use super::MethodScore;
use super::share::{Share, balance, format_interval};
use crate::evaluation::input::claims::{Claim, ClaimLabel};
use crate::evaluation::store::{SampleMethod, SampleRecord};

/// The kind of the finder of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeciderKind {
    /// The words are in the evidence, or are not.
    Quotation,
    /// The evidence does not have one of its figures.
    Figure,
    /// A model.
    Model,
    /// There is no judgement.
    None,
}

impl DeciderKind {
    /// All kinds.
    const ALL: [Self; 4] = [Self::Quotation, Self::Figure, Self::Model, Self::None];

    fn of(finder: Option<&Finder>) -> Self {
        match finder {
            Some(Finder::Quotation) => Self::Quotation,
            Some(Finder::Figure) => Self::Figure,
            Some(Finder::Model(_)) => Self::Model,
            None => Self::None,
        }
    }

    fn row(self) -> &'static str {
        match self {
            Self::Quotation => "right by quotation",
            Self::Figure => "right by figure",
            Self::Model => "right by model",
            Self::None => "right without judgement",
        }
    }
}

/// The score of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimSample {
    pub label: ClaimLabel,
    /// The verdict on the whole claim: the worst one on its statements.
    pub verdict: StatementVerdict,
    pub decider: DeciderKind,
    /// The probability that it is supported: the least one of its statements; `None` if the model of one gives none.
    pub probability: Option<f64>,
    pub statements: u32,
}

impl ClaimSample {
    pub fn new(claim: &Claim, record: &SampleRecord) -> Self {
        let worst = record.statements.iter().min_by_key(|one| rank(one.verdict));
        let probabilities: Option<Vec<f64>> = record.statements.iter().map(probability_of).collect();
        Self {
            label: claim.label,
            verdict: worst.map_or(StatementVerdict::Unverified, |one| one.verdict),
            decider: DeciderKind::of(worst.and_then(|one| one.found_by.as_ref())),
            probability: probabilities.and_then(|all| all.into_iter().min_by(f64::total_cmp)),
            statements: u32::try_from(record.statements.len()).unwrap_or(u32::MAX),
        }
    }

    /// `true` if it is labelled as supported.
    fn is_true(&self) -> bool {
        self.label == ClaimLabel::Supported
    }

    /// `true` if the verdict agrees with the label: a claim that is supported in part is not supported.
    pub fn is_right(&self) -> bool {
        self.is_true() == (self.verdict == StatementVerdict::Supported)
    }

    /// The score in a few words.
    pub fn describe(&self) -> Vec<String> {
        let outcome = if self.is_right() { "right" } else { "wrong" };
        vec![format!("{outcome}: labelled {}, {}", self.label.name(), self.verdict.name())]
    }
}

/// The order of verdicts, the one that decides about a claim first.
fn rank(verdict: StatementVerdict) -> u8 {
    match verdict {
        StatementVerdict::Contradicted => 0,
        StatementVerdict::Unsupported => 1,
        StatementVerdict::Unverified => 2,
        StatementVerdict::Partly => 3,
        StatementVerdict::Supported => 4,
    }
}

/// The probability that a statement is supported: that of its model, or 0 or 1 by code.
fn probability_of(one: &VerifiedStatement) -> Option<f64> {
    match &one.found_by {
        Some(Finder::Quotation | Finder::Figure) => {
            Some(if one.verdict == StatementVerdict::Supported { 1.0 } else { 0.0 })
        }
        Some(Finder::Model(_)) => one.probability,
        None => None,
    }
}

/// The sums of claims.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimSums {
    samples: Vec<ClaimSample>,
    /// The outcome of the verifier's probe, for a person.
    pub probe: Option<String>,
}

impl ClaimSums {
    /// Scores a sample and adds it.
    pub fn add(&mut self, claim: &Claim, record: &SampleRecord) -> ClaimSample {
        let sample = ClaimSample::new(claim, record);
        self.samples.push(sample.clone());
        sample
    }

    pub fn statements(&self) -> u32 {
        self.samples.iter().map(|one| one.statements).sum()
    }

    /// The claims of one kind whose verdict is right: those that are labelled as supported, or the others.
    pub fn recall(&self, is_true: bool) -> Share {
        self.share_of(|one| one.is_true() == is_true)
    }

    /// The mean of both recalls, and its interval.
    pub fn balanced_accuracy(&self) -> Option<(f64, (f64, f64))> {
        balance(self.recall(true), self.recall(false))
    }

    /// The right verdicts by decider, those that decided something.
    pub fn by_decider(&self) -> Vec<(DeciderKind, Share)> {
        let share = |kind: DeciderKind| (kind, self.share_of(|one| one.decider == kind));
        DeciderKind::ALL.into_iter().map(share).filter(|(_, share)| share.whole > 0).collect()
    }

    fn share_of(&self, is_counted: impl Fn(&ClaimSample) -> bool) -> Share {
        let mut share = Share::default();
        self.samples.iter().filter(|one| is_counted(one)).for_each(|one| share.count(one.is_right()));
        share
    }

    /// The numbers of claims by label and verdict.
    pub fn counts(&self) -> BTreeMap<(ClaimLabel, StatementVerdict), u32> {
        let mut counts = BTreeMap::new();
        for one in &self.samples {
            *counts.entry((one.label, one.verdict)).or_default() += 1;
        }
        counts
    }

    /// The area under the ROC curve of the probabilities: the part of the pairs of a true and another claim in which the true one has the
    /// larger one. `None` without a probability of a model, or without claims of both kinds.
    pub fn area_under_curve(&self) -> Option<f64> {
        let of_kind = |is_true: bool| -> Vec<f64> {
            let own = self.samples.iter().filter(|one| one.is_true() == is_true);
            own.filter_map(|one| one.probability).collect()
        };
        let (supported, others) = (of_kind(true), of_kind(false));
        let is_by_model = |one: &ClaimSample| one.decider == DeciderKind::Model && one.probability.is_some();
        if supported.is_empty() || others.is_empty() || !self.samples.iter().any(is_by_model) {
            return None;
        }
        let points = |one: f64, other: f64| match one.total_cmp(&other) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        };
        let sum: f64 = supported.iter().flat_map(|one| others.iter().map(|other| points(*one, *other))).sum();
        Some(sum / (supported.len() * others.len()) as f64)
    }
}

impl MethodScore<ClaimSums> {
    /// The rows of the table.
    pub fn rows(&self, method: SampleMethod) -> Vec<(String, String)> {
        let sums = &self.sums;
        let accuracy = sums.balanced_accuracy().map_or_else(
            || "-".to_owned(),
            |(mean, interval)| format!("{:.1}% ({})", mean * 100.0, format_interval(interval, 1)),
        );
        let area = sums.area_under_curve().map_or_else(|| "-".to_owned(), |area| format!("{area:.2}"));
        let row = |name: &str, value: String| (name.to_owned(), value);
        let mut rows = vec![
            row("claims", self.samples_cell()),
            row("statements", sums.statements().to_string()),
            row("balanced accuracy", accuracy),
            row("supported ones recognised", sums.recall(true).with_interval()),
            row("others recognised", sums.recall(false).with_interval()),
            row("AUC", area),
        ];
        let counts = sums.counts();
        for label in ClaimLabel::ALL {
            let own = counts.iter().filter(|((one, _), _)| *one == label);
            let cells: Vec<String> =
                own.map(|((_, verdict), count)| format!("{count} {}", verdict.name())).collect();
            if !cells.is_empty() {
                rows.push((format!("labelled {}", label.name()), cells.join(", ")));
            }
        }
        if method == SampleMethod::Verification {
            let right = sums.by_decider();
            rows.extend(right.into_iter().map(|(kind, share)| row(kind.row(), share.with_interval())));
            rows.extend(sums.probe.iter().map(|probe| row("probe", probe.clone())));
        }
        let usage = self.usage_rows("/statement", sums.statements());
        rows.into_iter().chain(usage).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_protocol::result::Usage;

    use super::*;
    use crate::evaluation::input::file::EntryName;

    fn claim(label: ClaimLabel) -> Claim {
        Claim {
            id: EntryName::from_any_text("line-1"),
            text: "The mill is old.".into(),
            evidence: vec!["It is.".into()],
            label,
            origin: Default::default(),
        }
    }

    fn statement(
        verdict: StatementVerdict,
        found_by: Option<Finder>,
        probability: Option<f64>,
    ) -> VerifiedStatement {
        VerifiedStatement {
            text: "The mill is old.".into(),
            start: 0,
            end: 16,
            verdict,
            lines: Vec::new(),
            found_by,
            reason: String::new(),
            probability,
            removed: false,
        }
    }

    fn record(statements: Vec<VerifiedStatement>) -> SampleRecord {
        let record = SampleRecord::of_model(None, String::new(), Usage::default(), Duration::ZERO);
        SampleRecord { statements, ..record }
    }

    fn model(probability: f64) -> VerifiedStatement {
        let verdict =
            if probability >= 0.5 { StatementVerdict::Supported } else { StatementVerdict::Unsupported };
        statement(verdict, Some(Finder::Model("m".into())), Some(probability))
    }

    #[test]
    fn claim_is_as_good_as_its_worst_statement() {
        let score = |statements| ClaimSample::new(&claim(ClaimLabel::Supported), &record(statements));
        let quoted = || statement(StatementVerdict::Supported, Some(Finder::Quotation), None);
        assert!(score(vec![quoted(), model(0.9)]).is_right());
        let mixed = score(vec![quoted(), model(0.2)]);
        assert_eq!((mixed.verdict, mixed.decider), (StatementVerdict::Unsupported, DeciderKind::Model));
        assert_eq!(mixed.probability, Some(0.2));
        let open = score(vec![quoted(), statement(StatementVerdict::Unverified, None, None)]);
        assert!(!open.is_right() && open.probability.is_none());
        assert_eq!(score(Vec::new()).verdict, StatementVerdict::Unverified, "it claims nothing");
    }

    #[test]
    fn sums_have_recalls_deciders_and_the_area() {
        let mut score = MethodScore::<ClaimSums> { selected: 5, ..MethodScore::default() };
        for (label, probability) in [
            (ClaimLabel::Supported, 0.9),
            (ClaimLabel::Supported, 0.4),
            (ClaimLabel::PartiallySupported, 0.6),
            (ClaimLabel::NotSupported, 0.1),
        ] {
            score.sums.add(&claim(label), &record(vec![model(probability)]));
        }
        let figure = statement(StatementVerdict::Unsupported, Some(Finder::Figure), None);
        score.sums.add(&claim(ClaimLabel::NotSupported), &record(vec![figure]));
        let sums = &score.sums;
        assert_eq!((sums.recall(true), sums.recall(false)), (Share::new(1, 2), Share::new(2, 3)));
        assert!((sums.balanced_accuracy().unwrap().0 - 7.0 / 12.0).abs() < 1e-9);
        // Of six pairs, only 0.4 and 0.6 stand in the wrong order.
        assert!((sums.area_under_curve().unwrap() - 5.0 / 6.0).abs() < 1e-9);
        assert_eq!(
            sums.by_decider(),
            [(DeciderKind::Figure, Share::new(1, 1)), (DeciderKind::Model, Share::new(2, 4))]
        );
        let rows = score.rows(SampleMethod::Verification);
        let value = |name: &str| rows.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
        assert_eq!(value("labelled not supported"), Some("2 not supported"));
        assert_eq!(value("right by figure"), Some("1 of 1 (100%, 21–100%)"));
        assert!(value("balanced accuracy").unwrap().starts_with("58.3% ("), "{rows:?}");
    }
}
