//! An attempt as a capability sees it: the order, its parameters and inputs, the journal, and the run's documents.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use millrace_agent::corpus::Corpus;
use millrace_agent::files::Files;
use millrace_agent::session::AgentHost;
use millrace_agent::turn::Host as _;
use millrace_host::{self as host, NatsFiles};
use millrace_protocol::child::{TaskEnd, child_id};
use millrace_protocol::foreign_json::{parse_foreign_json, plain_json_error};
use millrace_protocol::ids::{self, TaskId, WorkerId};
use millrace_protocol::parameters::TaskParameters;
use millrace_protocol::plan::{ResourceAmounts, ReviewPolicy, TaskLimits, TaskSpec};
use millrace_protocol::question::{Answer, Question};
use millrace_protocol::result::{ErrorKind, TaskError, TaskResult};
use millrace_protocol::wait::{ProviderStatus, ProviderWait, Wait, WaitCondition, WaitEnd};
use millrace_protocol::work::{Assignment, InputResult, Order};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A task that an attempt delegates.
#[derive(Debug, Clone)]
pub struct ChildTask {
    /// The capability that does it.
    pub capability: ids::Capability,
    /// The objective.
    pub objective: String,
    /// The parameters of the capability.
    pub parameters: TaskParameters,
    /// The review of its result.
    pub review: ReviewPolicy,
    /// Its time limits and attempts.
    pub limits: TaskLimits,
    /// Its budget; at most an equal share of what this attempt has reserved.
    pub budget: ResourceAmounts,
}

impl ChildTask {
    /// Creates a task with all defaults.
    #[must_use]
    pub fn new(capability: ids::Capability, objective: impl Into<String>) -> Self {
        Self {
            capability,
            objective: objective.into(),
            parameters: TaskParameters::new(),
            review: ReviewPolicy::None,
            limits: TaskLimits::default(),
            budget: ResourceAmounts::default(),
        }
    }

    fn into_spec(self, id: TaskId, share: ResourceAmounts) -> TaskSpec {
        let Self { capability, objective, parameters, review, limits, budget } = self;
        let budget = share.min_per_resource(budget);
        TaskSpec { parameters, review, limits, budget, ..TaskSpec::new(id, objective, capability) }
    }
}

/// A delegated task without a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostTask {
    /// The task.
    pub task: TaskId,
    /// Its end; `None` if it is not known.
    pub end: Option<TaskEnd>,
}

/// One attempt at a task, while it runs.
pub struct Attempt<'h> {
    pub(crate) host: &'h mut host::AttemptContext,
    pub(crate) agents: &'h AgentHost,
}

impl<'h> Attempt<'h> {
    pub(crate) fn new(host: &'h mut host::AttemptContext, agents: &'h AgentHost) -> Self {
        Self { host, agents }
    }

    /// Returns the order: the task and everything it refers to.
    #[must_use]
    pub fn order(&self) -> &Arc<Order> {
        self.host.order()
    }

    /// Returns the id of this worker.
    #[must_use]
    pub fn worker(&self) -> &WorkerId {
        self.host.worker()
    }

    /// Returns the number of this claim of the attempt, from 1. Above 1, an earlier worker was lost during the attempt.
    #[must_use]
    pub fn claim_number(&self) -> u32 {
        self.host.claim_number()
    }

    /// Returns a token that is cancelled when the attempt is no longer wanted. The capability's future is dropped at its
    /// next await; threads and processes that it started must watch this token.
    #[must_use]
    pub fn cancellation_token(&self) -> &CancellationToken {
        self.host.cancellation()
    }

    /// Deserializes the order's parameters.
    pub fn parse_parameters<T: DeserializeOwned>(&self) -> Result<T, TaskError> {
        let object = self.order().parameters.clone().into();
        serde_json::from_value(Value::Object(object)).map_err(|mistake| {
            invalid_parameters_error(format!("the parameters: {}", plain_json_error(&mistake.to_string())))
        })
    }

    /// Deserializes one of the order's parameters.
    ///
    /// # Errors
    /// It is missing or does not fit the type (kind `InvalidTask`).
    pub fn parse_parameter<T: DeserializeOwned>(&self, name: &str) -> Result<T, TaskError> {
        let value = self.order().parameters.get(name);
        let value =
            value.ok_or_else(|| invalid_parameters_error(format!("the parameter '{name}' is missing")))?;
        T::deserialize(value).map_err(|mistake| {
            invalid_parameters_error(format!(
                "the parameter '{name}': {}",
                plain_json_error(&mistake.to_string())
            ))
        })
    }

    /// Executes a step once. If the journal has its result from an earlier worker, `work` is not run and that result is
    /// returned; otherwise the result is in the journal before this returns. Each claim must call the same steps in the
    /// same order. An error of `work` is not recorded.
    ///
    /// # Errors
    /// The error of `work`; or the journal holds another step here, another worker took the attempt over, or the journal
    /// can't be written. In the last two cases this attempt can no longer have an outcome: return.
    pub async fn run_step<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        self.host.run_step_once(name, work).await
    }

    /// Waits until a time. The attempt holds no worker meanwhile: the capability is dropped with the returned error, and runs
    /// again on any worker when the time has come. `key` names the wait in the attempt; a later call with the same key returns
    /// at once.
    ///
    /// # Errors
    /// The time has not come: return this error. Or as for a step.
    pub async fn sleep_until(&mut self, key: &str, at: Timestamp) -> Result<(), TaskError> {
        self.host.wait_for(key, WaitCondition::Until(at)).await.map(drop)
    }

    /// Waits for a duration from the first call on, as [`Attempt::sleep_until`] does.
    ///
    /// # Errors
    /// As for [`Attempt::sleep_until`].
    pub async fn sleep_for(&mut self, key: &str, duration: Duration) -> Result<(), TaskError> {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let at = Timestamp::now().saturating_add(duration).unwrap_or(Timestamp::MAX);
        self.sleep_until(key, at).await
    }

    /// Waits for an event that is signalled to the run (`millrace signal`), at most until `until`, without holding a worker, as
    /// [`Attempt::sleep_until`] does. An event that was signalled before counts, once for each wait of the attempt. Returns the
    /// event's data, null if it has none; `None` if the event was not signalled in time.
    ///
    /// # Errors
    /// The event was not signalled yet: return this error. Or as for a step.
    pub async fn wait_for_event(
        &mut self,
        key: &str,
        name: &str,
        until: Option<Timestamp>,
    ) -> Result<Option<Value>, TaskError> {
        let condition = WaitCondition::Event { name: name.to_owned(), until };
        Ok(match self.host.wait_for(key, condition).await? {
            WaitEnd::Signalled { data, .. } => Some(parse_foreign_json(&data).unwrap_or_default()),
            WaitEnd::Expired
            | WaitEnd::TimeReached
            | WaitEnd::Answered { .. }
            | WaitEnd::TasksEnded(_)
            | WaitEnd::Withdrawn => None,
        })
    }

    /// Asks a person, without holding a worker, as [`Attempt::sleep_until`] does, and returns the answer. For an approval it is one of
    /// [`Answer::Approve`], [`Answer::Edit`], [`Answer::Reject`] and [`Answer::Respond`], for an input [`Answer::Answer`] or
    /// [`Answer::Decline`]. [`input_question`](crate::input_question) and [`approval_question`](crate::approval_question) make questions.
    ///
    /// # Errors
    /// Nobody has answered yet: return this error. Or as for a step.
    pub async fn ask(&mut self, key: &str, question: Question) -> Result<Answer, TaskError> {
        let mut answers = self.ask_all(vec![(key.to_owned(), question)]).await?;
        answers.pop().ok_or_else(|| TaskError::new(ErrorKind::Panic, "a question has no answer"))
    }

    /// Asks several questions at once, each with its key, and returns the answers in the same order, as [`Attempt::ask`] does. They may
    /// be answered in any order.
    ///
    /// # Errors
    /// As for [`Attempt::ask`].
    pub async fn ask_all(&mut self, questions: Vec<(String, Question)>) -> Result<Vec<Answer>, TaskError> {
        let condition = |question| WaitCondition::Answer(Box::new(question));
        let waits = questions.into_iter().map(|(key, question)| Wait::new(key, condition(question)));
        let ends = self.host.wait_for_all(waits.collect()).await?;
        ends.into_iter()
            .map(|end| match end {
                WaitEnd::Answered { answer, .. } => Ok(answer),
                WaitEnd::TimeReached
                | WaitEnd::Signalled { .. }
                | WaitEnd::Expired
                | WaitEnd::TasksEnded(_)
                | WaitEnd::Withdrawn => Err(TaskError::new(
                    ErrorKind::Panic,
                    format!("a question ended without an answer: {end}"),
                )),
            })
            .collect()
    }

    /// Waits for the first of several conditions, each with its key, without holding a worker, as [`Attempt::sleep_until`] does. Returns
    /// their ends in the same order: the other waits are withdrawn ([`WaitEnd::Withdrawn`]).
    ///
    /// # Errors
    /// None has ended: return this error. Or as for a step.
    pub async fn wait_for_first(
        &mut self,
        waits: Vec<(String, WaitCondition)>,
    ) -> Result<Vec<WaitEnd>, TaskError> {
        let group = waits.first().map(|(key, _)| key.clone());
        let waits = waits.into_iter();
        let waits = waits.map(|(key, condition)| Wait { key, condition, group: group.clone() });
        self.host.wait_for_all(waits.collect()).await
    }

    /// Delegates a task to another capability and waits for its end, without holding a worker, as [`Attempt::sleep_until`]
    /// does. `key` names the call in the attempt. A task that has no result is no error of this call.
    ///
    /// # Errors
    /// The task has not ended: return this error. Or as for a step.
    pub async fn delegate(
        &mut self,
        key: &str,
        child: ChildTask,
    ) -> Result<Result<TaskResult, LostTask>, TaskError> {
        let mut ends = self.delegate_all(key, vec![child]).await?;
        ends.pop().ok_or_else(|| invalid_parameters_error("the delegated task has no end".into()))
    }

    /// Delegates tasks that run at once, and waits for the ends of all, as [`Attempt::delegate`] does. Returns the ends in the
    /// order of the tasks.
    ///
    /// # Errors
    /// As for [`Attempt::delegate`].
    pub async fn delegate_all(
        &mut self,
        key: &str,
        children: Vec<ChildTask>,
    ) -> Result<Vec<Result<TaskResult, LostTask>>, TaskError> {
        let order = self.order().clone();
        let Assignment::Task { task, attempt, .. } = &order.assignment else {
            return Err(invalid_parameters_error("only an attempt at a task can delegate".into()));
        };
        let shares = u64::try_from(children.len()).unwrap_or(u64::MAX).saturating_add(1);
        let mut share = order.allowance.unwrap_or_default();
        for (resource, amount) in order.allowance.unwrap_or_default().iter() {
            share.set(resource, Some(amount / shares));
        }
        let place = |index: usize| child_id(task, *attempt, &format!("{key}-{index}"));
        let specs = children.into_iter().enumerate();
        let specs: Vec<TaskSpec> = specs.map(|(index, child)| child.into_spec(place(index), share)).collect();
        let tasks: Vec<TaskId> = specs.iter().map(|spec| spec.id.clone()).collect();
        let condition = WaitCondition::Tasks { tasks: tasks.clone(), any: false, until: None };
        let WaitEnd::TasksEnded(ended) = self.host.wait_for_children(key, condition, specs).await? else {
            return Err(invalid_parameters_error(format!("the wait {key:?} is not for tasks")));
        };
        let mut ends = Vec::with_capacity(tasks.len());
        for id in &tasks {
            let end = ended.iter().find(|ended| ended.task == *id);
            ends.push(match order.inputs.iter().find(|input| input.task == *id) {
                Some(input) => Ok(self.read_input_result(input).await?),
                None => Err(LostTask { task: id.clone(), end: end.map(|ended| ended.end.clone()) }),
            });
        }
        Ok(ends)
    }

    /// Writes a progress line. It is also a heartbeat, for tasks with a silence limit.
    ///
    /// # Errors
    /// As for a step.
    pub async fn record_note(&mut self, text: impl Into<String>) -> Result<(), TaskError> {
        self.host.note(&text.into()).await
    }

    /// Reports that the attempt waits for a service: every view shows it, and the wait does not count as run time. The
    /// request may have begun, so that the work is not returned early.
    pub(crate) async fn report_wait(&mut self, wait: ProviderWait) -> Result<(), TaskError> {
        let text = format!("waiting for {}: {}", wait.model, wait.error);
        self.host.report_provider(&text, &ProviderStatus::Waiting(wait)).await?;
        self.host.interrupt_wait();
        Ok(())
    }

    /// Reports that the service answers.
    pub(crate) async fn report_recovery(&mut self, service: &str) -> Result<(), TaskError> {
        self.host.report_provider(&format!("{service} answers again"), &ProviderStatus::Recovered).await
    }

    /// Returns the complete result of one of the order's inputs.
    pub async fn read_input_result(&mut self, input: &InputResult) -> Result<TaskResult, TaskError> {
        let read = self.host.cluster_reader().read_result(input).await;
        read.map_err(|fault| self.host.end_with_fault(fault))
    }

    /// Returns the documents of the run, ready for search; `None` if it has none. They are loaded and indexed once per
    /// process and cached in the cache folder.
    pub async fn open_documents(&mut self) -> Result<Option<Arc<Corpus>>, TaskError> {
        let order = self.order().clone();
        let Some(set) = &order.documents else {
            return Ok(None);
        };
        let opened = self.agents.open_documents(set, &self.host.cluster_reader()).await;
        opened.map(Some).map_err(|error| self.host.end_with_session_error(error))
    }

    /// Returns the files of the run. Changes name the task as their author.
    pub(crate) fn files(&self) -> Arc<dyn Files> {
        Arc::new(NatsFiles::new(self.host.bus(), self.host.order()))
    }

    /// Parks the attempt with those of these waits that have not ended, and delegates the tasks that they are for.
    ///
    /// # Errors
    /// Some have not ended: return this error.
    pub(crate) fn require_ended_waits(
        &mut self,
        waits: Vec<Wait>,
        children: Vec<TaskSpec>,
    ) -> Result<(), TaskError> {
        let open: Vec<Wait> =
            waits.into_iter().filter(|wait| self.host.ended_wait(&wait.key).is_none()).collect();
        if open.is_empty() { Ok(()) } else { Err(self.host.park(open, children)) }
    }
}

fn invalid_parameters_error(message: String) -> TaskError {
    TaskError::new(ErrorKind::InvalidTask, message)
}
