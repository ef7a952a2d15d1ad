//! The built-in model at work on whole runs: plan, research, report and review, each through the real loop and the real
//! tools, on the licences in `examples/licences` and on documents made for a case.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_agent::corpus::{Corpus, File, walk};
use millrace_agent::model::{Model, open};
use millrace_agent::roles::{self, DocumentList, Materials, PlanTask, ReviewTask, Role, WorkTask};
use millrace_agent::tool::{ResultEntry, Results, ToolError};
use millrace_agent::turn::{Answer, Machine, MemoryJournal, Outcome, drive};
use millrace_protocol::ids::TaskId;
use millrace_protocol::plan::{Review, TaskSpec};
use millrace_protocol::result::{Proposal, TaskResult, Verdict};

const MAIN_OBJECTIVE: &str = "How do these licences treat patents, and when does a patent grant end?";

/// Results of tasks that are done, as a worker would offer them.
#[derive(Default)]
struct Done(Vec<(ResultEntry, TaskResult)>);

impl Results for Done {
    fn list(&self) -> BoxFuture<'_, Result<Vec<ResultEntry>, ToolError>> {
        Box::pin(async { Ok(self.0.iter().map(|(entry, _)| entry.clone()).collect()) })
    }

    fn get<'a>(&'a self, task: &'a TaskId) -> BoxFuture<'a, Result<Option<TaskResult>, ToolError>> {
        Box::pin(async move {
            Ok(self.0.iter().find(|(entry, _)| entry.task_id == *task).map(|(_, result)| result.clone()))
        })
    }
}

/// A run without its supervisor: the plan, each task's result and each verdict.
struct Run {
    plan: Proposal,
    results: BTreeMap<TaskId, TaskResult>,
    verdicts: BTreeMap<TaskId, Verdict>,
}

impl Run {
    fn report(&self) -> &TaskResult {
        let last = self.plan.tasks.iter().find(|task| task.is_final).expect("a plan has a final task");
        &self.results[&last.id]
    }
}

async fn answered<A: Answer>(machine: Machine<A>, toolbox: &millrace_agent::tool::Toolbox) -> A {
    let model = open("builtin:extractive").unwrap();
    let mut journal = MemoryJournal::default();
    let ended = drive(machine, model.as_ref(), toolbox, &mut journal).await.unwrap();
    match ended.outcome {
        Outcome::Answered(answer) => answer,
        Outcome::Stopped(reason) => panic!("{reason}; {:#?}", journal.steps()),
    }
}

async fn run(objective: &str, corpus: Corpus) -> Run {
    let corpus = Arc::new(corpus);
    let documents = DocumentList::of(&corpus);
    let plan_task =
        PlanTask { objective: objective.into(), documents: documents.clone(), ..PlanTask::default() };
    let materials = Materials { corpus: Some(corpus.clone()), results: None };
    let toolbox = Role::Planner.toolbox(&materials);
    let plan = answered(roles::planner(&plan_task, &toolbox), &toolbox).await;
    let mut run = Run { plan: plan.clone(), results: BTreeMap::new(), verdicts: BTreeMap::new() };
    for task in &plan.tasks {
        let result = work(objective, task, &run, &plan, &corpus, &documents).await;
        let verdict = review(objective, task, &result, &corpus, &documents).await;
        run.results.insert(task.id.clone(), result);
        run.verdicts.insert(task.id.clone(), verdict);
    }
    run
}

async fn work(
    objective: &str,
    task: &TaskSpec,
    run: &Run,
    plan: &Proposal,
    corpus: &Arc<Corpus>,
    documents: &DocumentList,
) -> TaskResult {
    let work = WorkTask {
        task_id: task.id.clone(),
        objective: task.objective.clone(),
        run_objective: objective.into(),
        parameters: BTreeMap::new(),
        feedback: Vec::new(),
        documents: documents.clone(),
    };
    let done = task.depends_on.iter().map(|id| {
        let spec = plan.tasks.iter().find(|task| task.id == *id).unwrap();
        let entry = ResultEntry {
            task_id: id.clone(),
            objective: spec.objective.clone(),
            capability: spec.capability.to_string(),
            summary: run.results[id].summary.clone(),
            missing: None,
        };
        (entry, run.results[id].clone())
    });
    let results: Arc<dyn Results> = Arc::new(Done(done.collect()));
    let materials = Materials { corpus: Some(corpus.clone()), results: Some(results) };
    let role = Role::of_capability(task.capability.as_str()).unwrap();
    let toolbox = role.toolbox(&materials);
    match role {
        Role::Producer => answered(roles::producer(&work, &toolbox), &toolbox).await,
        Role::Researcher | Role::Planner | Role::Critic => {
            answered(roles::researcher(&work, &toolbox), &toolbox).await
        }
    }
}

async fn review(
    objective: &str,
    task: &TaskSpec,
    result: &TaskResult,
    corpus: &Arc<Corpus>,
    documents: &DocumentList,
) -> Verdict {
    let criteria = match &task.review {
        Review::None => Vec::new(),
        Review::Critic { criteria } => criteria.clone(),
    };
    let review = ReviewTask {
        task_id: task.id.clone(),
        objective: task.objective.clone(),
        run_objective: objective.into(),
        capability: task.capability.to_string(),
        criteria,
        documents: documents.clone(),
        result: result.clone(),
    };
    let toolbox = Role::Critic.toolbox(&Materials { corpus: Some(corpus.clone()), results: None });
    answered(roles::critic(&review, &toolbox), &toolbox).await
}

fn licences() -> Corpus {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/licences");
    let (files, skipped) = walk(&folder).unwrap();
    assert_eq!(skipped, vec![]);
    Corpus::open(files, None).unwrap()
}

fn corpus(files: &[(&str, &str)]) -> Corpus {
    let files = files
        .iter()
        .map(|(path, text)| File { path: (*path).into(), bytes: text.as_bytes().to_vec() })
        .collect();
    Corpus::open(files, None).unwrap()
}

#[tokio::test]
async fn the_report_on_the_licences_is_cited_and_every_citation_resolves() {
    let run = run(MAIN_OBJECTIVE, licences()).await;
    println!("{}", run.report().output);
    for (task, verdict) in &run.verdicts {
        println!("{task}: {} {}", verdict.passed, verdict.reasoning);
    }
}
