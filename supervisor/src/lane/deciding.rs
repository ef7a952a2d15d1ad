//! Deciding: what has arrived for a run goes to the rules, what they say is appended to its plan, and what the world
//! owes it then is carried out. Per run one decision is in flight at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use millrace_protocol::plan::{Decision, Effect, MayBeMissing};
use millrace_protocol::subject::Topic;
use millrace_runtime::log::{AppendError, append};
use ractor::{ActorProcessingErr, ActorRef};
use tracing::warn;

use super::{Message, State, tell};
use crate::live::{LiveRun, Phase};
use crate::order::queue as queue_of;

/// How long a run must wait for a capability before it is said to be missing.
const CAPABILITY_PATIENCE: Duration = Duration::from_secs(3);

impl State {
    /// Decides on what has arrived for a run, if nothing of it is under way.
    pub(super) fn advance(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        if live.phase != Phase::Idle || !live.has_work() {
            return;
        }
        if !live.is_urgent() {
            self.wait_for_company(myself, run);
            return;
        }
        self.decide(myself, run);
    }

    pub(super) fn decide(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        let Some(live) = self.runs.get_mut(run) else { return };
        let now = Timestamp::now();
        let known = Arc::clone(&self.known.borrow());
        let Some(decision) = live.decide(&self.me, &known.cluster, may_be_missing(live, now), now) else {
            return;
        };
        live.phase = Phase::Appending;
        live.is_unreported = true;
        let last = live.last;
        self.append(myself, run, decision, last);
    }

    fn append(&self, myself: &ActorRef<Message>, run: &RunId, decision: Decision, last: u64) {
        let (bus, lane, run, to) = (self.bus.clone(), self.lane, run.clone(), myself.clone());
        tokio::spawn(async move {
            let result = append(&bus, lane, &run, &Topic::Plan, &decision, last).await;
            tell(&to, Message::Appended(run, result));
        });
    }

    pub(super) fn appended(
        &mut self,
        myself: &ActorRef<Message>,
        run: &RunId,
        result: Result<u64, AppendError>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(live) = self.runs.get_mut(run) else { return Ok(()) };
        let sequence = match result {
            Ok(sequence) if live.unexplained <= sequence => sequence,
            Ok(sequence) => {
                warn!(%run, sequence, unexplained = live.unexplained, "another owner has decided on this run");
                self.refold(myself, run);
                return Ok(());
            }
            Err(AppendError::Fenced { last }) => {
                warn!(%run, last, ours = live.last, "refused: another owner has extended this run");
                self.refold(myself, run);
                return Ok(());
            }
            Err(AppendError::Fault(fault)) => return Err(fault.into()),
        };
        self.standing.decisions.one();
        live.last = live.last.max(sequence);
        live.phase = Phase::Idle;
        let (effects, touched) = live.owed();
        // Whoever waits for its end may stop the cluster then; what was archived says so by itself.
        let is_resumable = live.plan.is_resumable();
        self.free_places(run, &touched);
        self.carry_out(myself, run, effects);
        self.advance(myself, run);
        if is_resumable {
            self.report(myself);
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, myself: &ActorRef<Message>, run: &RunId, effects: Vec<Effect>) {
        let mut queues = BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Offer(work) => {
                    let Some(live) = self.runs.get(run) else { return };
                    let Some(capability) = queue_of(&live.plan, &work) else { continue };
                    self.windows.add(&capability, run, work);
                    if !queues.contains(&capability) {
                        queues.insert(capability);
                    }
                }
                Effect::Withdraw(work, capability) => self.withdraw(run, work, capability),
                Effect::Close => self.close(myself, run),
            }
        }
        for capability in queues {
            self.offer(myself, &capability, run);
        }
    }
}

/// Whether a capability that is not known is missing: workers that start together with the run need a moment to say
/// what they offer.
pub(super) fn may_be_missing(live: &LiveRun, now: Timestamp) -> MayBeMissing {
    let start = live.plan.start.as_ref();
    let is_over = |at: Timestamp| now.duration_since(at).unsigned_abs() >= CAPABILITY_PATIENCE;
    if start.is_some_and(|start| is_over(start.at)) { MayBeMissing::Yes } else { MayBeMissing::NotYet }
}
