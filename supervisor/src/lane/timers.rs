//! What time brings about: clocks of plans, claims that have waited long enough for company, and what is done every so
//! often, in case it was missed.

use std::time::Duration;

use jiff::Timestamp;
use millrace_protocol::ids::RunId;
use ractor::ActorRef;

use super::deciding::may_be_missing;
use super::{Message, State};
use crate::live::Phase;

/// How long a claim may wait for company: nothing is owed for a claim, so that it can share an append with the
/// outcome that soon follows.
const CLAIM_PATIENCE: Duration = Duration::from_millis(5);
/// How often backoffs are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How often, in ticks, all clocks are looked at and summaries are written.
const CLOCK_TICKS: u64 = 20;
/// How often, in ticks, orders that stand in a queue are offered again, in case it has lost them.
const OFFER_TICKS: u64 = 600;

/// Says every so often that time has passed, until nobody listens any more.
pub(super) async fn run(to: ActorRef<Message>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        if to.cast(Message::Tick).is_err() {
            return;
        }
    }
}

impl State {
    pub(super) fn wait_for_company(&mut self, myself: &ActorRef<Message>, run: &RunId) {
        self.patient.insert(run.clone());
        if !self.flush_is_due {
            self.flush_is_due = true;
            drop(myself.send_after(CLAIM_PATIENCE, || Message::Flush));
        }
    }

    pub(super) fn flush(&mut self, myself: &ActorRef<Message>) {
        self.flush_is_due = false;
        for run in std::mem::take(&mut self.patient) {
            if self.runs.get(&run).is_some_and(|live| live.phase == Phase::Idle && live.has_work()) {
                self.decide(myself, &run);
            }
        }
    }

    pub(super) fn tick(&mut self, myself: &ActorRef<Message>) {
        self.ticks += 1;
        let all_clocks = self.ticks.is_multiple_of(CLOCK_TICKS);
        let now = Timestamp::now();
        let mut due = Vec::new();
        for (run, live) in &mut self.runs {
            live.look_at_clocks(now, all_clocks);
            let asks = live.asks_cluster(may_be_missing(live, now));
            if live.phase == Phase::Idle && (asks || live.is_urgent()) {
                due.push(run.clone());
            }
        }
        for run in due {
            self.decide(myself, &run);
        }
        if all_clocks {
            self.standing.holds(self.runs.len());
            self.report(myself);
            self.offer_waiting(myself);
        }
        if self.ticks.is_multiple_of(OFFER_TICKS) {
            for (run, work) in self.windows.offered() {
                self.put(myself, &run, vec![work]);
            }
            self.runs.keys().for_each(|run| self.offer_in_hand(myself, run));
        }
    }
}
