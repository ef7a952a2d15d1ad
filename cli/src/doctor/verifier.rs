//! The check of the model that verifies statements: it is probed with claims whose answers are known.

use millrace_agent::model::{ModelFactory, open_model};
use millrace_agent::session::ModelPreferences;
use millrace_agent::verification::Verifier;
use millrace_local_cluster::folders::worker_cache_folder;
use millrace_protocol::ids::Capability;
use millrace_protocol::result::Usage;
use millrace_protocol::subject::VERIFIER;
use millrace_verification::{Calibration, Form, Phrases};
use millrace_views::CheckResult;

use crate::view::print_stderr_line;

const NAME: &str = "verifier";
const ADVICE: &str = "runs deliver their statements as not verified: choose a stronger model, or one made for it, such as \
                      --model verifier=ollama:bespoke-minicheck; --model verifier=none lets no model verify";

/// Probes the model that `--model verifier=…` names, unless an earlier probe is remembered. `None` if it names none, or one that can't
/// be opened, which the check of all models reports.
pub(super) async fn check_verifier(texts: &[String]) -> Option<CheckResult> {
    let preferences = ModelPreferences::parse(texts.iter().map(String::as_str)).ok()?;
    let selection = preferences.by_capability.get(&Capability::new(VERIFIER).expect("a valid name"))?;
    if !preferences.selections().any(|named| named == selection) {
        return Some(CheckResult::new_ok(NAME, "none: only quotations and figures are verified"));
    }
    let model = open_model(selection, &ModelFactory::default()).ok()?;
    let verifier = Verifier::open(model, Some(worker_cache_folder()));
    let is_remembered = verifier.remembered_calibration().is_some();
    if !is_remembered {
        let name = verifier.model().name();
        print_stderr_line(&format!("millrace: probing {name} with claims whose answers are known"));
    }
    Some(match verifier.recall_or_probe(&mut Usage::default()).await {
        Err(error) => CheckResult::new_warning(
            NAME,
            format!("{} can't be probed: {error}", verifier.model().name()),
            "check its server, its name and its key: until it answers, runs wait for it or deliver their statements as not verified",
        ),
        Ok(calibration) => {
            let found = format!("{}; {}", describe(&calibration), origin(is_remembered));
            match calibration.is_believed() {
                true => CheckResult::new_ok(NAME, found),
                false => CheckResult::new_warning(NAME, found, ADVICE),
            }
        }
    })
}

fn describe(calibration: &Calibration) -> String {
    if !calibration.is_believed() {
        return format!("not believed: {}", calibration.describe_disbelief(Phrases::english()));
    }
    let Calibration { model, form, threshold, accuracy, answered, claims } = calibration;
    let form = match form {
        Form::Single => "one statement a request, answered with Yes or No",
        Form::Several => "several statements a request",
    };
    let percent = (accuracy * 100.0).round();
    format!(
        "believed: {model} told {percent}% of claims with known answers right ({answered} of {claims} answered); threshold \
         {threshold:.2}; {form}"
    )
}

fn origin(is_remembered: bool) -> &'static str {
    if is_remembered { "remembered from an earlier probe" } else { "probed now" }
}
