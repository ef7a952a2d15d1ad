//! The NATS subjects of the cluster. All subjects that are published or subscribed to are named here and nowhere else.
//!
//! ```text
//! lane.<lane>.run.<run>.submitted                       client: the submission of the run
//! lane.<lane>.run.<run>.plan                            supervisor: one decision per message
//! lane.<lane>.run.<run>.task.<task>.<attempt>           worker: the journal of an attempt
//! lane.<lane>.run.<run>.review.<task>.<attempt>         critic: the journal of its reviews
//! lane.<lane>.run.<run>.planning.<turn>.<attempt>       planner: the journal of an attempt at a turn
//! lane.<lane>.run.<run>.control                         client: commands
//! lane.<lane>.run.<run>.answer                          client: answers of persons to questions
//! work.<capability>.<run>.<task>.<attempt>              supervisor: an order for a worker
//! work.critic.<run>.<task>.<attempt>                    the same, for a review
//! work.planner.<run>.<turn>.<attempt>                   the same, for a turn of the planner
//! files.<run>.<part>.<part>…                             agents: one version of a file per message
//! stop.<run>                                            supervisor, no stream: workers of the run stop
//! live.<run>.<topic>                                    agents, no stream: a model's output while it is written
//! ```

use std::fmt;

use crate::file::FilePath;
use crate::ids::{Capability, Lane, RunId, TaskId};
use crate::plan::{JournalKey, Work, WorkKind};

/// The capability that reviews results.
pub const CRITIC: &str = "critic";
/// The capability that makes plans.
pub const PLANNER: &str = "planner";
/// The role whose model verifies statements. It has no queue and no capability.
pub const VERIFIER: &str = "verifier";
/// The role whose model embeds documents and queries, so that searches find passages by their meaning. It has no queue and no
/// capability.
pub const EMBEDDINGS: &str = "embeddings";
/// The capability that verifies a text which no agent of the run wrote.
pub const VERIFY: &str = "verify";

/// A topic of a run: the end of a lane's subject, below `lane.<lane>.run.<run>.`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Topic {
    /// `submitted`.
    Submitted,
    /// `plan`.
    Plan,
    /// `task.<task>.<attempt>`, `review.<task>.<attempt>` or `planning.<turn>.<attempt>`.
    Journal(JournalKey),
    /// `control`.
    Control,
    /// `answer`.
    Answer,
}

impl Topic {
    /// The topic of the journal of a piece of work.
    #[must_use]
    pub fn journal_of_work(work: &Work) -> Self {
        Self::Journal(work.journal_key())
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted => f.write_str("submitted"),
            Self::Plan => f.write_str("plan"),
            Self::Journal(JournalKey::Task(task, attempt)) => write!(f, "task.{task}.{attempt}"),
            Self::Journal(JournalKey::Review(task, attempt)) => write!(f, "review.{task}.{attempt}"),
            Self::Journal(JournalKey::Planning(turn, attempt)) => write!(f, "planning.{turn}.{attempt}"),
            Self::Control => f.write_str("control"),
            Self::Answer => f.write_str("answer"),
        }
    }
}

/// The subject of a topic of a run.
#[must_use]
pub fn topic_subject(lane: Lane, run: &RunId, topic: &Topic) -> String {
    format!("lane.{lane}.run.{run}.{topic}")
}

/// All subjects of a run.
#[must_use]
pub fn all_subjects_of_run(lane: Lane, run: &RunId) -> String {
    format!("lane.{lane}.run.{run}.>")
}

/// The journals of all attempts at a task, and those of their reviews.
#[must_use]
pub fn journals_of_task(lane: Lane, run: &RunId, task: &TaskId) -> [String; 2] {
    ["task", "review"].map(|kind| format!("lane.{lane}.run.{run}.{kind}.{task}.*"))
}

/// The journals of all turns of a run's planner.
#[must_use]
pub fn journals_of_planner(lane: Lane, run: &RunId) -> String {
    format!("lane.{lane}.run.{run}.planning.*.*")
}

/// All subjects of a lane.
#[must_use]
pub fn all_subjects_of_lane(lane: Lane) -> String {
    format!("lane.{lane}.>")
}

/// The subjects on which the runs of a lane are submitted.
#[must_use]
pub fn submission_subjects_of_lane(lane: Lane) -> String {
    format!("lane.{lane}.run.*.submitted")
}

/// The plans of all runs of a lane.
#[must_use]
pub fn plan_subjects_of_lane(lane: Lane) -> String {
    format!("lane.{lane}.run.*.plan")
}

/// The run and topic that a subject of a lane names; `None` if it names none.
#[must_use]
pub fn parse_lane_subject(subject: &str) -> Option<(Lane, RunId, Topic)> {
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
        "answer" => Topic::Answer,
        "task" => Topic::Journal(JournalKey::Task(
            TaskId::new(tokens.next()?).ok()?,
            parse_positive_number(tokens.next()?)?,
        )),
        "review" => Topic::Journal(JournalKey::Review(
            TaskId::new(tokens.next()?).ok()?,
            parse_positive_number(tokens.next()?)?,
        )),
        "planning" => Topic::Journal(JournalKey::Planning(
            parse_positive_number(tokens.next()?)?,
            parse_positive_number(tokens.next()?)?,
        )),
        _ => return None,
    };
    tokens.next().is_none().then_some((lane, run, topic))
}

/// The token of a lane's subject that names the run, valid or not; `None` if the subject is none of a run.
#[must_use]
pub fn run_token_of_lane_subject(subject: &str) -> Option<&str> {
    let mut tokens = subject.split('.');
    match (tokens.next()?, tokens.next()?, tokens.next()?) {
        ("lane", _, "run") => tokens.next(),
        (_, _, _) => None,
    }
}

fn parse_positive_number(token: &str) -> Option<u32> {
    token.parse().ok().filter(|&number| number > 0)
}

/// The subject of an order; `capability` is that of its task.
#[must_use]
pub fn order_subject(run: &RunId, capability: &Capability, work: &Work) -> String {
    let queue = work.queue_name(capability);
    match work {
        Work::Task { task, attempt } | Work::Review { task, attempt, .. } => {
            format!("work.{queue}.{run}.{task}.{attempt}")
        }
        Work::Planning { turn, attempt } => format!("work.{queue}.{run}.{turn}.{attempt}"),
    }
}

/// The queue and the run of the subject of an order; `None` if it is no such subject.
#[must_use]
pub fn parse_order_subject(subject: &str) -> Option<(Capability, RunId)> {
    let mut tokens = subject.strip_prefix("work.")?.split('.');
    let (queue, run) = (Capability::new(tokens.next()?).ok()?, RunId::new(tokens.next()?).ok()?);
    let is_complete = tokens.next().is_some() && tokens.next().is_some() && tokens.next().is_none();
    is_complete.then_some((queue, run))
}

/// The task in the subject of an order; `None` if it is no such subject. For an order of the planner it may be any name.
#[must_use]
pub fn task_of_order_subject(subject: &str) -> Option<TaskId> {
    TaskId::new(subject.strip_prefix("work.")?.split('.').nth(2)?).ok()
}

/// All orders for a capability.
#[must_use]
pub fn order_subjects_of_capability(capability: &Capability) -> String {
    format!("work.{capability}.>")
}

/// All orders of a run.
#[must_use]
pub fn order_subjects_of_run(run: &RunId) -> String {
    format!("work.*.{run}.>")
}

/// All orders.
pub const ALL_ORDERS: &str = "work.>";

/// The owner of a set of files with versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSpace {
    /// The workspace of a run.
    Run(RunId),
    /// The memories of the account, which outlive all runs.
    Memories,
}

/// The token of the memories in place of a run. No run has this name: a name begins with a letter or a digit.
const MEMORIES_TOKEN: &str = "_memories";

impl FileSpace {
    fn subject_token(&self) -> &str {
        match self {
            Self::Run(run) => run.as_str(),
            Self::Memories => MEMORIES_TOKEN,
        }
    }

    fn parse_token(token: &str) -> Option<Self> {
        match token {
            MEMORIES_TOKEN => Some(Self::Memories),
            run => RunId::new(run).ok().map(Self::Run),
        }
    }
}

/// For people: `run r`, `the memories`.
impl fmt::Display for FileSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(run) => write!(f, "run {run}"),
            Self::Memories => f.write_str("the memories"),
        }
    }
}

/// The subject of the versions of a file: one [`encode_subject_token`] per part of the path.
#[must_use]
pub fn file_subject(space: &FileSpace, path: &FilePath) -> String {
    let root = format!("files.{}", space.subject_token());
    path.parts().fold(root, |subject, part| subject + "." + &encode_subject_token(part))
}

/// All files below a folder; `None` is the root.
#[must_use]
pub fn file_subjects_in_folder(space: &FileSpace, folder: Option<&FilePath>) -> String {
    let root = || format!("files.{}", space.subject_token());
    folder.map_or_else(root, |folder| file_subject(space, folder)) + ".>"
}

/// The owner and the path that a subject of a file names; `None` if it names none.
#[must_use]
pub fn parse_file_subject(subject: &str) -> Option<(FileSpace, FilePath)> {
    let (space, parts) = subject.strip_prefix("files.")?.split_once('.')?;
    let parts: Option<Vec<String>> = parts.split('.').map(decode_subject_token).collect();
    let (space, path) =
        (FileSpace::parse_token(space)?, FilePath::new(&format!("/{}", parts?.join("/"))).ok()?);
    // Each path has one subject; other spellings of it are invalid.
    (file_subject(&space, &path) == subject).then_some((space, path))
}

/// The memories of the account.
#[must_use]
pub fn memory_subjects() -> String {
    file_subjects_in_folder(&FileSpace::Memories, None)
}

/// The files of all runs, and the memories.
pub const ALL_FILES: &str = "files.>";

/// Encodes any text as a token of a subject or of a bucket's key: each byte that is no ASCII letter, digit, `-` or `_`
/// becomes `=` and two hexadecimal digits.
#[must_use]
pub fn encode_subject_token(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut token, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            token.push(char::from(byte));
        } else {
            token.push_str(&format!("={byte:02x}"));
        }
        token
    })
}

/// Decodes a token; `None` if it is not valid.
#[must_use]
pub fn decode_subject_token(token: &str) -> Option<String> {
    let mut pieces = token.split('=');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        bytes.push(u8::from_str_radix(piece.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The subject of stop messages for the workers of a run.
#[must_use]
pub fn stop_subject(run: &RunId) -> String {
    format!("stop.{run}")
}

/// The subject of a model's output while it is written.
#[must_use]
pub fn live_output_subject(run: &RunId, work: &Work) -> String {
    format!("live.{run}.{}", Topic::journal_of_work(work))
}

/// All [`live_output_subject`] subjects of a run.
#[must_use]
pub fn live_output_subjects_of_run(run: &RunId) -> String {
    format!("live.{run}.>")
}

/// All [`stop_subject`] subjects.
pub const ALL_STOPS: &str = "stop.*";

/// All [`live_output_subject`] subjects.
pub const ALL_LIVE: &str = "live.>";

/// The kinds of topics, for permissions to write them in any run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicKind {
    /// [`Topic::Submitted`].
    Submitted,
    /// [`Topic::Plan`].
    Plan,
    /// [`Topic::Journal`] of this kind of work.
    Journal(WorkKind),
    /// [`Topic::Control`].
    Control,
    /// [`Topic::Answer`].
    Answer,
}

impl TopicKind {
    fn subject_pattern(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Plan => "plan",
            Self::Journal(WorkKind::Task) => "task.*.*",
            Self::Journal(WorkKind::Review) => "review.*.*",
            Self::Journal(WorkKind::Planning) => "planning.*.*",
            Self::Control => "control",
            Self::Answer => "answer",
        }
    }
}

/// All subjects of a kind of topic, in all runs of all lanes.
#[must_use]
pub fn subjects_of_topic_kind(kind: TopicKind) -> String {
    format!("lane.*.run.*.{}", kind.subject_pattern())
}

/// All [`live_output_subject`] subjects of a kind of work.
#[must_use]
pub fn live_output_subjects_of_work_kind(kind: WorkKind) -> String {
    format!("live.*.{}", TopicKind::Journal(kind).subject_pattern())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_parse_back_to_themselves() {
        let (run, task) = (RunId::new("r-1").unwrap(), TaskId::new("t_1").unwrap());
        for topic in [
            Topic::Submitted,
            Topic::Plan,
            Topic::Journal(JournalKey::Task(task.clone(), 3)),
            Topic::Journal(JournalKey::Review(task, 1)),
            Topic::Journal(JournalKey::Planning(1, 2)),
            Topic::Control,
            Topic::Answer,
        ] {
            let subject = super::topic_subject(Lane(7), &run, &topic);
            assert_eq!(parse_lane_subject(&subject), Some((Lane(7), run.clone(), topic)), "{subject}");
        }
    }

    /// `true` if a subject matches a pattern, token by token.
    fn matches_subject_pattern(subject: &str, pattern: &str) -> bool {
        let (subject, pattern): (Vec<_>, Vec<_>) =
            (subject.split('.').collect(), pattern.split('.').collect());
        subject.len() == pattern.len()
            && subject.iter().zip(pattern).all(|(token, wanted)| wanted == "*" || *token == wanted)
    }

    #[test]
    fn each_topic_has_one_kind() {
        let (run, task) = (RunId::new("r-1").unwrap(), TaskId::new("t_1").unwrap());
        let kinds = [
            (TopicKind::Submitted, Topic::Submitted),
            (TopicKind::Plan, Topic::Plan),
            (TopicKind::Journal(WorkKind::Task), Topic::Journal(JournalKey::Task(task.clone(), 3))),
            (TopicKind::Journal(WorkKind::Review), Topic::Journal(JournalKey::Review(task.clone(), 1))),
            (TopicKind::Journal(WorkKind::Planning), Topic::Journal(JournalKey::Planning(1, 2))),
            (TopicKind::Control, Topic::Control),
            (TopicKind::Answer, Topic::Answer),
        ];
        for (kind, of) in &kinds {
            let subject = topic_subject(Lane(7), &run, of);
            for (other, _) in &kinds {
                assert_eq!(
                    matches_subject_pattern(&subject, &subjects_of_topic_kind(*other)),
                    kind == other,
                    "{subject} {other:?}"
                );
            }
        }
        let journals = |kind| topic_subject(Lane(7), &run, &Topic::Journal(kind));
        let [attempts, reviews] = journals_of_task(Lane(7), &run, &task);
        assert!(matches_subject_pattern(&journals(JournalKey::Task(task.clone(), 3)), &attempts));
        assert!(matches_subject_pattern(&journals(JournalKey::Review(task.clone(), 3)), &reviews));
        assert!(matches_subject_pattern(
            &journals(JournalKey::Planning(1, 2)),
            &journals_of_planner(Lane(7), &run)
        ));
        let writing = live_output_subject(&run, &Work::Task { task, attempt: 1 });
        assert!(
            matches_subject_pattern(&writing, &live_output_subjects_of_work_kind(WorkKind::Task))
                && !matches_subject_pattern(&writing, &live_output_subjects_of_work_kind(WorkKind::Review))
        );
    }

    #[test]
    fn each_path_has_its_own_subject() {
        let run = RunId::new("r-1").unwrap();
        let mut seen = std::collections::BTreeSet::new();
        let run = FileSpace::Run(run);
        for text in [
            "a", "a/b", "a.b", "a=2eb", "a..b", "..a", "*", ">", "a/>", "a b", "\u{e9}", "e\u{301}", "%",
            "=", "$JS",
        ] {
            let path = FilePath::new(text).unwrap();
            let subject = file_subject(&run, &path);
            assert_eq!(parse_file_subject(&subject), Some((run.clone(), path)), "{subject}");
            assert!(seen.insert(subject), "{text}");
        }
        assert_eq!(file_subject(&run, &FilePath::new("/notes/a.md").unwrap()), "files.r-1.notes.a=2emd");
        let memory = file_subject(&FileSpace::Memories, &FilePath::new("/team.md").unwrap());
        assert_eq!(memory, "files._memories.team=2emd");
        let parsed = parse_file_subject(&memory).unwrap();
        assert_eq!(parsed, (FileSpace::Memories, FilePath::new("/team.md").unwrap()));
        for subject in [
            "files._other.a",
            "files.r",
            "files.r.=",
            "files.r.=zz",
            "files.r.=ff",
            "files.r.a..b",
            "files.r.=2e=2e",
            "files.r.=61",
            "plan",
        ] {
            assert_eq!(parse_file_subject(subject), None, "{subject}");
        }
    }

    #[test]
    fn malformed_subjects_do_not_parse() {
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
            assert_eq!(parse_lane_subject(subject), None, "{subject}");
        }
    }
}
