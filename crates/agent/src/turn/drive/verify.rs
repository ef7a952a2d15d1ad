//! Carries out the verification of an answer: the calibration of the verifier and each of its replies are steps of the journal, so that
//! none is requested twice. Several requests run at the same time, as far as the attempt's reservation pays for them.

use std::time::Duration;

use futures::stream::{Stream, StreamExt};
use millrace_models::limits::estimate_sent_tokens;
use millrace_protocol::plan::{ResourceAmounts, ResourceKind};
use millrace_protocol::result::Usage;
use millrace_verification::{Calibration, Phrases, Question, Verification};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::debug;

use super::Driver;
use crate::model::{ModelError, Reply, Request};
use crate::turn::outcome::{decode_step, encode_step};
use crate::turn::record::to_millis;
use crate::turn::{Answer, DriveError, Machine, UsageTotals};
use crate::verification::Verifier;

/// The step that holds the calibration of the verifier.
const VERIFIER_STEP: &str = "verifier";

/// The record of a calibration, with the usage of its probe.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct VerifierStep {
    calibration: Calibration,
    #[serde(default)]
    spent: UsageTotals,
    took_ms: u64,
}

/// The record of a question to the verifier: a step `verdict.<turn>.<number>`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct VerdictStep {
    /// `None` if the model refused the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<Reply>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    took_ms: u64,
}

/// The questions of a round, with the number of questions before it.
struct Round<'q> {
    calibration: &'q Calibration,
    questions: &'q [Question],
    first: usize,
}

/// The end of a round, with the error of a refused question if there is one.
enum RoundEnd {
    Complete(Option<String>),
    /// The attempt can't pay for its questions.
    NoBudget,
    /// The journal has other steps after it, or there is no verifier any more.
    Over(Option<String>),
}

/// A request to the verifier that has ended: its number and its outcome.
type EndedRequest = (usize, Result<Reply, ModelError>);

impl<A: Answer> Driver<'_, A> {
    /// Returns the answer with the verdicts on its statements, or the correction for its model.
    pub(super) async fn verify_answer(
        &mut self,
        machine: &mut Machine<A>,
        answer: A,
    ) -> Result<Result<A, String>, DriveError> {
        let begun = self.conversation.is_verified.then(|| self.check.begin_verification(&answer)).flatten();
        let Some(mut verification) = begun else { return Ok(Ok(answer)) };
        let reason = match verification.is_decided() {
            true => None,
            false => self.ask_verifier(machine, &mut verification).await?,
        };
        Ok(self.check.conclude(answer, verification.finish(reason.as_deref())))
    }

    /// Asks the verifier about the statements that code left open. Returns the reason for those that it does not judge, if it is
    /// known.
    async fn ask_verifier(
        &mut self,
        machine: &mut Machine<A>,
        verification: &mut Verification,
    ) -> Result<Option<String>, DriveError> {
        let phrases = verification.phrases();
        let calibration = match self.probe_or_replay(machine, phrases).await? {
            Ok(calibration) if calibration.is_believed() => calibration,
            Ok(calibration) => return Ok(Some(calibration.describe_disbelief(phrases))),
            Err(reason) => return Ok(Some(reason)),
        };
        let mut asked = 0;
        let mut refusal = None;
        loop {
            let questions = verification.questions(&calibration);
            if questions.is_empty() {
                return Ok(refusal);
            }
            let round = Round { calibration: &calibration, questions: &questions, first: asked };
            asked += questions.len();
            match self.ask_round(machine, verification, &round).await? {
                RoundEnd::Complete(refused) => refusal = refused.or(refusal),
                RoundEnd::NoBudget => return Ok(Some(phrases.no_budget.clone())),
                RoundEnd::Over(refused) => return Ok(refused.or(refusal)),
            }
        }
    }

    /// Asks the questions of one round that no journal has answered.
    async fn ask_round(
        &mut self,
        machine: &mut Machine<A>,
        verification: &mut Verification,
        round: &Round<'_>,
    ) -> Result<RoundEnd, DriveError> {
        let Round { calibration, questions, first } = *round;
        let turn = machine.request_count();
        let names: Vec<String> =
            (first..first + questions.len()).map(|number| format!("verdict.{turn}.{number}")).collect();
        let mut open: Vec<usize> = (0..questions.len()).collect();
        let mut refusal = None;
        while let Some(number) = self.next_recorded(&names).await? {
            let Some((_, value)) = self.host.replay(&names[number..=number]).await? else { break };
            open.retain(|other| *other != number);
            let step: VerdictStep = decode_step(&names[number], value)?;
            count_reply(machine, calibration, &step);
            step.reply.iter().for_each(|reply| verification.answer(&questions[number], reply, calibration));
            refusal = step.error.or(refusal);
        }
        if open.is_empty() {
            return Ok(RoundEnd::Complete(refusal));
        }
        let is_over = self.host.peek().await?.is_some();
        let Some(verifier) = self.conversation.verifier.as_ref().filter(|_| !is_over) else {
            return Ok(RoundEnd::Over(refusal));
        };
        let requests = open.iter().map(|number| (*number, &questions[*number].request)).collect();
        let (affordable, has_room) = select_affordable(requests, machine.amounts_left_for_calls());
        let mut running = verifier.ask_side_by_side(affordable, self.conversation.hooks.as_ref());
        let mut since = Instant::now();
        while let Some((number, outcome)) = self.next_reply(&mut running).await? {
            let outcome = self.insist(machine, verifier, &questions[number].request, outcome).await?;
            // The durations add up to the time of all, although the requests overlap.
            let took_ms = to_millis(since.elapsed());
            since = Instant::now();
            let error = outcome.as_ref().err().map(ToString::to_string);
            let step = VerdictStep { error, reply: outcome.ok(), took_ms };
            self.host.record(&names[number], &encode_step(&step)).await?;
            count_reply(machine, calibration, &step);
            step.reply.iter().for_each(|reply| verification.answer(&questions[number], reply, calibration));
            refusal = step.error.or(refusal);
        }
        Ok(if has_room { RoundEnd::Complete(refusal) } else { RoundEnd::NoBudget })
    }

    /// The place among `names` of the next recorded step; `None` if it is another one, or if there is none.
    async fn next_recorded(&mut self, names: &[String]) -> Result<Option<usize>, DriveError> {
        let next = self.host.peek().await?;
        Ok(next.and_then(|(name, _)| names.iter().position(|known| *known == name)))
    }

    /// Returns the calibration of the verifier: the recorded one, the remembered one, or that of a new probe. An error is the reason
    /// that no statement is judged.
    async fn probe_or_replay(
        &mut self,
        machine: &mut Machine<A>,
        phrases: &Phrases,
    ) -> Result<Result<Calibration, String>, DriveError> {
        let name = [VERIFIER_STEP.to_owned()];
        if self.next_recorded(&name).await?.is_some()
            && let Some((_, value)) = self.host.replay(&name).await?
        {
            let step: VerifierStep = decode_step(VERIFIER_STEP, value)?;
            machine.count_side_usage(&step.spent, Duration::from_millis(step.took_ms));
            return Ok(Ok(step.calibration));
        }
        let is_over = self.host.peek().await?.is_some();
        let Some(verifier) = self.conversation.verifier.as_ref().filter(|_| !is_over) else {
            return Ok(Err(phrases.no_verifier.clone()));
        };
        if let Some(model) = verifier.model().uncounted_cost().filter(|_| machine.limits_cost()) {
            return Ok(Err(phrases.describe_uncounted_cost(model)));
        }
        let began = Instant::now();
        let (calibration, spent) = match verifier.remembered_calibration() {
            Some(calibration) => (calibration, UsageTotals::default()),
            None => match self.probe(machine, verifier, phrases).await? {
                Ok(probed) => probed,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        verifier.remember(&calibration);
        let step = VerifierStep { calibration, spent, took_ms: to_millis(began.elapsed()) };
        self.host.record(VERIFIER_STEP, &encode_step(&step)).await?;
        machine.count_side_usage(&step.spent, Duration::from_millis(step.took_ms));
        Ok(Ok(step.calibration))
    }

    /// Probes the verifier. An error is the reason that it can't be probed.
    async fn probe(
        &mut self,
        machine: &Machine<A>,
        verifier: &Verifier,
        phrases: &Phrases,
    ) -> Result<Result<(Calibration, UsageTotals), String>, DriveError> {
        let requests = verifier.probe_requests();
        let left = machine.amounts_left_for_calls();
        let (affordable, has_room) = select_affordable(requests.iter().enumerate().collect(), left);
        if !has_room {
            return Ok(Err(phrases.no_budget.clone()));
        }
        let (mut replies, mut spent) = (Vec::new(), UsageTotals::default());
        let mut running = verifier.ask_side_by_side(affordable, self.conversation.hooks.as_ref());
        while let Some((number, outcome)) = self.next_reply(&mut running).await? {
            match self.insist(machine, verifier, &requests[number], outcome).await? {
                Ok(reply) => {
                    spent.add_totals(&usage_of(verifier.model().name(), &reply));
                    replies.push((number, reply));
                }
                // A wrong key or a model that does not exist: each request would fail.
                Err(error) if error.is_refusal() => return Ok(Err(error.to_string())),
                Err(error) => {
                    debug!(model = verifier.model().name(), %error, "a claim of the probe has no answer")
                }
            }
        }
        Ok(Ok((verifier.calibrate(&replies), spent)))
    }

    /// Returns the next request that ends. Meanwhile the journal gets a keepalive per interval.
    async fn next_reply(
        &mut self,
        running: &mut (impl Stream<Item = EndedRequest> + Unpin),
    ) -> Result<Option<EndedRequest>, DriveError> {
        loop {
            tokio::select! {
                biased;
                ended = running.next() => return Ok(ended),
                () = tokio::time::sleep(self.host.keepalive_interval()) => {
                    self.host.note("verifying statements").await?;
                }
            }
        }
    }

    /// Repeats a request that failed while the provider is away, as other requests of the attempt are repeated.
    async fn insist(
        &mut self,
        machine: &Machine<A>,
        verifier: &Verifier,
        request: &Request,
        outcome: Result<Reply, ModelError>,
    ) -> Result<Result<Reply, ModelError>, DriveError> {
        match outcome {
            Err(error) if error.is_transient() && verifier.model().has_provider() => {
                let left = machine.time_left();
                let (outcome, _) = self.reply_through_outages(verifier.model(), request, left).await?;
                Ok(outcome.unwrap_or(Err(error)))
            }
            outcome => Ok(outcome),
        }
    }
}

/// Counts a reply of the verifier.
fn count_reply<A: Answer>(machine: &mut Machine<A>, calibration: &Calibration, step: &VerdictStep) {
    let spent = step.reply.as_ref().map(|reply| usage_of(&calibration.model, reply)).unwrap_or_default();
    machine.count_side_usage(&spent, Duration::from_millis(step.took_ms));
}

fn usage_of(model: &str, reply: &Reply) -> UsageTotals {
    let model = reply.model.as_deref().unwrap_or(model);
    UsageTotals::from_model_usage(model, Usage { model_calls: 1, ..reply.usage })
}

/// The first requests that these amounts pay for together, and `true` if they are all.
pub(crate) fn select_affordable(
    requests: Vec<(usize, &Request)>,
    mut left: ResourceAmounts,
) -> (Vec<(usize, &Request)>, bool) {
    let all = requests.len();
    let pays = |(_, request): &(usize, &Request)| {
        let (input, output) = (estimate_sent_tokens(request), u64::from(request.max_output_tokens));
        let needs = ResourceAmounts {
            tokens: Some(input + output),
            input_tokens: Some(input),
            output_tokens: Some(output),
            model_calls: Some(1),
            ..ResourceAmounts::default()
        };
        let is_short = |(kind, amount): (ResourceKind, u64)| amount < needs.get(kind).unwrap_or(1);
        if left.iter().any(is_short) {
            return false;
        }
        let now = left;
        now.iter()
            .for_each(|(kind, amount)| left.set(kind, Some(amount - needs.get(kind).unwrap_or_default())));
        true
    };
    let affordable: Vec<(usize, &Request)> = requests.into_iter().take_while(pays).collect();
    let has_room = affordable.len() == all;
    (affordable, has_room)
}
