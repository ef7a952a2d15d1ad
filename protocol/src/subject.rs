//! The subjects of the cluster. Whatever is published or subscribed to is named here and nowhere else.
//!
//! ```text
//! lane.<lane>.run.<run>.submitted                       client: the run as handed in
//! lane.<lane>.run.<run>.plan                            supervisor: one decision a message
//! lane.<lane>.run.<run>.task.<task>.<attempt>           worker: the journal of an attempt
//! lane.<lane>.run.<run>.review.<task>.<attempt>         critic: the journal of its reviews
//! lane.<lane>.run.<run>.planning.<turn>.<attempt>       planner: the journal of an attempt at a turn
//! lane.<lane>.run.<run>.control                         client: cancel
//! work.<capability>.<run>.<task>.<attempt>              supervisor: an order that waits for a worker
//! work.critic.<run>.<task>.<attempt>                    the same, for a review
//! work.planner.<run>.<turn>.<attempt>                   the same, for a turn of the planner
//! files.<run>.<part>.<part>…                             agents: one version of a file a message
//! stop.<run>                                            supervisor, no stream: who works on it stops
//! live.<run>.<topic>                                    agents, no stream: what a model is just writing
//! ```

use std::fmt;

use crate::file::FilePath;
use crate::ids::{Capability, Lane, RunId, TaskId};
use crate::plan::Work;

/// The capability that judges results.
pub const CRITIC: &str = "critic";
/// The capability that makes plans.
pub const PLANNER: &str = "planner";

/// A subject of a lane, below `lane.<lane>.run.<run>.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `submitted`.
    Submitted,
    /// `plan`.
    Plan,
    /// `task.<task>.<attempt>`.
    Task(TaskId, u32),
    /// `review.<task>.<attempt>`.
    Review(TaskId, u32),
    /// `planning.<turn>.<attempt>`.
    Planning(u32, u32),
    /// `control`.
    Control,
}

impl Topic {
    /// The journal of a piece of work.
    #[must_use]
    pub fn journal(work: &Work) -> Self {
        match work {
            Work::Task { task, attempt } => Self::Task(task.clone(), *attempt),
            Work::Review { task, attempt, .. } => Self::Review(task.clone(), *attempt),
            Work::Planning { turn, attempt } => Self::Planning(*turn, *attempt),
        }
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted => f.write_str("submitted"),
            Self::Plan => f.write_str("plan"),
            Self::Task(task, attempt) => write!(f, "task.{task}.{attempt}"),
            Self::Review(task, attempt) => write!(f, "review.{task}.{attempt}"),
            Self::Planning(turn, attempt) => write!(f, "planning.{turn}.{attempt}"),
            Self::Control => f.write_str("control"),
        }
    }
}

/// The subject of a topic of a run.
#[must_use]
pub fn topic(lane: Lane, run: &RunId, topic: &Topic) -> String {
    format!("lane.{lane}.run.{run}.{topic}")
}

/// All subjects of a run.
#[must_use]
pub fn run(lane: Lane, run: &RunId) -> String {
    format!("lane.{lane}.run.{run}.>")
}

/// All subjects of a lane.
#[must_use]
pub fn lane(lane: Lane) -> String {
    format!("lane.{lane}.>")
}

/// Where the runs of a lane are handed in.
#[must_use]
pub fn submissions(lane: Lane) -> String {
    format!("lane.{lane}.run.*.submitted")
}

/// The run and topic that a subject of a lane names; `None` if it names none.
#[must_use]
pub fn parse(subject: &str) -> Option<(Lane, RunId, Topic)> {
    let mut tokens = subject.split('.');
    let lane = match (tokens.next()?, tokens.next()?, tokens.next()?) {
        ("lane", lane, "run") => Lane(lane.parse().ok()?),
        (_, _, _) => return None,
    };
    let run = RunId::new(tokens.next()?).ok()?;
    let topic = match tokens.next()? {
        "submitted" => Topic::Submitted,
        "plan" => Topic::Plan,
        "control" => Topic::Control,
        "task" => Topic::Task(TaskId::new(tokens.next()?).ok()?, number(tokens.next()?)?),
        "review" => Topic::Review(TaskId::new(tokens.next()?).ok()?, number(tokens.next()?)?),
        "planning" => Topic::Planning(number(tokens.next()?)?, number(tokens.next()?)?),
        _ => return None,
    };
    tokens.next().is_none().then_some((lane, run, topic))
}

fn number(token: &str) -> Option<u32> {
    token.parse().ok().filter(|&number| number > 0)
}

/// The queue in which work waits: that of its capability, of critics or of planners.
#[must_use]
pub fn queue<'a>(capability: &'a Capability, work: &Work) -> &'a str {
    match work {
        Work::Task { .. } => capability.as_str(),
        Work::Review { .. } => CRITIC,
        Work::Planning { .. } => PLANNER,
    }
}

/// Where an order waits.
#[must_use]
pub fn order(run: &RunId, capability: &Capability, work: &Work) -> String {
    let queue = queue(capability, work);
    match work {
        Work::Task { task, attempt } | Work::Review { task, attempt, .. } => {
            format!("work.{queue}.{run}.{task}.{attempt}")
        }
        Work::Planning { turn, attempt } => format!("work.{queue}.{run}.{turn}.{attempt}"),
    }
}

/// Everything that waits for a capability.
#[must_use]
pub fn orders_for(capability: &Capability) -> String {
    format!("work.{capability}.>")
}

/// Everything that waits for a run.
#[must_use]
pub fn orders_of(run: &RunId) -> String {
    format!("work.*.{run}.>")
}

/// Every queue.
pub const ALL_ORDERS: &str = "work.>";

/// The versions of a file of a run's workspace: one token for each part of the path, with everything in it that is no
/// letter, digit, `-` or `_` as `=` and two hexadecimal digits a byte.
#[must_use]
pub fn file(run: &RunId, path: &FilePath) -> String {
    path.parts().fold(format!("files.{run}"), |subject, part| subject + "." + &token(part))
}

/// All files of a run below a folder, which is a path or, for all, `None`.
#[must_use]
pub fn files(run: &RunId, folder: Option<&FilePath>) -> String {
    folder.map_or_else(|| format!("files.{run}"), |folder| file(run, folder)) + ".>"
}

/// The run and the path that a subject of a file names; `None` if it names none.
#[must_use]
pub fn parse_file(subject: &str) -> Option<(RunId, FilePath)> {
    let (run, parts) = subject.strip_prefix("files.")?.split_once('.')?;
    let parts: Option<Vec<String>> = parts.split('.').map(read_token).collect();
    let (run, path) = (RunId::new(run).ok()?, FilePath::new(&format!("/{}", parts?.join("/"))).ok()?);
    // A path has one subject: another way to write it is nobody's.
    (file(&run, &path) == subject).then_some((run, path))
}

/// The files of all runs.
pub const ALL_FILES: &str = "files.>";

/// Any text as a token of a subject, which is also a part of a bucket's key.
#[must_use]
pub fn token(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut token, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("={byte:02x}"));
        }
        token
    })
}

/// The text that a token stands for; `None` if it stands for none.
#[must_use]
pub fn read_token(token: &str) -> Option<String> {
    let mut pieces = token.split('=');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        bytes.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Where it is said that work on a run is not wanted any more.
#[must_use]
pub fn stop(run: &RunId) -> String {
    format!("stop.{run}")
}

/// Where it is told what a model is just writing, for whoever watches.
#[must_use]
pub fn live(run: &RunId, work: &Work) -> String {
    format!("live.{run}.{}", Topic::journal(work))
}

/// All [`live`] subjects of a run.
#[must_use]
pub fn all_live(run: &RunId) -> String {
    format!("live.{run}.>")
}

/// All [`stop`] subjects.
pub const ALL_STOPS: &str = "stop.*";

/// Whatever any model is just writing.
pub const ALL_LIVE: &str = "live.>";

/// A kind of topic, for those who may write it in any run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// [`Topic::Submitted`].
    Submitted,
    /// [`Topic::Plan`].
    Plan,
    /// [`Topic::Task`].
    Task,
    /// [`Topic::Review`].
    Review,
    /// [`Topic::Planning`].
    Planning,
    /// [`Topic::Control`].
    Control,
}

impl Kind {
    fn pattern(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Plan => "plan",
            Self::Task => "task.*.*",
            Self::Review => "review.*.*",
            Self::Planning => "planning.*.*",
            Self::Control => "control",
        }
    }
}

/// All subjects of a kind of topic, in all runs of all lanes.
#[must_use]
pub fn every(kind: Kind) -> String {
    format!("lane.*.run.*.{}", kind.pattern())
}

/// All [`live`] subjects of a kind of work.
#[must_use]
pub fn every_live(kind: Kind) -> String {
    format!("live.*.{}", kind.pattern())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_parses_back_to_itself() {
        let (run, task) = (RunId::new("r-1").unwrap(), TaskId::new("t_1").unwrap());
        for topic in [
            Topic::Submitted,
            Topic::Plan,
            Topic::Task(task.clone(), 3),
            Topic::Review(task, 1),
            Topic::Planning(1, 2),
            Topic::Control,
        ] {
            let subject = super::topic(Lane(7), &run, &topic);
            assert_eq!(parse(&subject), Some((Lane(7), run.clone(), topic)), "{subject}");
        }
    }

    /// Whether a subject is one of those that a pattern names, token by token.
    fn is_one_of(subject: &str, pattern: &str) -> bool {
        let (subject, pattern): (Vec<_>, Vec<_>) =
            (subject.split('.').collect(), pattern.split('.').collect());
        subject.len() == pattern.len()
            && subject.iter().zip(pattern).all(|(token, wanted)| wanted == "*" || *token == wanted)
    }

    #[test]
    fn each_topic_is_of_one_kind() {
        let (run, task) = (RunId::new("r-1").unwrap(), TaskId::new("t_1").unwrap());
        let kinds = [
            (Kind::Submitted, Topic::Submitted),
            (Kind::Plan, Topic::Plan),
            (Kind::Task, Topic::Task(task.clone(), 3)),
            (Kind::Review, Topic::Review(task.clone(), 1)),
            (Kind::Planning, Topic::Planning(1, 2)),
            (Kind::Control, Topic::Control),
        ];
        for (kind, of) in &kinds {
            let subject = topic(Lane(7), &run, of);
            for (other, _) in &kinds {
                assert_eq!(is_one_of(&subject, &every(*other)), kind == other, "{subject} {other:?}");
            }
        }
        let writing = live(&run, &Work::Task { task, attempt: 1 });
        assert!(
            is_one_of(&writing, &every_live(Kind::Task)) && !is_one_of(&writing, &every_live(Kind::Review))
        );
    }

    #[test]
    fn every_path_has_a_subject_of_its_own_that_parses_back() {
        let run = RunId::new("r-1").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for text in [
            "a", "a/b", "a.b", "a=2eb", "a..b", "..a", "*", ">", "a/>", "a b", "\u{e9}", "e\u{301}", "%",
            "=", "$JS",
        ] {
            let path = FilePath::new(text).unwrap();
            let subject = file(&run, &path);
            assert_eq!(parse_file(&subject), Some((run.clone(), path)), "{subject}");
            assert!(seen.insert(subject), "{text}");
        }
        assert_eq!(file(&run, &FilePath::new("/notes/a.md").unwrap()), "files.r-1.notes.a=2emd");
        for subject in [
            "files.r",
            "files.r.=",
            "files.r.=zz",
            "files.r.=ff",
            "files.r.a..b",
            "files.r.=2e=2e",
            "files.r.=61",
            "plan",
        ] {
            assert_eq!(parse_file(subject), None, "{subject}");
        }
    }

    #[test]
    fn a_subject_with_anything_more_less_or_else_names_nothing() {
        for subject in [
            "",
            "lane.0.run.r",
            "lane.x.run.r.plan",
            "lane.0.run.r.plan.more",
            "lane.0.run.r.task.t",
            "lane.0.run.r.task.t.0",
            "lane.0.run.r.task.t.1.2",
            "lane.0.run.r.task..1",
            "lane.0.run.r!.plan",
            "work.c.r.t.1",
        ] {
            assert_eq!(parse(subject), None, "{subject}");
        }
    }
}
