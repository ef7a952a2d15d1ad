//! The attendance of a cluster: the times in which supervisors and workers were present. The clocks of waiting work exclude the time
//! without a supervisor; those of claimed work exclude the time without its claimant. No I/O: supervisors read the
//! heartbeats, and store the attendance, so that it is known after a power failure.
//!
//! The time that the clock of one piece of work does not count: waits for its model's provider, in which it neither works nor
//! hangs, and absences of the worker or of all supervisors.
//!
//! # Invariants
//!
//! - I291: The limits of running work exclude the time without its claimant, those of waiting work the time without a supervisor:
//!   after a kill, a suspension or a power failure.
//!   (`protocol/tests/rules/clocks.rs::run_time_is_the_sum_over_park_kill_power_off_and_suspension`,
//!   `protocol/tests/rules/clocks.rs::queue_wait_does_not_count_the_time_without_a_supervisor`,
//!   `tests/tests/waiting.rs::run_time_counts_only_the_time_in_which_a_worker_had_the_attempt`)

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use millrace_api_form::ApiForm;
use serde::{Deserialize, Serialize};

use super::event::truncate_to_micros;
use super::state::{ErroredTaskWait, Plan, PlanningTurn, Task, TaskPhase};
use super::work::Work;
use crate::ids::{TaskId, WorkerId};
use crate::wait::ProviderWait;

/// The longest time without a sign that is no absence: supervisors give one every second, workers one every three.
pub(super) const MAX_SILENCE: SignedDuration = SignedDuration::from_secs(5);
/// Shorter absences are not recorded: a heartbeat comes every few seconds.
const MIN_ABSENCE: SignedDuration = SignedDuration::from_secs(1);
/// The number of absences of supervisors that are kept, the last ones.
const MAX_ABSENCES: usize = 32;
/// The time for which a lost worker is remembered.
const MEMORY: SignedDuration = SignedDuration::from_hours(24 * 7);

/// A time in which a process was killed or suspended, or its machine was off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct Absence {
    /// The start of the absence.
    #[api(name = "began_at")]
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub from: Timestamp,
    /// Its end.
    #[api(name = "ended_at")]
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub until: Timestamp,
}

/// A time that clocks of a plan must not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ApiForm)]
pub struct StoppedClocks {
    /// The worker: the clocks of its work stopped. `null` if every supervisor was absent: the clocks of waiting work
    /// stopped.
    pub worker: Option<WorkerId>,
    /// The only task whose clock stopped: no supervisor was there to read its worker's report. `null` if all of them stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    #[api(form(AbsenceJson<'a>), flatten)]
    #[serde(flatten)]
    pub absence: Absence,
}

impl fmt::Display for StoppedClocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SignedDuration::from_secs(self.absence.until.duration_since(self.absence.from).as_secs());
        match (&self.worker, &self.task) {
            (_, Some(task)) => {
                write!(f, "{time:#} from the report on {task} to its decision do not count as run time")
            }
            (Some(worker), None) => {
                write!(f, "{time:#} without {worker} do not count as run time of its work")
            }
            (None, None) => write!(f, "{time:#} without a supervisor do not count as waiting time"),
        }
    }
}

/// A worker, as its heartbeats show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Presence {
    /// When its last heartbeat came.
    seen: Timestamp,
    /// When a heartbeat was first missed; `None` while they come.
    missed: Option<Timestamp>,
    /// The last time in which it was suspended, as it says.
    suspended: Option<Absence>,
    /// The time that the server gave to its last heartbeat.
    #[serde(skip)]
    received: Option<Timestamp>,
}

/// A heartbeat of a worker, as far as the attendance needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSign {
    pub worker: WorkerId,
    /// The time that the server gave to its last heartbeat.
    pub received: Timestamp,
    /// The last time in which it was suspended.
    pub suspended: Option<Absence>,
}

/// The attendance of a cluster, as one of its supervisors knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attendance {
    /// When a supervisor last updated it.
    at: Timestamp,
    /// The last times without a supervisor, oldest first.
    absences: Vec<Absence>,
    /// The workers. Those that are present are not stored.
    workers: BTreeMap<WorkerId, Presence>,
    /// The time from its last storing to its restoring: workers that were present then are not in it.
    #[serde(skip)]
    restored: Option<Absence>,
}

impl Attendance {
    /// The attendance of a new cluster.
    #[must_use]
    pub fn begin(now: Timestamp) -> Self {
        Self { at: now, absences: Vec::new(), workers: BTreeMap::new(), restored: None }
    }

    /// Continues a stored attendance.
    #[must_use]
    pub fn restore(stored: Self, now: Timestamp) -> Self {
        Self { restored: Some(Absence { from: stored.at, until: now }), ..stored }
    }

    /// Continues after an interruption: other supervisors may have been there.
    pub fn resume(&mut self, stored: Self) {
        if stored.at > self.at {
            (self.at, self.absences) = (stored.at, stored.absences);
        }
    }

    /// `true` if this supervisor may have been away since the last update.
    pub fn is_interrupted(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) > MAX_SILENCE
    }

    /// Returns the last time without a supervisor. The clock of this one may not have ticked since.
    fn last_absence(&self, now: Timestamp) -> Option<Absence> {
        let current = self.is_interrupted(now).then_some(Absence { from: self.at, until: now });
        current.or_else(|| self.absences.last().copied())
    }

    /// Records that a supervisor is present, and the last heartbeats of all workers.
    pub fn update(&mut self, now: Timestamp, signs: Vec<WorkerSign>) {
        if self.is_interrupted(now) {
            self.absences.push(Absence { from: self.at, until: now });
            let surplus = self.absences.len().saturating_sub(MAX_ABSENCES);
            self.absences.drain(..surplus);
        }
        self.at = self.at.max(now);
        for WorkerSign { worker, received, suspended } in signs {
            // The first heartbeat that is read may be old. The others are timed by the clock of this supervisor.
            let seen = match self.workers.get(&worker).and_then(|before| before.received) {
                None => received.min(now),
                Some(before) if before == received => continue,
                Some(_) => now,
            };
            self.workers.insert(worker, Presence { seen, missed: None, suspended, received: Some(received) });
        }
        self.workers.retain(|_, presence| now.duration_since(presence.seen) < MEMORY);
        for presence in self.workers.values_mut() {
            let is_missed = now.duration_since(presence.seen) > MAX_SILENCE;
            presence.missed = is_missed.then(|| presence.missed.unwrap_or(now));
        }
    }

    /// Returns what is stored of it.
    pub fn to_store(&self) -> Self {
        let lost = self.workers.iter().filter(|(_, presence)| presence.missed.is_some());
        Self { workers: lost.map(|(id, presence)| (id.clone(), presence.clone())).collect(), ..self.clone() }
    }

    /// Returns the time of the last heartbeat of the claimant of work, and when the next one was first missed. `None` if none is
    /// missed, or none was ever sent.
    pub(super) fn lost_claimant(
        &self,
        worker: &WorkerId,
        since: Timestamp,
    ) -> Option<(Timestamp, Timestamp)> {
        match self.workers.get(worker) {
            Some(presence) => Some((presence.seen.max(since), presence.missed?)),
            // It was present when the attendance was stored, and sends no heartbeats now.
            None => self.restored.filter(|it| it.from > since).map(|it| (it.from, it.until)),
        }
    }

    /// Returns the time without its claimant when another worker takes work over.
    fn absence_before_takeover(
        &self,
        worker: &WorkerId,
        since: Timestamp,
        now: Timestamp,
    ) -> Option<Absence> {
        let seen = self.workers.get(worker).map(|presence| presence.seen);
        let from = seen.or(self.restored.map(|it| it.from))?.max(since);
        is_long(from, now).then_some(Absence { from, until: now })
    }
}

fn is_long(from: Timestamp, until: Timestamp) -> bool {
    until.duration_since(from) >= MIN_ABSENCE
}

/// `true` if a task waits for a worker or a critic.
fn waits_in_queue(task: &Task) -> bool {
    match &task.phase {
        TaskPhase::Ready | TaskPhase::Rerun | TaskPhase::NeedsReview { retry_at: None } => true,
        TaskPhase::Errored(wait) => {
            matches!(wait, Some(ErroredTaskWait::Capability { .. } | ErroredTaskWait::Parameters { .. }))
        }
        TaskPhase::Pending
        | TaskPhase::Running
        | TaskPhase::NeedsReview { .. }
        | TaskPhase::Completed
        | TaskPhase::Failed { .. }
        | TaskPhase::Cancelled { .. }
        | TaskPhase::Waiting { .. } => false,
    }
}

impl StoppedClocks {
    /// The same, in the precision of the log.
    pub(super) fn in_micros(&self) -> Self {
        let Absence { from, until } = self.absence;
        let absence = Absence { from: truncate_to_micros(from), until: truncate_to_micros(until) };
        Self { absence, ..self.clone() }
    }

    /// `true` if a clock of the work of a task is stopped.
    pub(super) fn concerns_task(&self, task: &Task) -> bool {
        match &self.worker {
            None => waits_in_queue(task),
            Some(worker) => {
                task.claimant() == Some(worker) && self.task.as_ref().is_none_or(|it| *it == task.spec.id)
            }
        }
    }

    /// `true` if a clock of the planner's turn is stopped.
    pub(super) fn concerns_turn(&self, turn: &PlanningTurn) -> bool {
        turn.retry_at.is_none() && turn.worker == self.worker && self.task.is_none()
    }
}

impl Plan {
    /// Returns the absences that stop clocks of the plan and are not recorded in it yet.
    pub fn unrecorded_absences(&self, attendance: &Attendance, now: Timestamp) -> Vec<StoppedClocks> {
        if !self.is_live() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for absence in &attendance.absences {
            let stopped = StoppedClocks { worker: None, task: None, absence: *absence };
            found.extend(self.has_counted(&stopped).then_some(stopped));
        }
        for (worker, presence) in &attendance.workers {
            let Some(Absence { from, until }) = presence.suspended else { continue };
            let absence = Absence { from, until: until.min(now) };
            let stopped = StoppedClocks { worker: Some(worker.clone()), task: None, absence };
            found.extend(self.has_counted(&stopped).then_some(stopped));
        }
        found
    }

    /// Returns the time that is no run time of an attempt whose end or wait is reported: without its worker, if its heartbeats
    /// are still missed, or from the report on without a supervisor. `reported` is the time that the server gave to the report.
    pub fn absence_before_report(
        &self,
        (task, attempt, worker): (&TaskId, u32, &WorkerId),
        reported: Timestamp,
        attendance: &Attendance,
        now: Timestamp,
    ) -> Option<StoppedClocks> {
        let task =
            self.task(task).filter(|task| task.attempt == attempt && task.claimant() == Some(worker))?;
        let worker = Some(worker.clone());
        if let Some(missed) = attendance.workers.get(worker.as_ref()?).filter(|it| it.missed.is_some()) {
            let from = missed.seen.max(task.since);
            let absence = Absence { from, until: now };
            return is_long(from, now).then_some(StoppedClocks { worker, task: None, absence });
        }
        let Absence { from, until } = attendance.last_absence(now)?;
        let from = from.max(reported).max(task.since);
        let task = Some(task.spec.id.clone());
        is_long(from, until).then_some(StoppedClocks { worker, task, absence: Absence { from, until } })
    }

    /// Returns the time without its claimant, if this claim takes work over. `last_entry` is the time of the last entry in the
    /// journal of the work, if it is known.
    pub fn absence_before_claim(
        &self,
        work: &Work,
        by: &WorkerId,
        attendance: &Attendance,
        last_entry: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<StoppedClocks> {
        let (worker, since) = match work {
            Work::Task { task, .. } => {
                let task = self.task(task)?;
                (task.claimant()?, task.since)
            }
            Work::Planning { .. } => {
                let turn = self.planning.turn.as_ref()?;
                (turn.worker.as_ref()?, turn.since)
            }
            Work::Review { .. } => return None,
        };
        let absence = attendance
            .absence_before_takeover(worker, since.max(last_entry.unwrap_or(since)), now)
            .filter(|_| worker != by)?;
        Some(StoppedClocks { worker: Some(worker.clone()), task: None, absence })
    }

    /// `true` if an absence stops a clock that has counted it.
    pub(super) fn has_counted(&self, stopped: &StoppedClocks) -> bool {
        let has_counted = |uncounted: &UncountedTime, since: Timestamp| {
            uncounted.part_of(stopped.absence, since).is_some_and(|part| is_long(part.from, part.until))
        };
        let of_task = |task: &Task| stopped.concerns_task(task) && has_counted(&task.uncounted, task.since);
        let of_turn =
            |turn: &PlanningTurn| stopped.concerns_turn(turn) && has_counted(&turn.uncounted, turn.since);
        self.tasks.iter().any(of_task) || self.planning.turn.as_ref().is_some_and(of_turn)
    }
}

/// The time that a clock does not count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UncountedTime {
    /// The current wait for the provider, and the time of the decision that it began with. Boxed: most tasks have none.
    current: Option<Box<(ProviderWait, Timestamp)>>,
    /// The sum of the earlier times.
    earlier: SignedDuration,
    /// The end of the last of them: no time is excluded twice.
    through: Timestamp,
}

impl UncountedTime {
    pub fn current_wait(&self) -> Option<&ProviderWait> {
        self.current.as_deref().map(|(wait, _)| wait)
    }

    /// `true` if there is no current wait for the provider.
    pub fn is_wait_over(&self) -> bool {
        self.current.is_none()
    }

    /// The time that is not counted until `now`.
    pub fn total(&self, now: Timestamp) -> SignedDuration {
        let current = self.current.as_deref().map(|(_, from)| now.duration_since(*from));
        self.earlier.saturating_add(current.unwrap_or_default())
    }

    /// The time from `since` to `at` that a clock counts.
    pub(in crate::plan) fn counted(&self, since: Timestamp, at: Timestamp) -> SignedDuration {
        at.duration_since(since).saturating_sub(self.total(at))
    }

    /// The part of an absence that a clock has counted, if it started at `since`.
    pub(in crate::plan) fn part_of(&self, absence: Absence, since: Timestamp) -> Option<Absence> {
        let from = absence.from.max(since).max(self.through);
        let until = self.current.as_deref().map_or(absence.until, |(_, wait)| absence.until.min(*wait));
        (from < until).then_some(Absence { from, until })
    }

    /// Excludes an absence from a clock that started at `since`.
    pub(in crate::plan) fn exclude(&mut self, absence: Absence, since: Timestamp) {
        if let Some(part) = self.part_of(absence, since) {
            self.earlier = self.earlier.saturating_add(part.until.duration_since(part.from));
            self.through = part.until;
        }
    }

    /// Begins a wait for the provider, or replaces the report on the current one.
    pub(in crate::plan) fn report_wait(&mut self, wait: ProviderWait, at: Timestamp) {
        let from = self.current.as_deref().map_or(at, |(_, from)| *from);
        self.current = Some(Box::new((wait, from)));
    }

    /// Ends the current wait, if there is one.
    pub(in crate::plan) fn end_wait(&mut self, at: Timestamp) {
        if self.current.is_some() {
            self.earlier = self.total(at);
            self.current = None;
            self.through = at;
        }
    }
}
