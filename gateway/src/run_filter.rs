//! Which runs a list, a sum or a stream wants.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use millrace_protocol::ids::SessionId;
use millrace_protocol::labels::{LabelSelector, Labels};
use millrace_protocol::plan::RunWaitKind;
use millrace_protocol::time_text::parse_time_or_age;
use millrace_views::RunState;

use crate::problem::Problem;

/// The parts of a run that filters compare.
#[derive(Debug)]
pub struct RunTraits<'a> {
    pub state: RunState,
    pub wait: Option<RunWaitKind>,
    pub labels: &'a Labels,
    pub session: Option<&'a SessionId>,
    /// The time of its start, or of its submission if it has not started.
    pub started: Timestamp,
    /// Its id and its objective in lowercase.
    pub text: &'a str,
}

/// A selection of runs. The default selects all.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// The names of states; none are all.
    pub states: BTreeSet<&'static str>,
    /// The kinds of waits of live runs; none are all runs.
    pub waits: BTreeSet<RunWaitKind>,
    /// Conditions that must all be met.
    pub labels: Vec<LabelSelector>,
    /// A part of the id or of the objective, in lowercase.
    pub text: String,
    /// Runs that started at this time or later. Of a run that has not started, the time of its submission counts.
    pub since: Option<Timestamp>,
    /// Runs that started before this time; the same applies.
    pub until: Option<Timestamp>,
    pub session: Option<SessionId>,
}

impl RunFilter {
    /// Parses the parameters `state`, `label` and `text`, and `since` and `until`.
    pub fn parse(
        (state, label, text): (Option<&str>, Option<&str>, Option<&str>),
        (since, until): (Option<&str>, Option<&str>),
    ) -> Result<Self, Problem> {
        Ok(Self {
            states: parse_states(state)?,
            waits: BTreeSet::new(),
            labels: parse_labels(label)?,
            text: text.unwrap_or_default().trim().to_lowercase(),
            since: parse_time("since", since)?,
            until: parse_time("until", until)?,
            session: None,
        })
    }

    /// Selects the runs without an end: those that go on, and those whose logs are damaged.
    #[must_use]
    pub fn live() -> Self {
        let is_live = |state: &RunState| !state.has_ended() || *state == RunState::LogDamaged;
        let live = RunState::ALL.into_iter().filter(is_live);
        Self { states: live.map(RunState::name).collect(), ..Self::default() }
    }

    pub fn selects_state(&self, state: RunState) -> bool {
        self.states.is_empty() || self.states.contains(state.name())
    }

    pub fn selects(&self, run: &RunTraits<'_>) -> bool {
        self.selects_state(run.state)
            && (self.waits.is_empty() || run.wait.is_some_and(|wait| self.waits.contains(&wait)))
            && self.labels.iter().all(|label| label.selects(run.labels))
            && self.since.is_none_or(|since| run.started >= since)
            && self.until.is_none_or(|until| run.started < until)
            && (self.text.is_empty() || run.text.contains(&self.text))
            && self.session.as_ref().is_none_or(|session| run.session == Some(session))
    }
}

fn parse_states(text: Option<&str>) -> Result<BTreeSet<&'static str>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        let known = RunState::ALL.map(RunState::name);
        known.into_iter().find(|known| *known == name).ok_or_else(|| {
            Problem::invalid(format!("state={name:?} is no state of a run; valid: {}", known.join(", ")))
        })
    };
    names.map(find).collect()
}

/// Parses the parameter `waiting`.
pub fn parse_waits(text: Option<&str>) -> Result<BTreeSet<RunWaitKind>, Problem> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let find = |name: &str| {
        RunWaitKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = RunWaitKind::ALL.map(RunWaitKind::name).join(", ");
            Problem::invalid(format!("waiting={name:?} is nothing that runs wait for; valid: {known}"))
        })
    };
    names.map(find).collect()
}

pub fn parse_labels(text: Option<&str>) -> Result<Vec<LabelSelector>, Problem> {
    let labels = text.unwrap_or_default().split(',').map(str::trim).filter(|label| !label.is_empty());
    let parse = |label: &str| label.parse().map_err(Problem::invalid);
    labels.map(parse).collect()
}

fn parse_time(name: &str, text: Option<&str>) -> Result<Option<Timestamp>, Problem> {
    let time = text.map(|text| parse_time_or_age(text, Timestamp::now(), &TimeZone::UTC)).transpose();
    time.map_err(|error| Problem::invalid(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_parsed_and_mistakes_are_named() {
        assert_eq!(parse_states(Some("running, failed")).unwrap(), ["failed", "running"].into());
        assert!(parse_states(Some("")).unwrap().is_empty());
        assert!(parse_states(Some("runing")).is_err());
        let waits = parse_waits(Some("question, sub_agent")).unwrap();
        assert_eq!(waits, [RunWaitKind::Question, RunWaitKind::SubAgent].into());
        assert!(parse_waits(None).unwrap().is_empty() && parse_waits(Some("sub-agent")).is_err());
        assert!(parse_time("since", Some("2h")).unwrap().unwrap() < Timestamp::now());
        assert!(parse_time("since", Some("2026-11-22")).unwrap().is_some());
        assert!(parse_time("since", Some("soon")).is_err());
    }
}
