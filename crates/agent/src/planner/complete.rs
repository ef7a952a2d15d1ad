//! Completes an answer whose meaning is plain: questions become tasks, ids that are missing are made, dependencies that name
//! a capability mean the tasks of that capability, and the one final task is marked. What has several meanings is left as it
//! is, and the rules refuse it.

use std::collections::BTreeSet;

use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{OnFailedDependency, Plan};

use super::answer::PlanAnswer;
use super::normalize::TaskRequest;
use super::normalize::{choose_task_ids, find_capability, find_task_id, resolve_task};

use super::{CapabilityOffer, filter_visible_offers};

use crate::roles::{PRODUCER, RESEARCH};

/// The maximum number of questions of one plan; the others are joined to the last.
const MAX_QUESTIONS: usize = 8;

/// The inputs from which an answer is completed.
#[derive(Clone, Copy)]
pub(super) struct AnswerContext<'a> {
    /// The plan at the beginning of the turn.
    pub plan: &'a Plan,
    pub offers: &'a [CapabilityOffer],
    /// `true` if all documents fit into one task: its questions are then asked together.
    pub documents_fit: bool,
}

impl AnswerContext<'_> {
    fn objective(&self) -> &str {
        self.plan.run.start.as_ref().map_or("", |start| start.objective.as_str())
    }

    /// `true` if the cluster offers a capability of this name.
    pub fn is_offered(&self, name: &str) -> bool {
        filter_visible_offers(self.offers).iter().any(|offer| offer.about.name.as_str() == name)
    }
}

pub(super) fn complete_answer(context: AnswerContext<'_>, answer: &PlanAnswer) -> PlanAnswer {
    let mut answer = answer.clone();
    let questions = std::mem::take(&mut answer.questions);
    if answer.tasks.is_empty() && context.plan.tasks().is_empty() {
        answer.tasks = plan_questions(context, &questions);
    }
    let is_first = context.plan.tasks().is_empty();
    let mut tasks = IdentifiedTasks::new(context, std::mem::take(&mut answer.tasks));
    if is_first {
        tasks.add_missing_research(context);
    }
    tasks.resolve_capabilities();
    tasks.mark_final(answer.final_task.as_deref());
    tasks.drop_edges_to_reports(is_first);
    if is_first && answer.final_task.is_none() {
        tasks.add_missing_report(context);
    }
    answer.tasks = tasks.requests;
    if answer.final_task.as_deref().is_some_and(|end| tasks.ids.iter().any(|id| id.as_str() == end)) {
        // The mark on the task says the same.
        answer.final_task = None;
    }
    answer
}

/// The plan for an objective that needs no planner: one task of research, and a report on it.
pub(super) fn build_plain_answer(context: AnswerContext<'_>) -> PlanAnswer {
    let questions = PlanAnswer { questions: vec![context.objective().to_owned()], ..PlanAnswer::default() };
    complete_answer(context, &questions)
}

/// The plan for one short question: a task of research whose result is the deliverable.
pub(super) fn build_single_task_answer(context: AnswerContext<'_>) -> PlanAnswer {
    let task = TaskRequest {
        id: Some(format!("{RESEARCH}-1")),
        objective: context.objective().to_owned(),
        capability: RESEARCH.to_owned(),
        is_final: true,
        ..TaskRequest::default()
    };
    PlanAnswer { tasks: vec![task], ..PlanAnswer::default() }
}

/// A task of research for each question, and a report on all of them.
fn plan_questions(context: AnswerContext<'_>, questions: &[String]) -> Vec<TaskRequest> {
    let mut asked: Vec<String> = Vec::new();
    for question in questions.iter().map(|question| question.trim()).filter(|question| !question.is_empty()) {
        if !asked.iter().any(|other| other.eq_ignore_ascii_case(question)) {
            asked.push(question.to_owned());
        }
    }
    if asked.is_empty() {
        return Vec::new();
    }
    let last = if context.documents_fit { 1 } else { MAX_QUESTIONS };
    if asked.len() > last {
        let rest = asked.split_off(last - 1).join(" ");
        asked.push(rest);
    }
    let research: Vec<TaskRequest> = asked
        .iter()
        .enumerate()
        .map(|(at, question)| TaskRequest {
            id: Some(format!("{RESEARCH}-{}", at + 1)),
            objective: question.clone(),
            capability: RESEARCH.to_owned(),
            ..TaskRequest::default()
        })
        .collect();
    let report = report_on(context, research.iter().filter_map(|task| task.id.clone()).collect());
    research.into_iter().chain([report]).collect()
}

fn report_on(context: AnswerContext<'_>, depends_on: Vec<String>) -> TaskRequest {
    TaskRequest {
        id: Some("report".into()),
        objective: context.objective().to_owned(),
        capability: PRODUCER.to_owned(),
        // A report on the other parts is better than none.
        on_failed_dependency: (depends_on.len() > 1).then_some(OnFailedDependency::Skip),
        depends_on,
        is_final: true,
        ..TaskRequest::default()
    }
}

/// The tasks of an answer with their ids.
struct IdentifiedTasks<'a> {
    plan: &'a Plan,
    offers: &'a [CapabilityOffer],
    requests: Vec<TaskRequest>,
    ids: Vec<TaskId>,
}

impl<'a> IdentifiedTasks<'a> {
    fn new(context: AnswerContext<'a>, mut requests: Vec<TaskRequest>) -> Self {
        let ids = choose_task_ids(context.plan, &requests);
        for (request, id) in requests.iter_mut().zip(&ids) {
            request.id = Some(id.to_string());
        }
        Self { plan: context.plan, offers: context.offers, requests, ids }
    }

    fn has_capability(&self, request: &TaskRequest, name: &str) -> bool {
        find_capability(self.offers, &request.capability).is_ok_and(|own| own.as_str() == name)
    }

    fn is_report(&self, request: &TaskRequest) -> bool {
        self.has_capability(request, PRODUCER)
    }

    fn is_known(&self, name: &str) -> bool {
        find_task_id(&self.ids, name).is_some() || resolve_task(self.plan, name).is_some()
    }

    /// Gives a report that is alone the research that it reports on.
    fn add_missing_research(&mut self, context: AnswerContext<'a>) {
        let [report] = self.requests.as_slice() else { return };
        if !self.is_report(report) || !context.is_offered(RESEARCH) {
            return;
        }
        let named = report.depends_on.iter().find(|name| !self.is_known(name));
        let research = TaskRequest {
            id: named.cloned().filter(|name| !name.trim().is_empty()).or(Some(format!("{RESEARCH}-1"))),
            objective: context.objective().to_owned(),
            capability: RESEARCH.to_owned(),
            ..TaskRequest::default()
        };
        let mut report = report.clone();
        report.depends_on = research.id.iter().cloned().collect();
        *self = Self::new(context, vec![research, report]);
    }

    /// Replaces dependencies that name a capability, or a made id that no task has, by the tasks that they mean.
    fn resolve_capabilities(&mut self) {
        let resolved: Vec<Vec<String>> = (0..self.requests.len())
            .map(|at| {
                let names = &self.requests[at].depends_on;
                names.iter().flat_map(|name| self.tasks_meant_by(at, name)).collect()
            })
            .collect();
        for (request, depends_on) in self.requests.iter_mut().zip(resolved) {
            request.depends_on = depends_on;
        }
    }

    /// The tasks that a dependency of the `at`-th task means. A name without a plain meaning stays as it is.
    fn tasks_meant_by(&self, at: usize, name: &str) -> Vec<String> {
        let unchanged = || vec![name.to_owned()];
        if self.is_known(name) {
            return unchanged();
        }
        let (stem, number) = split_made_id(name);
        let Ok(capability) = find_capability(self.offers, stem) else { return unchanged() };
        let same: Vec<usize> = (0..self.requests.len())
            .filter(|other| self.has_capability(&self.requests[*other], capability.as_str()))
            .collect();
        let id = |other: &usize| self.ids[*other].to_string();
        match number {
            _ if same.is_empty() => unchanged(),
            // A task that depends on its own kind would wait for itself.
            None if same.contains(&at) => Vec::new(),
            None => same.iter().map(id).collect(),
            Some(number) => match same.get(number.wrapping_sub(1)) {
                Some(other) if *other != at => vec![id(other)],
                Some(_) | None => unchanged(),
            },
        }
    }

    /// Moves the final mark to the task that the answer names.
    fn mark_final(&mut self, named: Option<&str>) {
        let Some(end) = named.and_then(|name| find_task_id(&self.ids, name)) else { return };
        for (request, id) in self.requests.iter_mut().zip(&self.ids) {
            request.is_final = *id == end;
        }
    }

    /// Drops dependencies of other tasks on a report that comes after them: the final one, one that depends on them, or, in
    /// a first plan, one without dependencies of its own.
    fn drop_edges_to_reports(&mut self, is_first: bool) {
        let is_alone = self.requests.iter().filter(|request| self.is_report(request)).count() == 1;
        for report in 0..self.requests.len() {
            if !self.is_report(&self.requests[report]) {
                continue;
            }
            let own = &self.requests[report];
            let is_last = (is_first && own.depends_on.is_empty()) || (is_alone && own.is_final);
            let before = self.tasks_before(report);
            for at in 0..self.requests.len() {
                if at == report || self.is_report(&self.requests[at]) || !(is_last || before.contains(&at)) {
                    continue;
                }
                let ids = &self.ids;
                self.requests[at]
                    .depends_on
                    .retain(|name| find_task_id(ids, name).as_ref() != Some(&ids[report]));
            }
        }
    }

    /// The tasks of the answer that a task depends on, directly or through others.
    fn tasks_before(&self, at: usize) -> BTreeSet<usize> {
        let position = |name: &str| {
            let id = find_task_id(&self.ids, name)?;
            self.ids.iter().position(|other| *other == id)
        };
        let mut before = BTreeSet::new();
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            for name in &self.requests[at].depends_on {
                if let Some(dependency) = position(name)
                    && before.insert(dependency)
                {
                    open.push(dependency);
                }
            }
        }
        before
    }

    /// Adds a report on several tasks of research if no task of the answer combines them.
    fn add_missing_report(&mut self, context: AnswerContext<'a>) {
        let is_research = |request: &TaskRequest| self.has_capability(request, RESEARCH);
        let is_open = self.requests.len() > 1
            && self
                .requests
                .iter()
                .all(|request| is_research(request) && request.depends_on.is_empty() && !request.is_final);
        if is_open && context.is_offered(PRODUCER) {
            let all = self.ids.iter().map(TaskId::to_string).collect();
            let mut requests = std::mem::take(&mut self.requests);
            requests.push(report_on(context, all));
            *self = Self::new(context, requests);
        }
    }
}

/// Splits `research-2` into its stem and number.
fn split_made_id(name: &str) -> (&str, Option<usize>) {
    let name = name.trim();
    match name.rsplit_once(['-', '_']) {
        Some((stem, number)) => match number.parse() {
            Ok(number) => (stem, Some(number)),
            Err(_) => (name, None),
        },
        None => (name, None),
    }
}
