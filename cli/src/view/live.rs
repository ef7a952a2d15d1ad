//! What models are just writing, by the work it is for. Nothing of it is in the log: it is shown while it is new.

use std::collections::BTreeMap;

use millrace_protocol::plan::{Task, TaskState, Work};
use millrace_protocol::subject::Topic;
use serde::Deserialize;

/// How many characters are remembered of what was written last.
const REMEMBERED: usize = 400;

/// What is being written at the moment.
#[derive(Debug, Default)]
pub struct Live(BTreeMap<String, String>);

#[derive(Deserialize)]
struct Said {
    text: String,
    calls: Vec<String>,
    anew: bool,
}

impl Live {
    /// Takes what was told on a subject of a run, `live.<run>.<topic>`. What can't be read is passed over.
    pub fn take(&mut self, subject: &str, payload: &[u8]) {
        let (Some(topic), Ok(said)) =
            (subject.splitn(3, '.').nth(2), serde_json::from_slice::<Said>(payload))
        else {
            return;
        };
        let words = self.0.entry(topic.to_owned()).or_default();
        if said.anew {
            words.clear();
        }
        words.push_str(&said.text);
        for tool in said.calls {
            words.push_str(&format!(" [{tool}] "));
        }
        let over = words.chars().count().saturating_sub(REMEMBERED);
        *words = words.chars().skip(over).collect();
    }

    /// The last words for a task: at most `width` characters, on one line.
    pub fn of(&self, task: &Task, width: usize) -> Option<String> {
        let (id, attempt) = (task.spec.id.clone(), task.attempt);
        let work = match task.state {
            TaskState::Running => Work::Task { task: id, attempt },
            TaskState::NeedsReview => Work::Review { task: id, attempt, review: task.review },
            TaskState::Pending
            | TaskState::Ready
            | TaskState::Completed
            | TaskState::Rerun
            | TaskState::Errored
            | TaskState::Failed
            | TaskState::Cancelled => return None,
        };
        let words = super::board::one_line(self.0.get(&Topic::journal(&work).to_string())?);
        let over = words.chars().count().saturating_sub(width);
        (!words.is_empty()).then(|| format!("writing: …{}", words.chars().skip(over).collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_shown_until_they_are_taken_back() {
        let mut live = Live::default();
        let subject = "live.r.task.a.1";
        live.take(subject, br#"{"text":"The licence\n grants","calls":["think"],"anew":false}"#);
        live.take(subject, b"not JSON");
        live.take("live", b"{}");
        assert_eq!(live.0["task.a.1"], "The licence\n grants [think] ");
        live.take(subject, br#"{"text":"again","calls":[],"anew":true}"#);
        assert_eq!(live.0["task.a.1"], "again");
        live.take(subject, format!(r#"{{"text":"{}","calls":[],"anew":false}}"#, "x".repeat(900)).as_bytes());
        assert_eq!(live.0["task.a.1"].len(), REMEMBERED);
    }
}
