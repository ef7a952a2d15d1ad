//! Evaluations: a file of objectives with expected facts is run over a folder of documents, by one or more configurations
//! of models and capability files, several times each.
//!
//! | file | |
//! |---|---|
//! | `file` | the evaluation file |
//! | `schema` | its JSON Schema |
//! | `wording` | comparison of texts: numbers, units, dates |
//! | `selection` | the selected samples, and their fingerprints |
//! | `store` | the results folder |
//! | `cluster` | samples as runs on a cluster |
//! | `ceiling` | samples of the model alone |
//! | `score` | scores and sums |
//! | `table` | the table for people |

pub mod ceiling;
pub mod cluster;
pub mod file;
pub mod schema;
pub mod score;
pub mod selection;
pub mod store;
pub mod table;
mod wording;

#[cfg(test)]
mod tests;
