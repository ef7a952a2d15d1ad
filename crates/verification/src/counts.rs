//! The numbers of a text's statements, by verdict and finder.

use std::collections::BTreeMap;

use millrace_protocol::result::{Finder, StatementVerdict, TaskResult, VerifiedStatement};
use serde::{Deserialize, Serialize};

/// The counts of a text's statements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct VerificationCounts {
    /// All of them, those that were taken out too.
    pub statements: u32,
    /// Those that the sources say.
    pub supported: u32,
    /// Of these, those that are quotations.
    pub by_quotation: u32,
    /// Of these, those that a model called so, by model.
    pub by_model: BTreeMap<String, u32>,
    /// The model that wrote the text, if it also called statements so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Those that the sources say in part.
    pub partly: u32,
    /// Those whose opposite the sources say.
    pub contradicted: u32,
    /// Those that the sources do not say.
    pub unsupported: u32,
    /// Those without a judgement.
    pub unverified: u32,
    /// Those that were taken out of the text.
    pub removed: u32,
}

impl VerificationCounts {
    /// Counts the statements of a result.
    pub fn of_result(result: &TaskResult) -> Self {
        let counts = Self::of(&result.statements);
        let author = result.author.clone().filter(|author| counts.by_model.contains_key(author));
        Self { author, ..counts }
    }

    /// Counts the statements of a text.
    pub fn of(statements: &[VerifiedStatement]) -> Self {
        let mut counts = Self::default();
        for one in statements {
            counts.statements += 1;
            counts.removed += u32::from(one.removed);
            match one.verdict {
                StatementVerdict::Supported => {
                    counts.supported += 1;
                    match &one.found_by {
                        Some(Finder::Quotation) => counts.by_quotation += 1,
                        Some(Finder::Model(name)) => *counts.by_model.entry(name.clone()).or_default() += 1,
                        Some(Finder::Figure) | None => {}
                    }
                }
                StatementVerdict::Partly => counts.partly += 1,
                StatementVerdict::Contradicted => counts.contradicted += 1,
                StatementVerdict::Unsupported => counts.unsupported += 1,
                StatementVerdict::Unverified => counts.unverified += 1,
            }
        }
        counts
    }

    /// The part of the statements that are verified, from 0 to 1; 1 for a text without statements.
    pub fn share(&self) -> f64 {
        if self.statements == 0 { 1.0 } else { f64::from(self.supported) / f64::from(self.statements) }
    }
}

impl std::fmt::Display for VerificationCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.statements == 0 {
            return write!(f, "no statements to verify");
        }
        let noun = if self.statements == 1 { "statement" } else { "statements" };
        write!(f, "{} of {} {noun} verified", self.supported, self.statements)?;
        let quoted = (self.by_quotation > 0).then(|| format!("{} by quotation", self.by_quotation));
        let judged = self.by_model.iter().map(|(name, count)| match self.author.as_ref() {
            Some(author) if author == name => format!("{count} by model {name}, which also wrote the text"),
            _ => format!("{count} by model {name}"),
        });
        let found: Vec<String> = quoted.into_iter().chain(judged).collect();
        if !found.is_empty() {
            write!(f, " ({})", found.join(", "))?;
        }
        let others = [
            (self.partly, "in part"),
            (self.contradicted, "contradicted"),
            (self.unsupported, "not supported"),
            (self.unverified, "not verified"),
            (self.removed, "removed"),
        ];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}
