//! The one in a process that books on a rate: whoever wants to make a request asks it, and it books for all who wait by
//! one compare-and-set, so that a thousand attempts are one writer. It ends with the limiter.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::jetstream::kv;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::rate::{Allowed, State};
use super::{now, state_key};
use crate::Fault;
use crate::fault::pause;
use crate::topology::fault;

/// How long corrections wait for company.
const COMPANY: Duration = Duration::from_millis(250);
/// How long those who wait believe what was last read.
const BELIEF: Duration = Duration::from_secs(1);
/// The longest wait, in microseconds, before a compare-and-set that was lost is tried again.
const JITTER: u32 = 5_000;

/// What a keeper is asked for.
pub(super) enum Ask {
    /// To book a request.
    Admit(Waiter),
    /// To correct what was booked.
    Correct {
        /// At which rate it counts.
        allowed: Allowed,
        /// Requests more, or less.
        requests: i64,
        /// Tokens more, or less.
        tokens: i64,
    },
    /// To let nothing go for a while.
    Pause {
        /// Until when.
        until: i64,
        /// Told when it is written.
        done: oneshot::Sender<()>,
    },
}

/// Who waits for a request to be booked.
pub(super) struct Waiter {
    /// The rate.
    pub allowed: Allowed,
    /// How many tokens the request may take.
    pub tokens: u64,
    /// Until when it waits.
    pub until: i64,
    /// Told when it is booked, or how long it would have to wait.
    pub reply: oneshot::Sender<Result<(), Duration>>,
}

/// What becomes of who waits.
enum Fate {
    Goes,
    Waits(i64),
    Refused(i64),
}

pub(super) struct Keeper {
    store: kv::Store,
    name: String,
    /// What the bucket held when it was last read or written, and its revision; 0 for none.
    known: Option<(u64, State)>,
    waiting: VecDeque<Waiter>,
    /// What is to be corrected: the rate, requests, tokens.
    correction: Option<(Allowed, i64, i64)>,
    paused: Option<i64>,
    told: Vec<oneshot::Sender<()>>,
    /// When there is something to do.
    wake: Option<Instant>,
    /// How often in a row the bucket could not be used.
    failures: u32,
}

impl Keeper {
    pub fn new(store: kv::Store, name: String) -> Self {
        Self {
            store,
            name,
            known: None,
            waiting: VecDeque::new(),
            correction: None,
            paused: None,
            told: Vec::new(),
            wake: None,
            failures: 0,
        }
    }

    /// Keeps until nobody can ask any more.
    pub async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Ask>) {
        loop {
            let wake = self.wake;
            let sleep = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = asked.recv() => match ask {
                    Some(ask) => self.take(ask),
                    None => break,
                },
                () = sleep => {
                    // Time has passed, and others book too.
                    self.known = None;
                    self.wake = Some(Instant::now());
                }
            }
            while let Ok(ask) = asked.try_recv() {
                self.take(ask);
            }
            if self.wake.is_some_and(|wake| wake <= Instant::now()) {
                self.round().await;
            }
        }
        if self.correction.is_some() {
            self.round().await;
        }
    }

    fn take(&mut self, ask: Ask) {
        let soon = match ask {
            Ask::Admit(waiter) => {
                self.waiting.push_back(waiter);
                Instant::now()
            }
            Ask::Correct { allowed, requests, tokens } => {
                self.correct(allowed, requests, tokens);
                Instant::now() + COMPANY
            }
            Ask::Pause { until, done } => {
                self.paused = self.paused.max(Some(until));
                self.told.push(done);
                Instant::now()
            }
        };
        self.wake = Some(self.wake.map_or(soon, |wake| wake.min(soon)));
    }

    /// Books for all who can go, in one write; again where another was faster.
    async fn round(&mut self) {
        loop {
            self.waiting.retain(|waiter| !waiter.reply.is_closed());
            let (revision, before) = match self.read().await {
                Ok(known) => known,
                Err(fault) => return self.fail(&fault),
            };
            let now = now();
            let mut state = before.clone();
            if let Some((allowed, requests, tokens)) = self.correction {
                state.book(&allowed, now, requests, tokens);
            }
            if let Some(until) = self.paused {
                state.pause(until);
            }
            let fates = book(&self.waiting, &mut state, now);
            let written =
                if state == before { Ok(Some(revision)) } else { self.write(revision, &state).await };
            match written {
                Ok(Some(revision)) => {
                    self.known = Some((revision, state));
                    (self.correction, self.paused, self.failures) = (None, None, 0);
                    for told in self.told.drain(..) {
                        // Whoever asked may have gone on.
                        let _ = told.send(());
                    }
                    return self.settle(fates, now);
                }
                Ok(None) => {
                    self.known = None;
                    let jitter = uuid::Uuid::new_v4().as_fields().0 % JITTER;
                    tokio::time::sleep(Duration::from_micros(jitter.into())).await;
                }
                Err(fault) => return self.fail(&fault),
            }
        }
    }

    /// Tells those who go and those who can't wait, and looks ahead to the next.
    fn settle(&mut self, fates: Vec<Fate>, now: i64) {
        let mut next: Option<i64> = None;
        for (waiter, fate) in std::mem::take(&mut self.waiting).into_iter().zip(fates) {
            match fate {
                Fate::Goes => self.let_go(waiter),
                Fate::Refused(at) => send_away(waiter, micros(at - now)),
                Fate::Waits(at) => {
                    next = Some(next.map_or(at, |next| next.min(at)));
                    self.waiting.push_back(waiter);
                }
            }
        }
        let next = next.map(|at| Instant::now() + micros(at - now).min(BELIEF));
        // Somebody may have gone, and what was booked for him is to be given back.
        let correction = self.correction.map(|_| Instant::now() + COMPANY);
        self.wake = next.into_iter().chain(correction).min();
    }

    /// Tells who waits that it is booked. What was booked for one who is gone is given back.
    fn let_go(&mut self, waiter: Waiter) {
        let Waiter { allowed, tokens, until: _, reply } = waiter;
        if reply.send(Ok(())).is_err() {
            self.correct(allowed, -1, -i64::try_from(tokens).unwrap_or(i64::MAX));
        }
    }

    fn correct(&mut self, allowed: Allowed, requests: i64, tokens: i64) {
        let (_, more_requests, more_tokens) = self.correction.unwrap_or((allowed, 0, 0));
        let tokens = more_tokens.saturating_add(tokens);
        self.correction = Some((allowed, more_requests + requests, tokens));
    }

    /// The bucket can't be used: those whose patience is over are sent away, the others wait.
    fn fail(&mut self, fault: &Fault) {
        self.failures += 1;
        let wait = pause(self.failures);
        if self.failures == 4 {
            tracing::warn!(name = self.name, %fault, "the rate of a model can't be booked; requests wait");
        }
        self.known = None;
        let now = now();
        for waiter in std::mem::take(&mut self.waiting) {
            if waiter.until < now {
                send_away(waiter, wait);
            } else {
                self.waiting.push_back(waiter);
            }
        }
        self.wake = Some(Instant::now() + wait);
    }

    async fn read(&mut self) -> Result<(u64, State), Fault> {
        if let Some(known) = &self.known {
            return Ok(known.clone());
        }
        let found = self.store.entry(state_key(&self.name)).await;
        let found = found.map_err(|error| fault(&format!("reading the rate of {}", self.name), &error))?;
        let known = found.map_or((0, State::default()), |entry| {
            // What can't be read, as by an older program, is begun anew.
            (entry.revision, serde_json::from_slice(&entry.value).unwrap_or_default())
        });
        self.known = Some(known.clone());
        Ok(known)
    }

    /// Writes a state in place of the one with this revision; `None` if another was faster.
    async fn write(&self, revision: u64, state: &State) -> Result<Option<u64>, Fault> {
        let bytes = serde_json::to_vec(state).expect("a state has a form in JSON");
        match self.store.update(state_key(&self.name), bytes.into(), revision).await {
            Ok(revision) => Ok(Some(revision)),
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => Ok(None),
            Err(error) => Err(fault(&format!("booking on the rate of {}", self.name), &error)),
        }
    }
}

/// Books for those who can go, and says what becomes of each, in their order: nobody overtakes another.
fn book(waiting: &VecDeque<Waiter>, state: &mut State, now: i64) -> Vec<Fate> {
    let mut ahead = state.clone();
    let mut earliest = now;
    waiting
        .iter()
        .map(|waiter| {
            let tokens = i64::try_from(waiter.tokens).unwrap_or(i64::MAX);
            let at = ahead.free_at(&waiter.allowed, earliest, waiter.tokens);
            if at > now && at > waiter.until {
                return Fate::Refused(at);
            }
            ahead.book(&waiter.allowed, at, 1, tokens);
            earliest = at;
            if at > now {
                return Fate::Waits(at);
            }
            state.book(&waiter.allowed, now, 1, tokens);
            Fate::Goes
        })
        .collect()
}

fn send_away(waiter: Waiter, wait: Duration) {
    // Whoever waited may have gone, which is as good.
    let _ = waiter.reply.send(Err(wait));
}

fn micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
