//! Attempts at a task, from their claim to their end.

use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{TaskId, WorkerId};
use crate::plan::spec::ReviewPolicy;
use crate::question::QuestionSubject;
use crate::result::{Build, TaskError, Usage, Verdict};
use crate::wait::{EndedWait, Wait, WaitEnd};

/// The three clocks of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptClock {
    /// From the dispatch to the claim.
    QueueWait,
    /// From the claim to the outcome.
    RunTime,
    /// From one journal entry to the next.
    Silence,
}

impl fmt::Display for AttemptClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueWait => "no worker took it in time",
            Self::RunTime => "it ran longer than its limit",
            Self::Silence => "its worker was silent for too long",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// It produced a result.
    Finished {
        /// The sequence of the result in the lane.
        at_sequence: u64,
        /// The result in a sentence.
        summary: String,
        /// `true` if the result has text beyond the summary.
        is_detailed: bool,
        /// `false` if the result does not answer its question.
        #[serde(skip_serializing_if = "is_true")]
        is_answered: bool,
    },
    /// It failed.
    Errored(Box<TaskError>),
    TimedOut(AttemptClock),
}

fn is_true(value: &bool) -> bool {
    *value
}

/// An attempt at a task, from its claim on; or one that no worker claimed in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// The last claimant.
    pub worker: Option<WorkerId>,
    /// The software of the last claimant, if the claimant named it.
    pub build: Option<Arc<Build>>,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The time for which claimants have worked on it, without its current part: an attempt that was parked or returned has
    /// several.
    pub worked: SignedDuration,
    /// Its end: a result, an error or a timeout.
    pub end: Option<AttemptEnd>,
    pub usage: Usage,
    /// The review of its result, if it has one.
    pub review: Option<AttemptReview>,
    /// The waits with which it was parked, oldest first, those that have ended included.
    pub waits: Vec<AttemptWait>,
    /// The tasks that it delegated and that were refused, each with the reason.
    pub refused_children: Vec<(TaskId, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AttemptWait {
    #[serde(flatten)]
    pub wait: Wait,
    /// When it began; for a question, when its current round began.
    pub since: Timestamp,
    /// The round of a question, from 1: it grows when an expired question is asked again.
    #[serde(skip_serializing_if = "is_one")]
    pub round: u32,
    /// Its end; `None` while the attempt is parked because of it.
    pub end: Option<WaitEnd>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

fn is_one(round: &u32) -> bool {
    *round == 1
}

impl AttemptWait {
    /// Creates a wait that begins at a time.
    #[must_use]
    pub fn begin(wait: Wait, since: Timestamp) -> Self {
        Self { wait, since, round: 1, end: None, ended_at: None }
    }

    /// The time at which it ends or expires, whatever else happens.
    pub fn until(&self) -> Option<Timestamp> {
        self.wait.condition.until(self.since)
    }

    /// `true` if it is open and its time has come.
    pub(in crate::plan) fn is_due(&self, now: Timestamp) -> bool {
        self.end.is_none() && self.until().is_some_and(|until| until <= now)
    }
}

/// The review of an attempt's result.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptReview {
    /// The number of the current or last try, from 1.
    pub number: u32,
    /// The rest; `None` if the result is not reviewed, as most are: a plan has up to a million attempts.
    details: Option<Box<ReviewDetails>>,
}

#[derive(Debug, Clone, PartialEq)]
struct ReviewDetails {
    policy: ReviewPolicy,
    verdict: Option<(WorkerId, Verdict)>,
    usage: Usage,
}

impl AttemptReview {
    /// The first try at a review under a policy.
    #[must_use]
    pub fn begin(policy: &ReviewPolicy) -> Self {
        let details = |policy| Box::new(ReviewDetails { policy, verdict: None, usage: Usage::default() });
        Self { number: 1, details: (!policy.is_none()).then(|| details(policy.clone())) }
    }

    /// The review policy for the result.
    pub fn policy(&self) -> &ReviewPolicy {
        self.details.as_ref().map_or(&ReviewPolicy::None, |details| &details.policy)
    }

    fn details_mut(&mut self) -> &mut ReviewDetails {
        self.details.get_or_insert_with(|| {
            Box::new(ReviewDetails { policy: ReviewPolicy::None, verdict: None, usage: Usage::default() })
        })
    }
}

impl Attempt {
    /// The critic and its verdict on the result.
    pub fn verdict(&self) -> Option<(&WorkerId, &Verdict)> {
        let (critic, verdict) = self.review.as_ref()?.details.as_ref()?.verdict.as_ref()?;
        Some((critic, verdict))
    }

    /// The usage of its reviews, failed ones included.
    pub fn review_usage(&self) -> Usage {
        let details = self.review.as_ref().and_then(|review| review.details.as_ref());
        details.map(|details| details.usage).unwrap_or_default()
    }

    pub(in crate::plan) fn set_verdict(&mut self, critic: WorkerId, verdict: Verdict) {
        self.review_details_mut().verdict = Some((critic, verdict));
    }

    pub(in crate::plan) fn add_review_usage(&mut self, usage: Usage) {
        if !usage.is_zero() {
            self.review_details_mut().usage.add(usage);
        }
    }

    fn review_details_mut(&mut self) -> &mut ReviewDetails {
        self.review.get_or_insert_with(|| AttemptReview::begin(&ReviewPolicy::None)).details_mut()
    }

    /// The waits that have not ended.
    pub fn open_waits(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|wait| wait.end.is_none()).map(|wait| &wait.wait)
    }

    /// The first time at which one of its open waits ends, whatever else happens.
    pub fn first_wait_time(&self) -> Option<Timestamp> {
        self.waits.iter().filter(|wait| wait.end.is_none()).filter_map(AttemptWait::until).min()
    }

    /// The questions to persons about its result, those that have ended included.
    pub fn judgements(&self) -> impl Iterator<Item = &AttemptWait> {
        let is_judgement = |wait: &&AttemptWait| {
            let question = wait.wait.condition.question();
            question.is_some_and(|it| matches!(it.subject, QuestionSubject::Review { .. }))
        };
        self.waits.iter().filter(is_judgement)
    }

    /// Its result in a sentence, if it produced one.
    pub fn result_summary(&self) -> Option<&str> {
        match self.end.as_ref()? {
            AttemptEnd::Finished { summary, .. } => Some(summary),
            AttemptEnd::Errored(_) | AttemptEnd::TimedOut(_) => None,
        }
    }

    /// The waits that have ended, oldest first.
    pub fn ended_waits(&self) -> Vec<EndedWait> {
        let ended = |it: &AttemptWait| Some(EndedWait { key: it.wait.key.clone(), end: it.end.clone()? });
        self.waits.iter().filter_map(ended).collect()
    }

    /// The feedback for the next attempt; `None` if this one succeeded or has not ended.
    pub(super) fn failure_feedback(&self) -> Option<String> {
        let number = self.number;
        if let Some((_, verdict)) = self.verdict()
            && !verdict.passed
        {
            let text = verdict.feedback.as_ref().unwrap_or(&verdict.reasoning);
            return Some(format!("Attempt {number} was rejected: {text}"));
        }
        match self.end.as_ref()? {
            AttemptEnd::Finished { .. } => None,
            AttemptEnd::Errored(error) => Some(format!("Attempt {number} failed: {error}")),
            AttemptEnd::TimedOut(clock) => Some(format!("Attempt {number} timed out: {clock}")),
        }
    }
}
