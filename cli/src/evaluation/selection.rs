//! The samples of an evaluation: the selected objectives, by configuration, number and method, each with the fingerprint of
//! everything that determines its outcome. Pure.

use std::time::Duration;

use millrace_agent::corpus::Corpus;
use millrace_protocol::plan::Budget;
use millrace_strict_yaml::did_you_mean_hint;

use super::file::{Configuration, Objective};
use super::setup::{ConfigurationSetup, hash_hex};
use super::store::{SampleKey, SampleMethod};
use crate::exit::CommandError;

/// The conditions that all samples of an evaluation share.
#[derive(Debug, Clone)]
pub struct SampleConditions {
    /// The number of samples of each objective.
    pub samples: u32,
    /// The time limit of a sample.
    pub timeout: Duration,
    pub budget: Budget,
}

#[derive(Debug, Clone)]
pub struct SampleJob<'a> {
    /// Its identity.
    pub key: SampleKey,
    pub objective: &'a Objective,
}

/// Selects objectives by their ids, or all, and from these a part of a fixed size that `seed` determines. They keep the
/// order of the file. A part has about the same objectives when others are added to the file.
pub fn select_objectives<'a>(
    objectives: &'a [Objective],
    only: &[String],
    limit: Option<usize>,
    seed: u64,
) -> Result<Vec<&'a Objective>, CommandError> {
    if let Some(unknown) = only.iter().find(|id| objectives.iter().all(|one| one.id.as_str() != **id)) {
        let hint = did_you_mean_hint(unknown, objectives.iter().map(|one| one.id.as_str()));
        return Err(refused!("--only: there is no objective {unknown:?} in the file{hint}"));
    }
    let selected =
        objectives.iter().filter(|one| only.is_empty() || only.iter().any(|id| id == one.id.as_str()));
    let mut ranked: Vec<(usize, String, &Objective)> = selected
        .enumerate()
        .map(|(at, one)| (at, hash_hex(&[&seed.to_string(), one.id.as_str()]), one))
        .collect();
    if let Some(limit) = limit {
        ranked.sort_by(|a, b| a.1.cmp(&b.1));
        ranked.truncate(limit);
        ranked.sort_by_key(|(at, _, _)| *at);
    }
    Ok(ranked.into_iter().map(|(_, _, one)| one).collect())
}

/// Returns the samples of a configuration that are measured in one way. The ceiling is measured for objectives that have
/// facts.
pub fn list_samples<'a>(
    configuration: &Configuration,
    setup: &ConfigurationSetup,
    objectives: &[&'a Objective],
    method: SampleMethod,
    conditions: &SampleConditions,
    corpus: &Corpus,
) -> Vec<SampleJob<'a>> {
    let setup = setup.fingerprint(method);
    let mut jobs = Vec::new();
    for sample in 1..=conditions.samples {
        for objective in objectives {
            if method == SampleMethod::Ceiling && !objective.is_answerable() {
                continue;
            }
            let fingerprint = sample_fingerprint(setup, objective, method, conditions, corpus);
            let key = SampleKey {
                configuration: configuration.name.to_string(),
                objective: objective.id.to_string(),
                sample,
                method,
                fingerprint,
            };
            jobs.push(SampleJob { key, objective });
        }
    }
    jobs
}

fn sample_fingerprint(
    setup: &str,
    objective: &Objective,
    method: SampleMethod,
    conditions: &SampleConditions,
    corpus: &Corpus,
) -> String {
    let documents = corpus.documents().iter();
    let budget = serde_json::to_string(&conditions.budget).expect("a budget can be serialized");
    let (method, documents, budget) = match method {
        SampleMethod::Run => {
            let key = Corpus::cache_key(documents.map(|one| (one.path.as_str(), one.sha256.as_str())));
            ("run", key, budget)
        }
        SampleMethod::Ceiling => {
            let named = documents.filter(|one| objective.documents.contains(&one.path));
            let key = Corpus::cache_key(named.map(|one| (one.path.as_str(), one.sha256.as_str())));
            ("ceiling", key, String::new())
        }
    };
    let timeout = format!("{:?}", conditions.timeout);
    let version = env!("CARGO_PKG_VERSION");
    hash_hex(&[version, setup, &objective.text, method, &documents, &budget, &timeout])
}
