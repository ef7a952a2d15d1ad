//! The task that books requests on one rate limit for a whole process. It books for all waiting requests with one
//! compare-and-set, so that a thousand attempts are a single writer. It ends with the limiter.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_protocol::subject::encode_subject_token;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::rate::{RateLimit, RateLimitState};
use super::{STATES, now_micros};
use crate::fault::backoff;
use crate::store::bucket::ExpectedEntry;
use crate::{Bus, Fault};

/// The delay in which corrections are collected before they are written.
const CORRECTION_DELAY: Duration = Duration::from_millis(250);
/// The maximum age of the state while requests wait.
const MAX_STATE_AGE: Duration = Duration::from_secs(1);
/// The maximum random delay, in microseconds, before a conflicting compare-and-set is retried.
const JITTER: u32 = 5_000;

/// A request to the booker.
pub(super) enum BookerMessage {
    /// Book a request.
    Admit(WaitingRequest),
    /// Correct an earlier booking.
    Correct {
        /// The limit it counts against.
        limit: RateLimit,
        /// More requests, or fewer if negative.
        requests: i64,
        /// More tokens, or fewer if negative.
        tokens: i64,
    },
    /// Hold all requests for a while, or no longer.
    Pause {
        change: PauseChange,
        /// Notified when it is written.
        done: oneshot::Sender<()>,
    },
}

/// A change of the pause of a model.
#[derive(Debug, Clone, Copy)]
pub(super) enum PauseChange {
    /// All requests are held until this time, unless they are held longer already.
    Until(i64),
    /// No request is held any more.
    End,
}

impl PauseChange {
    pub(super) fn apply(self, state: &mut RateLimitState) {
        match self {
            Self::Until(until) => state.pause_until(until),
            Self::End => state.paused_until = 0,
        }
    }
}

/// A request that waits to be booked.
pub(super) struct WaitingRequest {
    pub limit: RateLimit,
    /// The maximum number of tokens of the request.
    pub tokens: u64,
    /// Until when it waits.
    pub until: i64,
    /// Receives `Ok` when the request is booked, or how long it would have to wait.
    pub reply: oneshot::Sender<Result<(), Duration>>,
}

/// The admission decision for a waiting request; times in microseconds.
enum Admission {
    Admitted,
    Waits(i64),
    Rejected(i64),
}

pub(super) struct RateLimitBooker {
    bus: Bus,
    name: String,
    /// The last read or written state, and its revision; 0 if there is none in the bucket.
    cached: Option<(u64, RateLimitState)>,
    waiting: VecDeque<WaitingRequest>,
    /// The pending correction: limit, requests, tokens.
    correction: Option<(RateLimit, i64, i64)>,
    /// The pending changes of the pause, in order.
    pauses: Vec<PauseChange>,
    on_pause_written: Vec<oneshot::Sender<()>>,
    /// When to book next.
    wake: Option<Instant>,
    /// The number of consecutive failures of the bucket.
    failures: u32,
}

impl RateLimitBooker {
    pub fn new(bus: &Bus, name: String) -> Self {
        Self {
            bus: bus.clone(),
            name,
            cached: None,
            waiting: VecDeque::new(),
            correction: None,
            pauses: Vec::new(),
            on_pause_written: Vec::new(),
            wake: None,
            failures: 0,
        }
    }

    /// Runs until the limiter is dropped.
    pub async fn run_until_closed(mut self, mut messages: mpsc::UnboundedReceiver<BookerMessage>) {
        loop {
            let wake = self.wake;
            let sleep = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.handle_message(message),
                    None => break,
                },
                () = sleep => {
                    // The cached state is outdated: other processes book, too.
                    self.cached = None;
                    self.wake = Some(Instant::now());
                }
            }
            while let Ok(message) = messages.try_recv() {
                self.handle_message(message);
            }
            if self.wake.is_some_and(|wake| wake <= Instant::now()) {
                self.book_waiting_requests().await;
            }
        }
        if self.correction.is_some() {
            self.book_waiting_requests().await;
        }
    }

    fn handle_message(&mut self, message: BookerMessage) {
        let soon = match message {
            BookerMessage::Admit(waiter) => {
                self.waiting.push_back(waiter);
                Instant::now()
            }
            BookerMessage::Correct { limit, requests, tokens } => {
                self.correct_booking(limit, requests, tokens);
                Instant::now() + CORRECTION_DELAY
            }
            BookerMessage::Pause { change, done } => {
                self.pauses.push(change);
                self.on_pause_written.push(done);
                Instant::now()
            }
        };
        self.wake = Some(self.wake.map_or(soon, |wake| wake.min(soon)));
    }

    /// Books all requests that can be admitted, in one write. Retries if another process wrote first.
    async fn book_waiting_requests(&mut self) {
        loop {
            self.waiting.retain(|waiter| !waiter.reply.is_closed());
            let (revision, before) = match self.read_state().await {
                Ok(current) => current,
                Err(fault) => return self.reject_overdue_requests(&fault),
            };
            let now = now_micros();
            let mut state = before.clone();
            if let Some((limit, requests, tokens)) = self.correction {
                state.book_usage(&limit, now, requests, tokens);
            }
            self.pauses.iter().for_each(|change| change.apply(&mut state));
            let admissions = book_requests(&self.waiting, &mut state, now);
            let written =
                if state == before { Ok(Some(revision)) } else { self.replace_state(revision, &state).await };
            match written {
                Ok(Some(revision)) => {
                    self.cached = Some((revision, state));
                    (self.correction, self.failures) = (None, 0);
                    self.pauses.clear();
                    for done in self.on_pause_written.drain(..) {
                        // The requester may have timed out.
                        let _ = done.send(());
                    }
                    return self.notify_and_schedule(admissions, now);
                }
                Ok(None) => {
                    self.cached = None;
                    let jitter = uuid::Uuid::new_v4().as_fields().0 % JITTER;
                    tokio::time::sleep(Duration::from_micros(jitter.into())).await;
                }
                Err(fault) => return self.reject_overdue_requests(&fault),
            }
        }
    }

    /// Notifies admitted and rejected requests, and schedules the next booking.
    fn notify_and_schedule(&mut self, admissions: Vec<Admission>, now: i64) {
        let mut next: Option<i64> = None;
        for (waiter, admission) in std::mem::take(&mut self.waiting).into_iter().zip(admissions) {
            match admission {
                Admission::Admitted => self.notify_admitted(waiter),
                Admission::Rejected(at) => reject_request(waiter, duration_from_micros(at - now)),
                Admission::Waits(at) => {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    self.waiting.push_back(waiter);
                }
            }
        }
        let next = next.map(|at| Instant::now() + duration_from_micros(at - now).min(MAX_STATE_AGE));
        // An admitted request may have been cancelled; then its booking is corrected.
        let correction = self.correction.map(|_| Instant::now() + CORRECTION_DELAY);
        self.wake = next.into_iter().chain(correction).min();
    }

    /// Notifies a request that it is booked. If it was cancelled, corrects the booking.
    fn notify_admitted(&mut self, waiter: WaitingRequest) {
        let WaitingRequest { limit, tokens, until: _, reply } = waiter;
        if reply.send(Ok(())).is_err() {
            self.correct_booking(limit, -1, -i64::try_from(tokens).unwrap_or(i64::MAX));
        }
    }

    fn correct_booking(&mut self, limit: RateLimit, requests: i64, tokens: i64) {
        let (_, more_requests, more_tokens) = self.correction.unwrap_or((limit, 0, 0));
        let tokens = more_tokens.saturating_add(tokens);
        self.correction = Some((limit, more_requests + requests, tokens));
    }

    /// Handles a failure of the bucket: rejects requests that have waited too long.
    fn reject_overdue_requests(&mut self, fault: &Fault) {
        self.failures += 1;
        let wait = backoff(self.failures);
        if self.failures == 4 {
            tracing::warn!(name = self.name, %fault, "booking on a rate limit fails; requests wait");
        }
        self.cached = None;
        let now = now_micros();
        for waiter in std::mem::take(&mut self.waiting) {
            if waiter.until < now {
                reject_request(waiter, wait);
            } else {
                self.waiting.push_back(waiter);
            }
        }
        self.wake = Some(Instant::now() + wait);
    }

    async fn read_state(&mut self) -> Result<(u64, RateLimitState), Fault> {
        if let Some(cached) = &self.cached {
            return Ok(cached.clone());
        }
        let state = STATES.read_state(&self.bus, &encode_subject_token(&self.name)).await?;
        // An unreadable state is replaced.
        let current = (state.last, state.entry.map(|entry| entry.value).unwrap_or_default());
        self.cached = Some(current.clone());
        Ok(current)
    }

    /// Replaces the state with this sequence; `None` if another process wrote first.
    async fn replace_state(&self, sequence: u64, state: &RateLimitState) -> Result<Option<u64>, Fault> {
        let key = encode_subject_token(&self.name);
        STATES.write(&self.bus, &key, state, ExpectedEntry::Sequence(sequence)).await
    }
}

/// Books the requests that can be admitted, and returns the admission of each. Requests never overtake each other.
fn book_requests(waiting: &VecDeque<WaitingRequest>, state: &mut RateLimitState, now: i64) -> Vec<Admission> {
    let mut ahead = state.clone();
    let mut earliest = now;
    waiting
        .iter()
        .map(|waiter| {
            let tokens = i64::try_from(waiter.tokens).unwrap_or(i64::MAX);
            let at = ahead.earliest_admission_time(&waiter.limit, earliest, waiter.tokens);
            if at > now && at > waiter.until {
                return Admission::Rejected(at);
            }
            ahead.book_usage(&waiter.limit, at, 1, tokens);
            earliest = at;
            if at > now {
                return Admission::Waits(at);
            }
            state.book_usage(&waiter.limit, now, 1, tokens);
            Admission::Admitted
        })
        .collect()
}

fn reject_request(waiter: WaitingRequest, wait: Duration) {
    // The request may have been cancelled.
    let _ = waiter.reply.send(Err(wait));
}

fn duration_from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
