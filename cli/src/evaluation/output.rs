//! Prints the scores of configurations: the table, or a JSON object for each configuration and method.

use super::score::answers::AnswerSums;
use super::score::claims::ClaimSums;
use super::score::table::{TableColumn, table_lines};
use super::score::{ConfigurationScores, MethodScore};
use super::store::SampleMethod;
use crate::json::{EvaluationClaimsJson, EvaluationConfigurationJson, print_json};
use crate::view::print_stdout_line;

/// Prints the scores of objectives.
pub fn print_answer_scores(scores: &[ConfigurationScores<AnswerSums>], is_json: bool) {
    if !is_json {
        print_table(scores, MethodScore::<AnswerSums>::rows);
        for one in scores {
            if let Some(share) = one.share_of_ceiling() {
                let name = &one.name;
                print_stdout_line(&format!("{name}: {share} of the facts that the model finds alone"));
            }
        }
        return;
    }
    for one in scores {
        for (method, score) in &one.methods {
            let share = one.share_of_ceiling().filter(|_| method.is_main());
            print_json(&EvaluationConfigurationJson::new(&one.name, *method, score, share));
        }
    }
}

/// Prints the scores of claims.
pub fn print_claim_scores(scores: &[ConfigurationScores<ClaimSums>], is_json: bool) {
    if !is_json {
        return print_table(scores, MethodScore::<ClaimSums>::rows);
    }
    for one in scores {
        for (method, score) in &one.methods {
            print_json(&EvaluationClaimsJson::new(&one.name, *method, score));
        }
    }
}

fn print_table<S>(
    scores: &[ConfigurationScores<S>],
    rows: impl Fn(&MethodScore<S>, SampleMethod) -> Vec<(String, String)>,
) {
    let column = |name: &str, (method, score): &(SampleMethod, MethodScore<S>)| TableColumn {
        configuration: name.to_owned(),
        method: *method,
        rows: rows(score, *method),
    };
    let columns: Vec<TableColumn> =
        scores.iter().flat_map(|one| one.methods.iter().map(|method| column(&one.name, method))).collect();
    table_lines(&columns).iter().for_each(|line| print_stdout_line(line));
}
