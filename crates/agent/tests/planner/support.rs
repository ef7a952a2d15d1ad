//! Helpers for the tests of the planner: plans built event by event, and the capabilities of a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use jiff::Timestamp;
use millrace_agent::model::ModelAbility;
use millrace_agent::planner::{PlanningForm, PlanningSnapshot, PlanningTurn};
use millrace_agent::roles::DocumentList;
use millrace_agent::sources::{CapabilityOffer, OrderInputError, OrderInputs};
use millrace_agent::tool::{Call, Tool, ToolError};
use millrace_protocol::ids::{Capability, Lane, RunId, TaskId, WorkerId};
use millrace_protocol::plan::{
    AttemptEvent, Budget, Event, GraphEvent, OnFailedDependency, Plan, PlannerConsultMode, PlannerTrigger,
    PlanningEvent, PlanningMode, ReviewEvent, ReviewPolicy, RunEvent, TaskEvent, TaskSpec, Work, apply,
};
use millrace_protocol::result::{
    CapabilityDescription, CriterionOutcome, ErrorKind, TaskError, TaskResult, Usage, Verdict,
};
use millrace_protocol::work::{Assignment, InputResult, Order};
use serde_json::{Value, json};

pub fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

pub fn worker() -> WorkerId {
    WorkerId::new("w").unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Builds a plan event by event.
#[derive(Clone)]
pub struct PlanBuilder {
    pub plan: Plan,
    now: i64,
}

impl PlanBuilder {
    pub fn started(mode: PlanningMode) -> Self {
        Self::with(mode, "How do licences treat patents?", Budget::default())
    }

    pub fn with(mode: PlanningMode, objective: &str, budget: Budget) -> Self {
        let mut made = Self { plan: Plan::default(), now: 0 };
        made.event(Event::Run(RunEvent::Started {
            objective: objective.into(),
            mode,
            documents: None,
            model: None,
            models: BTreeMap::new(),
            fail_fast: false,
            budget: Box::new(budget),
            consult: PlannerConsultMode::Judgement,
            approve_plan: false,
            verification: None,
            criteria: Vec::new(),
            after: Vec::new(),
            labels: Default::default(),
            session: None,
        }));
        made
    }

    pub fn event(&mut self, event: Event) -> &mut Self {
        self.now += 1;
        apply(&mut self.plan, &event, at(self.now));
        self
    }

    pub fn with_turn(mut self, triggers: Vec<PlannerTrigger>) -> Plan {
        let turn = self.plan.planning.turns + 1;
        self.event(Event::Planning(PlanningEvent::Requested { turn, attempt: 1, feedback: None, triggers }));
        self.plan
    }

    pub fn add(&mut self, name: &str, capability: &str, depends_on: &[&str]) -> &mut Self {
        let spec = TaskSpec {
            depends_on: depends_on.iter().map(|name| id(name)).collect(),
            review: ReviewPolicy::critic(vec!["It says so.".into()]),
            on_failed_dependency: OnFailedDependency::Ask,
            ..TaskSpec::new(id(name), format!("Find out about {name}."), Capability::new(capability).unwrap())
        };
        let ready = spec.depends_on.iter().all(|id| {
            self.plan
                .task(id)
                .is_some_and(|task| task.state() == millrace_protocol::plan::TaskState::Completed)
        });
        self.event(Event::Graph(GraphEvent::TaskAdded { spec: Arc::new(spec), ready }))
    }

    pub fn last(&mut self, name: &str) -> &mut Self {
        self.event(Event::Graph(GraphEvent::FinalMarked { task: id(name) }))
    }

    fn attempt(&self, name: &str) -> u32 {
        self.plan.task(&id(name)).unwrap().attempt
    }

    pub fn claimed(&mut self, name: &str) -> &mut Self {
        let attempt = self.attempt(name);
        self.event(Event::Attempt(AttemptEvent::Claimed {
            task: id(name),
            attempt,
            worker: worker(),
            build: None,
        }))
    }

    pub fn finished(&mut self, name: &str) -> &mut Self {
        let attempt = self.claimed(name).attempt(name);
        self.event(Event::Attempt(AttemptEvent::Finished {
            task: id(name),
            attempt,
            worker: worker(),
            at_sequence: u64::from(attempt) + 100,
            summary: format!("Findings on {name}."),
            is_detailed: true,
            is_answered: true,
            review: None,
            usage: Usage { input_tokens: 900, output_tokens: 100, model_calls: 2, ..Usage::default() },
            models: BTreeMap::new(),
        }))
    }

    pub fn completed(&mut self, name: &str) -> &mut Self {
        let attempt = self.finished(name).attempt(name);
        self.event(Event::Task(TaskEvent::Accepted { task: id(name), attempt }))
    }

    /// The result is rejected, and the next attempt is pending.
    pub fn rejected(&mut self, name: &str) -> &mut Self {
        let attempt = self.finished(name).attempt(name);
        self.judged(name, attempt);
        self.event(Event::Task(TaskEvent::Rerun { task: id(name), attempt: attempt + 1 }))
    }

    fn judged(&mut self, name: &str, attempt: u32) {
        let met = |criterion: &str, gap: Option<&str>| CriterionOutcome {
            criterion: criterion.into(),
            met: gap.is_none(),
            gap: gap.map(str::to_owned),
        };
        let verdict = Verdict {
            passed: false,
            criteria: vec![met("It is short.", None), met("It says so.", Some("no word of it"))],
            reasoning: "It misses the point.".into(),
            feedback: Some("Look into the second part.".into()),
            confidence: Some(0.75),
            opinions: Vec::new(),
            usage: Usage::default(),
            models: BTreeMap::new(),
        };
        self.event(Event::Review(ReviewEvent::VerdictGiven {
            task: id(name),
            attempt,
            critic: worker(),
            verdict: verdict.into(),
        }));
    }

    /// The last attempt fails, and none is left.
    pub fn failed(&mut self, name: &str) -> &mut Self {
        let attempt = self.claimed(name).attempt(name);
        let error = TaskError::new(ErrorKind::Tool, "the search is down");
        self.event(Event::Attempt(AttemptEvent::Errored {
            task: id(name),
            attempt,
            error: error.into(),
            retry_at: None,
        }));
        self.event(Event::Task(TaskEvent::Failed { task: id(name), reason: "the search is down".into() }))
    }
}

pub fn offer(name: &str, description: &str, parameters: Option<Value>, slots: u32) -> CapabilityOffer {
    let about = CapabilityDescription {
        parameters,
        ..CapabilityDescription::new(Capability::new(name).unwrap(), description)
    };
    CapabilityOffer { about, slots: Some(slots) }
}

pub fn offers() -> Vec<CapabilityOffer> {
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false
    });
    vec![
        offer("critic", "Judges.", None, 8),
        offer("echo", "For tests.", None, 4),
        offer("planner", "Plans.", None, 4),
        offer("producer", "Writes the report.", None, 1),
        offer("research", "Answers from documents.", None, 4),
        offer("weather", "Knows the weather.", Some(schema), 0),
    ]
}

/// The snapshot of a turn on a plan with a strong model.
pub fn seen(plan: &Plan) -> PlanningSnapshot {
    seen_by(plan, ModelAbility::Strong, offers())
}

pub fn seen_by(plan: &Plan, ability: ModelAbility, offers: Vec<CapabilityOffer>) -> PlanningSnapshot {
    let form = PlanningForm::choose(plan, &offers, ability);
    PlanningSnapshot { at: at(600), plan_at: 7, offers, form, ability, documents_fit: false }
}

pub fn turn(plan: Plan) -> Arc<PlanningTurn> {
    let seen = seen(&plan);
    Arc::new(PlanningTurn::new(plan, seen))
}

pub fn order() -> Order {
    let run = RunId::new("r1").unwrap();
    let work = Work::Planning { turn: 1, attempt: 1 };
    let planner = Capability::new("planner").unwrap();
    let assignment = Assignment::Planning { turn: 1, attempt: 1, plan_at: 7 };
    Order { assignment, ..Order::new(run, Lane(0), work, "How do licences treat patents?", planner) }
}

pub fn board(plan: Plan) -> String {
    turn(plan).render_board(&order(), &DocumentList::default())
}

/// The log, the registry and the blob store of a run, in memory.
#[derive(Default)]
pub struct Log {
    pub plan: Plan,
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub offers: Vec<CapabilityOffer>,
}

impl Log {
    pub fn with_plan(plan: Plan) -> Self {
        Self { plan, blobs: BTreeMap::new(), offers: offers() }
    }
}

impl OrderInputs for Log {
    fn read_result<'a>(
        &'a self,
        input: &'a InputResult,
    ) -> BoxFuture<'a, Result<TaskResult, OrderInputError>> {
        let result = TaskResult {
            summary: input.summary.clone(),
            output: format!("{} at {}. {}", input.task, input.at_sequence, "ä".repeat(3_000)),
            ..TaskResult::default()
        };
        ready(Ok(result)).boxed()
    }

    fn read_blob<'a>(&'a self, sha256: &'a str) -> BoxFuture<'a, Result<Vec<u8>, OrderInputError>> {
        ready(self.blobs.get(sha256).cloned().ok_or_else(|| OrderInputError::Broken("not there".into())))
            .boxed()
    }

    fn read_plan<'a>(&'a self, _: &'a Order, through: u64) -> BoxFuture<'a, Result<Plan, OrderInputError>> {
        assert_eq!(through, 7, "the plan is read as of the start of the turn");
        ready(Ok(self.plan.clone())).boxed()
    }

    fn read_offers(&self) -> BoxFuture<'_, Result<Vec<CapabilityOffer>, OrderInputError>> {
        ready(Ok(self.offers.clone())).boxed()
    }
}

pub fn tools_of(turn: &Arc<PlanningTurn>) -> Vec<Arc<dyn Tool>> {
    let log: Arc<dyn OrderInputs> = Arc::new(Log::default());
    turn.create_tools(&log)
}

/// Calls a tool of a turn: its output, or the reason of the refusal.
pub async fn call(turn: &Arc<PlanningTurn>, name: &str, arguments: Value) -> Result<String, String> {
    let tools = tools_of(turn);
    let tool = tools.iter().find(|tool| tool.spec().name == name).unwrap_or_else(|| panic!("no tool {name}"));
    millrace_agent::tool::check_value_against_schema(&tool.spec().schema, &arguments)?;
    match tool.call(arguments, &Call::default()).await {
        Ok(output) => Ok(output.text),
        Err(ToolError::Refused(why)) => Err(why),
        Err(other) => panic!("{other}"),
    }
}
