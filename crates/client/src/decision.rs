//! Messages of clients to a run: appends one to the log, and waits for the decision on it. A message has an id that is
//! generated once, so that it is applied once even if it is published several times.

use std::time::Duration;

use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{AnswerCause, Decision, Event, InputAnswer, Refusal};
use millrace_protocol::subject::{self, Topic};
use millrace_protocol::wire::WireMessage;
use millrace_runtime::log::follow::{LogStep, LogTopics, RunFollower, RunLog, RunPosition};
use millrace_runtime::log::publish_message;
use millrace_runtime::nats::record::StreamRecord;
use millrace_runtime::store::retention::read_deletion;
use millrace_runtime::work::registry;
use millrace_runtime::{Bus, Fault};
use tokio_util::sync::CancellationToken;

/// Time without a decision after which the caller is notified.
const QUIET: Duration = Duration::from_secs(3);

/// The decision on a message that a client appended to the log of a run.
#[derive(Debug)]
pub enum MessageDecision {
    Applied(AppliedMessage),
    Refused(Refusal),
    /// The run was archived without a decision on it.
    Archived,
    /// The wait was interrupted; the message stays in the log.
    Interrupted,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct AppliedMessage {
    pub sequence: u64,
    /// Its events for this message; none if an earlier copy of the message was applied.
    pub events: Vec<Event>,
}

/// The end of a caller's patience with a decision.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    pub interrupt: &'a CancellationToken,
    /// Called once if there is no decision after a few seconds.
    pub on_quiet: &'a (dyn Fn() + Sync),
}

/// Appends a message of a client to the log of a run, and returns its sequence. `id` is the idempotency key in it.
pub async fn append_run_message<M: WireMessage>(
    bus: &Bus,
    run: &RunId,
    topic: &Topic,
    (message, id): (&M, &str),
) -> Result<u64, Fault> {
    let lane = bus.lane_of_run(run);
    let publishing = publish_message(bus, lane, run, topic, message, id);
    bus.fail_on_denial(&subject::topic_subject(lane, run, topic), publishing).await
}

/// Returns the reason why nobody will decide on a message to a run, if there is one: its deletion was requested, or its log is damaged.
/// Such a message must not be appended.
pub async fn find_obstacle(bus: &Bus, run: &RunId) -> Result<Option<Refusal>, Fault> {
    let summary = registry::read_summary(bus, run).await?;
    if let Some(damage) = summary.as_ref().and_then(|summary| summary.log_damage.as_ref()) {
        let why =
            format!("the log of run {run} is damaged: {damage}; restore a backup, or submit the run again");
        return Ok(Some(Refusal::WrongMoment(why)));
    }
    // Only runs that have ended are deleted.
    if summary.is_some_and(|summary| summary.end.is_none()) {
        return Ok(None);
    }
    let deletion = read_deletion(bus, run).await?.filter(|deletion| deletion.state.is_pending());
    Ok(deletion.map(|deletion| {
        Refusal::WrongMoment(format!("run {run} is being deleted, as {} requested", deletion.by))
    }))
}

/// Appends a message of a client to the log of a run, unless nobody would decide on it, and waits for the decision.
pub async fn append_and_await_decision<M: WireMessage>(
    bus: &Bus,
    run: &RunId,
    topic: &Topic,
    (message, id): (&M, &str),
    patience: Patience<'_>,
) -> Result<MessageDecision, Fault> {
    if let Some(refusal) = find_obstacle(bus, run).await? {
        return Ok(MessageDecision::Refused(refusal));
    }
    let fact = append_run_message(bus, run, topic, (message, id)).await?;
    await_message_decision(bus, run, (fact, id), patience).await
}

/// Waits for the decision on the message at sequence `fact`, whose idempotency key is `id`.
async fn await_message_decision(
    bus: &Bus,
    run: &RunId,
    (fact, id): (u64, &str),
    patience: Patience<'_>,
) -> Result<MessageDecision, Fault> {
    let answer = tokio::select! {
        answer = await_decision_on_fact(bus, run, fact, patience.on_quiet) => answer?,
        () = patience.interrupt.cancelled() => return Ok(MessageDecision::Interrupted),
    };
    Ok(answer.map_or(MessageDecision::Archived, |answer| decision_of_answer(answer, id)))
}

/// Returns the decision on the message at sequence `fact`, whose idempotency key is `id`, if this decision has it.
#[must_use]
pub fn message_decision(
    (sequence, decision): (u64, &Decision),
    (fact, id): (u64, &str),
) -> Option<MessageDecision> {
    let answer = find_answer_in_decision(decision, fact)?;
    Some(decision_of_answer((sequence, answer), id))
}

fn decision_of_answer((sequence, answer): (u64, FactAnswer), id: &str) -> MessageDecision {
    match answer {
        Ok(events) => MessageDecision::Applied(AppliedMessage { sequence, events }),
        // It was published twice because the first acknowledgement was lost; the first copy was applied.
        Err(Refusal::AlreadyApplied(applied)) if applied == id => {
            MessageDecision::Applied(AppliedMessage { sequence, events: Vec::new() })
        }
        Err(refusal) => MessageDecision::Refused(refusal),
    }
}

/// The answer to a fact: its events or the refusal.
type FactAnswer = Result<Vec<Event>, Refusal>;

/// Waits for the decision on a fact and returns its sequence and its answer; `None` if the run was archived without one.
async fn await_decision_on_fact(
    bus: &Bus,
    run: &RunId,
    fact: u64,
    on_quiet: &(dyn Fn() + Sync),
) -> Result<Option<(u64, FactAnswer)>, Fault> {
    let log = RunLog::new(bus, run, LogTopics::Decisions, RunPosition::after(fact));
    let mut follower = RunFollower::new(log, QUIET);
    let mut has_reported = false;
    loop {
        match follower.next_step().await? {
            LogStep::Messages(records) => {
                if let Some(answer) = find_answer_in_records(bus, &records, fact).await? {
                    return Ok(Some(answer));
                }
            }
            LogStep::Complete | LogStep::Deleted => return Ok(None),
            LogStep::EndOfLog => {
                if !std::mem::replace(&mut has_reported, true) {
                    on_quiet();
                }
            }
        }
    }
}

async fn find_answer_in_records(
    bus: &Bus,
    records: &[StreamRecord],
    fact: u64,
) -> Result<Option<(u64, FactAnswer)>, Fault> {
    for record in records {
        let decision: Decision = bus.decode_record(record).await?;
        if let Some(answer) = find_answer_in_decision(&decision, fact) {
            return Ok(Some((record.sequence, answer)));
        }
    }
    Ok(None)
}

/// Returns the answer to a fact in a decision, if there is one: the events, or the refusal.
fn find_answer_in_decision(decision: &Decision, fact: u64) -> Option<FactAnswer> {
    let mut at = 0;
    for InputAnswer { cause, events, refusal } in &decision.answers {
        let end = at + *events as usize;
        if *cause == AnswerCause::Fact(fact) {
            let own_events = || decision.events.get(at..end).unwrap_or_default().to_vec();
            return Some(refusal.clone().map_or_else(|| Ok(own_events()), Err));
        }
        at = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use millrace_protocol::ids::WorkerId;
    use millrace_protocol::plan::RunEvent;

    use super::*;

    #[test]
    fn a_command_gets_its_own_answer_only() {
        let answer = |fact, events, refusal| InputAnswer { cause: AnswerCause::Fact(fact), events, refusal };
        let refusal = Refusal::WrongMoment("the run is already paused".into());
        let decision = Decision {
            by: WorkerId::new("s").unwrap(),
            previous: 0,
            at: Timestamp::UNIX_EPOCH,
            answers: vec![
                answer(3, 2, None),
                answer(5, 0, Some(refusal.clone())),
                InputAnswer { cause: AnswerCause::Rules, events: 1, refusal: None },
                answer(7, 1, None),
            ],
            events: vec![
                Event::Run(RunEvent::Interrupted),
                Event::Run(RunEvent::Reopened),
                Event::Run(RunEvent::Retired),
                Event::Run(RunEvent::Paused),
            ],
        };
        assert_eq!(
            find_answer_in_decision(&decision, 3),
            Some(Ok(vec![Event::Run(RunEvent::Interrupted), Event::Run(RunEvent::Reopened)]))
        );
        assert_eq!(find_answer_in_decision(&decision, 5), Some(Err(refusal)));
        assert_eq!(find_answer_in_decision(&decision, 7), Some(Ok(vec![Event::Run(RunEvent::Paused)])));
        assert_eq!(find_answer_in_decision(&decision, 4), None);
    }
}
