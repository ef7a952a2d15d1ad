//! Evaluations: a file of objectives with expected facts is run over a folder of documents, by one or more configurations
//! of models and capability files, several times each.
//!
//! | file | |
//! |---|---|
//! | `file` | the evaluation file |
//! | `statement` | the facts that answers should state |
//! | `setup` | what determines the samples of a configuration: models, capability files, settings |
//! | `environment` | the variables among these settings |
//! | `wording` | comparison of texts: numbers, units, dates |
//! | `selection` | the selected samples, and their fingerprints |
//! | `store` | the results folder |
//! | `measurement` | what the results lack, measured in parallel |
//! | `cluster` | samples as runs on a cluster, with the web pages that they cite |
//! | `ceiling` | samples of the model alone |
//! | `score` | scores and sums, and their table |
//!
//! # Invariants
//!
//! - I85: An evaluation that was killed continues: its ended samples are not measured again, and its runs in progress repeat no
//!   model call. (`cli/tests/eval.rs::a_killed_evaluation_continues_its_runs`)

pub mod ceiling;
pub mod cluster;
pub mod environment;
pub mod file;
pub mod measurement;
pub mod score;
pub mod selection;
pub mod setup;
mod statement;
pub mod store;
mod wording;

#[cfg(test)]
mod tests;
