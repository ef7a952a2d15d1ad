//! The samples of an evaluation: the selected items, by configuration, number and method, each with the fingerprint of
//! everything that determines its outcome. Pure.

use std::collections::BTreeMap;

use millrace_agent::corpus::Corpus;
use millrace_strict_yaml::did_you_mean_hint;

use super::input::file::Configuration;
use super::item::EvaluationItem;
use super::setup::{ConfigurationSetup, SampleConditions, hash_hex};
use super::store::{SampleKey, SampleMethod};
use crate::exit::CommandError;

#[derive(Debug, Clone)]
pub struct SampleJob<'a, T> {
    /// Its identity.
    pub key: SampleKey,
    pub item: &'a T,
}

/// Selects items by their ids, or all, and from these a part of a fixed size that `seed` determines: as many of each file as far as
/// they reach, and with the same ids if the files have the same ones. They keep the order of the files. A part has about the same items
/// when others are added to the file.
pub fn select_items<'a, T: EvaluationItem>(
    items: &'a [T],
    only: &[String],
    limit: Option<usize>,
    seed: u64,
) -> Result<Vec<&'a T>, CommandError> {
    if let Some(unknown) = only.iter().find(|id| items.iter().all(|one| one.id().as_str() != **id)) {
        let hint = did_you_mean_hint(unknown, items.iter().map(|one| one.id().as_str()));
        return Err(refused!("--only: there is no {} {unknown:?} in the file{hint}", T::NOUN));
    }
    let is_named = |one: &&T| only.is_empty() || only.iter().any(|id| id == one.id().as_str());
    let selected: Vec<&T> = items.iter().filter(is_named).collect();
    let Some(limit) = limit.filter(|limit| *limit < selected.len()) else { return Ok(selected) };
    let mut by_file: BTreeMap<&str, Vec<(String, usize)>> = BTreeMap::new();
    for (at, one) in selected.iter().enumerate() {
        let rank = hash_hex(&[&seed.to_string(), &one.origin().id]);
        by_file.entry(&one.origin().file).or_default().push((rank, at));
    }
    by_file.values_mut().for_each(|ranked| ranked.sort());
    let in_turn = by_file.values().flat_map(|ranked| ranked.iter().enumerate());
    let mut in_turn: Vec<(usize, usize)> = in_turn.map(|(turn, (_, at))| (turn, *at)).collect();
    in_turn.sort();
    let mut chosen: Vec<usize> = in_turn.into_iter().take(limit).map(|(_, at)| at).collect();
    chosen.sort();
    Ok(chosen.into_iter().map(|at| selected[at]).collect())
}

/// Returns the samples of a configuration that are measured in one way.
pub fn list_samples<'a, T: EvaluationItem>(
    configuration: &Configuration,
    setup: &ConfigurationSetup,
    items: &[&'a T],
    method: SampleMethod,
    conditions: &SampleConditions,
    corpus: &Corpus,
) -> Vec<SampleJob<'a, T>> {
    let setup = setup.fingerprint(method);
    let measured: Vec<&'a T> = items.iter().copied().filter(|item| item.is_measured_by(method)).collect();
    let fingerprints = measured.iter().map(|item| {
        let own = item.fingerprint_parts(method, conditions, corpus);
        let timeout = format!("{:?}", conditions.timeout);
        let shared = [env!("CARGO_PKG_VERSION"), setup, &timeout];
        let parts: Vec<&str> = shared.into_iter().chain(own.iter().map(String::as_str)).collect();
        hash_hex(&parts)
    });
    let fingerprints: Vec<String> = fingerprints.collect();
    let job = |sample: u32, item: &'a T, fingerprint: &String| SampleJob {
        key: SampleKey {
            configuration: configuration.name.to_string(),
            objective: item.id().to_string(),
            sample,
            method,
            fingerprint: fingerprint.clone(),
        },
        item,
    };
    let numbers = 1..=conditions.samples;
    let of_number =
        |sample| measured.iter().zip(&fingerprints).map(move |(item, own)| job(sample, item, own));
    numbers.flat_map(of_number).collect()
}
