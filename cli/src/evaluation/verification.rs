//! Samples of claims: the verifier's verdicts on a claim, with its evidence as the only document, and the reply of the verifier's model
//! to a direct request with the claim and the whole evidence. They need no cluster.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use millrace_agent::corpus::{Corpus, InputFile};
use millrace_agent::model::{Model, ModelError};
use millrace_agent::verification::{Verifier, verify_text};
use millrace_protocol::result::{Finder, StatementVerdict, Usage, VerifiedStatement};
use millrace_protocol::safe_text::markdown_line;
use millrace_verification::{Calibration, Phrases, ask_directly, read_direct_reply};

use super::ceiling::is_fault_of_environment;
use super::cluster::SampleEnd;
use super::input::claims::Claim;
use super::store::SampleRecord;
use crate::exit::CommandError;
use crate::view::separate_thousands;

/// The path of the evidence.
const EVIDENCE: &str = "evidence.txt";
/// The least probability of a supported claim in a direct request.
const MIDDLE: f64 = 0.5;

/// Probes a verifier, unless its calibration is remembered.
pub async fn probe_verifier(verifier: &Verifier) -> Result<(), CommandError> {
    let mut usage = Usage::default();
    let calibration =
        verifier.recall_or_probe(&mut usage).await.map_err(CommandError::unusable_environment)?;
    if calibration.answered == 0 {
        return Err(CommandError::unusable_environment(anyhow!(
            "{}; choose another model with --model verifier=MODEL",
            calibration.describe_disbelief(Phrases::english())
        )));
    }
    if usage.model_calls > 0 {
        let tokens = separate_thousands(&(usage.input_tokens + usage.output_tokens).to_string());
        note!("the probe of {} took {} calls and {tokens} tokens", calibration.model, usage.model_calls);
    }
    if !calibration.is_believed() {
        note!("{}; its verdicts are not used", calibration.describe_disbelief(Phrases::english()));
    }
    Ok(())
}

/// The outcome of a probe, for a person.
pub fn describe_calibration(calibration: &Calibration) -> String {
    let percent = (calibration.accuracy * 100.0).round();
    match calibration.is_believed() {
        true => format!("believed ({percent}% right, threshold {:.2})", calibration.threshold),
        false => format!("not believed ({percent}% right)"),
    }
}

/// Verifies a claim.
pub async fn verify_claim(claim: &Claim, verifier: Option<&Verifier>, timeout: Duration) -> SampleEnd {
    let bytes = claim.evidence.join("\n").into_bytes();
    let corpus = match Corpus::build_or_load(vec![InputFile { path: EVIDENCE.into(), bytes }], None) {
        Ok(corpus) => corpus,
        Err(error) => return SampleEnd::Unmeasured(error.to_string()),
    };
    let text = markdown_line(&claim.text);
    let verify = async {
        let verified = verify_text(&text, &corpus, verifier).await?;
        Ok((verified.statements, verified.usage))
    };
    record_verdicts(verify, timeout).await
}

/// Asks a model about a claim and its whole evidence.
pub async fn ask_about_claim(claim: &Claim, model: &dyn Model, timeout: Duration) -> SampleEnd {
    let request = ask_directly(&claim.evidence.join("\n"), &claim.text);
    let ask = async {
        let reply = model.reply(&request, &()).await?;
        let usage = Usage { model_calls: 1, ..reply.usage };
        Ok((vec![to_statement(claim, model.name(), read_direct_reply(&reply))], usage))
    };
    record_verdicts(ask, timeout).await
}

fn to_statement(claim: &Claim, model: &str, probability: Option<f64>) -> VerifiedStatement {
    let (verdict, reason) = match probability {
        Some(probability) if probability >= MIDDLE => (StatementVerdict::Supported, "The model says yes."),
        Some(_) => (StatementVerdict::Unsupported, "The model says no."),
        None => (StatementVerdict::Unverified, "The model says neither yes nor no."),
    };
    VerifiedStatement {
        text: claim.text.clone(),
        start: 0,
        end: u32::try_from(claim.text.chars().count()).unwrap_or(u32::MAX),
        verdict,
        lines: Vec::new(),
        found_by: probability.map(|_| Finder::Model(model.to_owned())),
        reason: reason.to_owned(),
        probability,
        removed: false,
    }
}

async fn record_verdicts(
    judging: impl Future<Output = Result<(Vec<VerifiedStatement>, Usage), ModelError>>,
    timeout: Duration,
) -> SampleEnd {
    let started = Instant::now();
    let (statements, usage, detail) = match tokio::time::timeout(timeout, judging).await {
        Ok(Ok((statements, usage))) => (statements, usage, String::new()),
        Ok(Err(error)) if is_fault_of_environment(&error) => return SampleEnd::Unmeasured(error.to_string()),
        Ok(Err(error)) => (Vec::new(), Usage::default(), error.to_string()),
        Err(_) => (Vec::new(), Usage::default(), format!("no verdict within {timeout:?}")),
    };
    let record = SampleRecord::of_model(None, detail, usage, started.elapsed());
    SampleEnd::Finished(SampleRecord { statements, ..record })
}
