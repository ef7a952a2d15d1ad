//! Evaluations: objectives with expected facts, or questions with answers, are run over a folder of documents, and claims are verified
//! with their evidence, by one or more configurations of models and capability files, several times each.
//!
//! | file | |
//! |---|---|
//! | `input` | the files: objectives, questions, claims |
//! | `item` | the items of an evaluation: objectives and claims |
//! | `setup` | what determines the samples of a configuration: models, capability files, settings |
//! | `environment` | the variables among these settings |
//! | `wording` | comparison of texts: numbers, units, dates |
//! | `selection` | the selected samples, and their fingerprints |
//! | `store` | the results folder |
//! | `measurement` | what the results lack, measured in parallel |
//! | `cluster` | samples as runs on a cluster, with the web pages that they cite |
//! | `ceiling` | samples of the model alone |
//! | `verification` | samples of claims |
//! | `invention` | figures that an answer invents |
//! | `score` | scores and sums, and their table |
//! | `output` | the printed scores |
//!
//! # Invariants
//!
//! - I85: An evaluation that was killed continues: its ended samples are not measured again, and its runs in progress repeat no
//!   model call. (`cli/tests/eval.rs::a_killed_evaluation_continues_its_runs`)

mod ceiling;
mod cluster;
pub mod environment;
pub mod input;
mod invention;
pub mod item;
pub mod measurement;
pub mod output;
pub mod score;
pub mod selection;
pub mod setup;
pub mod store;
mod verification;
pub mod wording;

#[cfg(test)]
mod tests;
