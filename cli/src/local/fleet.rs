//! The processes of a local cluster: started, watched, started again when they die unasked, and stopped in order.
//!
//! A fleet is used by one thread from its making to its end: its processes are bound to the thread that starts them.
//! A small thread per process waits for the process's end and says so to the fleet's inbox; it never reaps, so that a pid in a
//! running member's state always names that very process. Dropping a fleet kills everything in it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::Serialize;
use tokio::sync::{mpsc::UnboundedSender, oneshot};

use super::bound::Launcher;
use super::data::{self, Layout};
use super::options::{Child, Role};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A process that lived this long has recovered: its next death is a new trouble, not the old one going on.
const STEADY: Duration = Duration::from_secs(30);

/// Workers and critics may end the step at hand.
const GRACE_FOR_WORK: Duration = Duration::from_secs(10);
/// Supervisors hand their lanes over, which is a write or two.
const GRACE_FOR_SUPERVISORS: Duration = Duration::from_secs(5);
/// The server writes out what it has in memory.
const GRACE_FOR_SERVER: Duration = Duration::from_secs(10);

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was started.
    Started {
        /// `worker-1`, `nats-server`.
        name: String,
        /// Its process id.
        pid: u32,
        /// How often it was started before.
        restarts: u32,
    },
    /// It ended unasked, and will be started again.
    Died {
        /// `worker-1`, `nats-server`.
        name: String,
        /// How it ended, such as `signal: 9 (SIGKILL)`.
        status: String,
        /// The pause before it is started again, in milliseconds.
        pause_ms: u64,
        /// The last line in its log since its start.
        last_words: String,
    },
    /// It could not be started, which will be tried again.
    NotStarted {
        /// `worker-1`, `nats-server`.
        name: String,
        /// Why.
        error: String,
        /// The pause before the next attempt, in milliseconds.
        pause_ms: u64,
    },
}

/// What comes to a fleet's inbox.
pub enum Message {
    /// The process of a member ended; by the member's place and the pid.
    Ended(usize, Pid),
    /// Stop everything in order. The answer comes when the cluster is gone.
    Stop(oneshot::Sender<()>),
    /// Kill everything, now.
    Kill,
}

/// A process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its log can't be written.
    #[error(transparent)]
    Log(#[from] data::Error),
    /// The operating system refused.
    #[error("{name} can't be started: {source}")]
    Spawn {
        /// `worker-1`, `nats-server`.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// The processes of one cluster.
pub struct Fleet {
    layout: Layout,
    launcher: Launcher,
    members: Vec<Member>,
    inbox: Receiver<Message>,
    outbox: Sender<Message>,
    events: UnboundedSender<Event>,
    /// Set once everything is to be killed: no further grace is given.
    hurry: bool,
}

struct Member {
    child: Child,
    state: State,
    restarts: u32,
    backoff: Backoff,
    /// The length of its log when it was last started.
    log_start: u64,
}

enum State {
    Running { process: process::Child, since: Instant },
    Resting { until: Instant },
    Stopped(Option<ExitStatus>),
}

impl Fleet {
    /// An empty fleet, and where to send it messages.
    pub fn new(
        layout: Layout,
        launcher: Launcher,
        events: UnboundedSender<Event>,
    ) -> (Self, Sender<Message>) {
        let (outbox, inbox) = mpsc::channel();
        let mailbox = outbox.clone();
        (Self { layout, launcher, members: Vec::new(), inbox, outbox, events, hurry: false }, mailbox)
    }

    /// Starts a process as a new member.
    pub fn add(&mut self, child: Child) -> Result<(), Error> {
        self.layout.rotate_log(&child.name())?;
        let state = State::Stopped(None);
        self.members.push(Member { child, state, restarts: 0, backoff: Backoff::new(), log_start: 0 });
        self.start(self.members.len() - 1)
    }

    /// Waits for up to `limit` while the members start up. Returns how the member of `role` ended, if it did; then it is
    /// not started again.
    pub fn wait_for_end(&mut self, role: Role, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(Member { state: State::Stopped(Some(status)), .. }) = self.member(role) {
                return Some(*status);
            }
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Message::Ended(place, pid)) => drop(self.reap(place, pid)),
                Ok(Message::Stop(_) | Message::Kill) => self.hurry = true,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// The last lines that the member of `role` wrote to its log since it was last started.
    pub fn last_words(&self, role: Role, lines: usize) -> String {
        self.member(role).map_or_else(String::new, |member| {
            data::tail(&self.layout.log(&member.child.name()), member.log_start, lines)
        })
    }

    fn member(&self, role: Role) -> Option<&Member> {
        self.members.iter().find(|member| member.child.role == role)
    }

    /// Keeps every member running until it is told to stop; then stops them in order, and returns whom to answer.
    pub fn keep(&mut self) -> Option<oneshot::Sender<()>> {
        loop {
            match self.next_message() {
                Some(Message::Ended(place, pid)) => self.mourn(place, pid),
                Some(Message::Stop(asker)) => {
                    self.stop_in_order();
                    return Some(asker);
                }
                Some(Message::Kill) => {
                    self.hurry = true;
                    return None;
                }
                None => self.start_rested(),
            }
        }
    }

    /// Waits for a message, or until a member has rested.
    fn next_message(&self) -> Option<Message> {
        let rested = self.members.iter().filter_map(Member::rests_until).min();
        match rested {
            Some(at) => self.inbox.recv_timeout(at.saturating_duration_since(Instant::now())).ok(),
            None => self.inbox.recv().ok(),
        }
    }

    fn start(&mut self, place: usize) -> Result<(), Error> {
        let member = &mut self.members[place];
        let name = member.child.name();
        let log = self.layout.open_log(&name)?;
        let spawn_error = |source| Error::Spawn { name: name.clone(), source };
        let mut command = command(&member.child, &self.launcher, &self.layout);
        command.stdout(log.try_clone().map_err(spawn_error)?).stderr(log.try_clone().map_err(spawn_error)?);
        member.log_start = log.metadata().map_or(0, |metadata| metadata.len());
        let mut process = command.spawn().map_err(spawn_error)?;
        let pid = Pid::from_child(&process);
        if let Err(error) = watch(place, pid, self.outbox.clone()) {
            let _ = process.kill().and_then(|()| process.wait());
            return Err(spawn_error(error));
        }
        let event = Event::Started { name, pid: process.id(), restarts: member.restarts };
        member.state = State::Running { process, since: Instant::now() };
        self.tell(event);
        Ok(())
    }

    /// A member ended unasked.
    fn mourn(&mut self, place: usize, pid: Pid) {
        let Some((status, lived)) = self.reap(place, pid) else { return };
        let member = &mut self.members[place];
        let pause = member.rest(lived);
        let name = member.child.name();
        let last_words = data::tail(&self.layout.log(&name), member.log_start, 1);
        self.tell(Event::Died {
            name,
            status: status.to_string(),
            pause_ms: milliseconds(pause),
            last_words,
        });
    }

    fn start_rested(&mut self) {
        let now = Instant::now();
        let rested = |member: &Member| member.rests_until().is_some_and(|until| until <= now);
        let places: Vec<usize> =
            (0..self.members.len()).filter(|place| rested(&self.members[*place])).collect();
        for place in places {
            self.members[place].restarts += 1;
            if let Err(error) = self.start(place) {
                let member = &mut self.members[place];
                let pause = member.rest(Duration::ZERO);
                let name = member.child.name();
                let error = error.to_string();
                self.tell(Event::NotStarted { name, error, pause_ms: milliseconds(pause) });
            }
        }
    }

    /// Those who do the work first, then those who plan it, and the server last: each can still log what it leaves.
    fn stop_in_order(&mut self) {
        self.stop(&[Role::Worker, Role::Critic], GRACE_FOR_WORK);
        self.stop(&[Role::Supervisor], GRACE_FOR_SUPERVISORS);
        self.stop(&[Role::NatsServer], GRACE_FOR_SERVER);
    }

    fn stop(&mut self, roles: &[Role], grace: Duration) {
        let of_roles = |member: &Member| roles.contains(&member.child.role);
        for member in self.members.iter_mut().filter(|member| of_roles(member)) {
            member.ask_to_stop();
        }
        let deadline = Instant::now() + grace;
        while !self.hurry && self.members.iter().any(|member| of_roles(member) && member.is_running()) {
            match self.inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Message::Ended(place, pid)) => drop(self.reap(place, pid)),
                Ok(Message::Kill) => self.hurry = true,
                Ok(Message::Stop(_)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for member in self.members.iter_mut().filter(|member| of_roles(member)) {
            member.kill();
        }
    }

    /// Takes note of the end of a process. `None` if it is no member's any more.
    fn reap(&mut self, place: usize, pid: Pid) -> Option<(ExitStatus, Duration)> {
        let member = &mut self.members[place];
        match &member.state {
            State::Running { process, since } if Pid::from_child(process) == pid => {
                let lived = since.elapsed();
                Some((member.kill()?, lived))
            }
            State::Running { .. } | State::Resting { .. } | State::Stopped(_) => None,
        }
    }

    fn tell(&self, event: Event) {
        // Whoever does not listen does not want to know.
        let _ = self.events.send(event);
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in self.members.iter_mut().rev() {
            member.kill();
        }
    }
}

impl Member {
    fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    fn rests_until(&self) -> Option<Instant> {
        match self.state {
            State::Resting { until } => Some(until),
            State::Running { .. } | State::Stopped(_) => None,
        }
    }

    fn rest(&mut self, lived: Duration) -> Duration {
        let pause = self.backoff.after(lived);
        self.state = State::Resting { until: Instant::now() + pause };
        pause
    }

    fn ask_to_stop(&mut self) {
        match &self.state {
            State::Running { process, .. } => {
                let _ = kill_process(Pid::from_child(process), Signal::TERM);
            }
            State::Resting { .. } => self.state = State::Stopped(None),
            State::Stopped(_) => {}
        }
    }

    /// Kills the process with all that it started in its group, and reaps it. Also for one that ended by itself, which
    /// may have left others behind.
    fn kill(&mut self) -> Option<ExitStatus> {
        let State::Running { process, .. } = &mut self.state else { return None };
        let _ = kill_process_group(Pid::from_child(process), Signal::KILL);
        let status = process.wait().ok();
        self.state = State::Stopped(status);
        status
    }
}

/// The pause before a process is started again: 0.2 s at first, then twice as long each time, up to 10 s.
#[derive(Debug)]
struct Backoff {
    next: Duration,
}

impl Backoff {
    fn new() -> Self {
        Self { next: FIRST_PAUSE }
    }

    fn after(&mut self, lived: Duration) -> Duration {
        if lived >= STEADY {
            self.next = FIRST_PAUSE;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

/// A group of its own keeps a terminal's Ctrl-C from the process: this one gets it, and stops all in order.
fn command(child: &Child, launcher: &Launcher, layout: &Layout) -> Command {
    let mut command = match child.role {
        Role::NatsServer => {
            let mut command = launcher.bound_holding(&child.program, &layout.nats_lock());
            command.current_dir(layout.root());
            command
        }
        Role::Supervisor | Role::Worker | Role::Critic => {
            let mut command = launcher.bound(&child.program);
            // For another cluster; it would go before the credentials of this one.
            command.env_remove("MILLRACE_NATS_CREDS");
            // One address can't be had by all of them.
            command.env_remove("MILLRACE_HTTP");
            command
        }
    };
    command.args(&child.arguments).envs(&child.environment).process_group(0);
    command
}

/// Waits for the end of a process on a thread of its own, and leaves the process to be reaped.
fn watch(place: usize, pid: Pid, outbox: Sender<Message>) -> io::Result<()> {
    let wait = move || {
        while let Err(Errno::INTR) = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        }
        let _ = outbox.send(Message::Ended(place, pid));
    };
    thread::Builder::new().name("process-watch".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_seconds() {
        let mut backoff = Backoff::new();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn a_process_that_lived_long_starts_again_at_once() {
        let mut backoff = Backoff::new();
        for _ in 0..8 {
            backoff.after(Duration::ZERO);
        }
        assert_eq!(backoff.after(STEADY), FIRST_PAUSE);
    }
}
