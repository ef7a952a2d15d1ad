//! Executes the tool calls of one turn. It owns the order of recording: calls that must not run twice are recorded before
//! they begin, each result is recorded as soon as it is available, and a recorded call is not run again.
//!
//! A call that needs a person's approval waits for it under the key `approve.<turn>.<index>.<tool>.<digest>`; the other calls of the turn
//! run at once. When it is approved it runs like any other, and is recorded before it begins by a step of its own.
//!
//! The files that a program changed are recorded under `files.<turn>.<index>.<tool>` before they are written.

use std::any::Any;
use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millrace_protocol::child::Delegation;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::question::{Answer, Question};
use millrace_protocol::result::{ModelUsage, Usage};
use millrace_protocol::schema::check_value_against_schema;
use millrace_protocol::secrets::redact_text;
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;

use super::call_changes::{PendingChanges, file_changes_error};
use super::drive_error::{decode_step, encode_step};
use super::fork::ForkedConversation;
use super::large::limit_result_size;
use super::record::{BegunCallsStep, FileChangesStep, ToolCallRecord, to_millis};
use super::{AttemptName, DriveError, Journal, RecordedChanges, ValidatedToolCall};
use crate::approval::{ApprovalRules, digest_of_call};
use crate::corpus::pages::{AttemptPages, PageContent};
use crate::files::{AgentFiles, FileChanges, Files};
use crate::model::ToolResult;
use crate::tool::{
    CONTINUE_AT_FIRST, Call, Effect, ModelCallBudget, Output, Tool, ToolError, Toolbox, describe_wait_end,
};

/// The length of the digest of a call in the key of its approval.
const DIGEST_LENGTH: usize = 16;
/// The result for a call that had begun when its worker was lost.
const UNKNOWN: &str = "It is unknown whether this call took effect: its worker was lost after the call began and before \
the result was recorded. The call was not retried. Check what it was meant to change before you continue: if it took \
effect, do not repeat it; if not, make the call again.";

/// The end of running a call.
enum CallEnd {
    Result(Box<ToolCallRecord>),
    /// It has a result, and a web page to keep.
    Page(Box<ToolCallRecord>, Box<PageContent>),
    /// It has a result, and changes children.
    Delegated(Box<ToolCallRecord>, Delegation),
    /// It has a result, and a program that it ran changed files.
    Changed(Box<ToolCallRecord>, Box<FileChanges>),
    /// It waits for something outside, perhaps for a task that it delegates.
    Waits(WaitCondition, Option<Box<TaskSpec>>),
}

/// The context in which the calls of a turn run.
pub(super) struct ToolCallRunner<'a> {
    pub number: u64,
    pub attempt: &'a AttemptName,
    pub toolbox: &'a Toolbox,
    pub files: Option<&'a Arc<dyn Files>>,
    /// The files that programs work on.
    pub agent_files: Option<&'a AgentFiles>,
    /// The remaining working time.
    pub left: Option<Duration>,
    /// The model usage that the calls may have together.
    pub budget: ModelCallBudget,
    /// The rules for calls that need a person's approval.
    pub approvals: &'a ApprovalRules,
    /// `true` if the work may be parked.
    pub can_wait: bool,
    /// The amounts of `budget` at the beginning of the turn.
    pub left_amounts: ResourceAmounts,
    /// The web pages that the attempt has read, if it can.
    pub pages: Option<&'a AttemptPages>,
    /// The conversation, for calls that fork it; `None` if no call of the turn delegates.
    pub fork: Option<ForkedConversation>,
}

/// The approval that a call needs, or has got.
enum Approval {
    /// It needs none.
    NotNeeded,
    /// The question has no answer yet.
    Open(Box<Question>),
    /// A person has answered.
    Given(Answer),
    /// Another wait of the turn ended first.
    Withdrawn,
}

/// The next action for a call without a result.
enum CallAction {
    /// It runs, with these arguments in place of its own if a person changed them.
    Run(Option<Value>),
    /// It has this result and does not run.
    Result(Box<ToolCallRecord>),
    /// It has waited: the end of the wait, and the arguments that a person put in place of its own.
    End(Option<Value>, WaitEnd),
    Wait(Wait),
}

impl ToolCallRunner<'_> {
    /// Runs the calls concurrently and returns their results in order. If a tool is unavailable, the other calls finish
    /// first, so that every effect is recorded.
    pub async fn run_calls(
        &self,
        calls: &[ValidatedToolCall],
        journal: &mut dyn Journal,
    ) -> Result<Vec<ToolCallRecord>, DriveError> {
        let name = |(index, call): (usize, &ValidatedToolCall)| {
            format!("tool.{}.{index}.{}", self.number, call.tool)
        };
        let names: Vec<String> = calls.iter().enumerate().map(name).collect();
        let approvals: Vec<Approval> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| self.approval_of_call(call, &self.approval_key(index, call), journal))
            .collect();
        let mut begun = self.record_begun_calls(calls, &names, &approvals, journal).await?;
        let mut pending = PendingChanges::new();
        let replayed = self.replay_results(calls, &names, &approvals, (&mut begun, &mut pending), journal);
        let mut results = replayed.await?;
        for (index, step) in pending {
            if results[index].is_none() {
                let record = self.write_changes(&calls[index], index, step, journal).await?;
                journal.append_step(&names[index], &encode_step(&record)).await?;
                results[index] = Some(record);
            }
        }
        for index in begun {
            if results[index].is_none() {
                let unknown = build_call_record(&calls[index], UNKNOWN.to_owned(), true);
                let unknown = ToolCallRecord { has_effects: true, ..unknown };
                journal.append_step(&names[index], &encode_step(&unknown)).await?;
                results[index] = Some(unknown);
            }
        }
        let (mut ready, mut waits, mut children) = (Vec::new(), Vec::new(), Vec::new());
        for (index, approval) in approvals.into_iter().enumerate() {
            if results[index].is_some() {
                continue;
            }
            let is_approved = matches!(approval, Approval::Given(_));
            match self.next_action(&calls[index], index, &names[index], approval, journal) {
                CallAction::Run(changed) => ready.push((index, is_approved, changed)),
                CallAction::Result(record) => {
                    journal.append_step(&names[index], &encode_step(&record)).await?;
                    results[index] = Some(*record);
                }
                CallAction::End(changed, end) => {
                    let record = self.end_wait(&calls[index], index, changed, &end).await?;
                    journal.append_step(&names[index], &encode_step(&record)).await?;
                    results[index] = Some(record);
                }
                CallAction::Wait(wait) => waits.push((index, wait)),
            }
        }
        for (index, _, _) in
            ready.iter().filter(|(index, is_approved, _)| *is_approved && self.has_effect(&calls[*index]))
        {
            let step = self.begin_step(*index);
            let begun = BegunCallsStep { calls: vec![names[*index].clone()] };
            journal.append_step(&step, &encode_step(&begun)).await?;
        }
        let share = self.share_of_delegated_task(calls);
        let mut running: FuturesUnordered<_> = ready
            .into_iter()
            .map(|(index, is_approved, changed)| {
                let call = self.run_call(&calls[index], (index, share), is_approved, changed);
                call.map(move |result| (index, result))
            })
            .collect();
        let mut fault = None;
        while let Some((index, result)) = running.next().await {
            match result {
                Ok(CallEnd::Result(result)) => {
                    store_images(&result, journal).await?;
                    journal.append_step(&names[index], &encode_step(&result)).await?;
                    results[index] = Some(*result);
                }
                Ok(CallEnd::Page(mut result, page)) => {
                    self.keep_page(&mut result, *page, journal).await?;
                    store_images(&result, journal).await?;
                    journal.append_step(&names[index], &encode_step(&result)).await?;
                    results[index] = Some(*result);
                }
                Ok(CallEnd::Delegated(result, mut delegation)) => {
                    store_images(&result, journal).await?;
                    store_forks(&mut delegation.children, journal).await?;
                    journal.append_delegation(delegation).await?;
                    journal.append_step(&names[index], &encode_step(&result)).await?;
                    results[index] = Some(*result);
                }
                Ok(CallEnd::Changed(call, changes)) => {
                    store_images(&call, journal).await?;
                    let changes = RecordedChanges::store_contents(&changes, journal).await;
                    let changes = changes.map_err(|error| file_changes_error(&calls[index], error))?;
                    let step = FileChangesStep { call: *call, changes };
                    journal
                        .append_step(&self.changes_step(index, &calls[index]), &encode_step(&step))
                        .await?;
                    let record = self.write_changes(&calls[index], index, step, journal).await?;
                    journal.append_step(&names[index], &encode_step(&record)).await?;
                    results[index] = Some(record);
                }
                Ok(CallEnd::Waits(condition, child)) => {
                    waits.push((index, Wait::new(names[index].clone(), condition)));
                    let mut delegated: Vec<TaskSpec> = child.map(|child| *child).into_iter().collect();
                    store_forks(&mut delegated, journal).await?;
                    children.extend(delegated);
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        drop(running);
        match fault {
            Some(fault) => Err(fault),
            // The results of the other calls are in the journal.
            None if !waits.is_empty() => {
                // In the order of the calls, whichever came to wait first.
                waits.sort_by_key(|(index, _)| *index);
                children.sort_by(|one: &TaskSpec, other| one.id.cmp(&other.id));
                let has_group = calls.iter().any(|call| call.tool == CONTINUE_AT_FIRST);
                let group = has_group.then(|| format!("turn.{}", self.number));
                let waits = waits.into_iter().map(|(_, wait)| Wait { group: group.clone(), ..wait });
                Err(DriveError::Parked(waits.collect(), children))
            }
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// The key under which a call waits for its approval.
    fn approval_key(&self, index: usize, call: &ValidatedToolCall) -> String {
        // With another set of tools a call may have another index: an answer is for these arguments only.
        let digest = digest_of_call(&call.tool, &call.arguments.to_string());
        format!("approve.{}.{index}.{}.{}", self.number, call.tool, &digest[..DIGEST_LENGTH])
    }

    /// The step that is recorded before an approved call begins.
    fn begin_step(&self, index: usize) -> String {
        format!("begin.{}.{index}", self.number)
    }

    fn has_effect(&self, call: &ValidatedToolCall) -> bool {
        self.find_tool(call).is_some_and(|tool| tool.effect() == Effect::Effect)
    }

    /// Returns the approval of a call. An answer counts also if the rules have changed since.
    fn approval_of_call(&self, call: &ValidatedToolCall, key: &str, journal: &dyn Journal) -> Approval {
        match journal.ended_wait(key) {
            Some(WaitEnd::Answered { answer, .. }) => return Approval::Given(answer),
            Some(WaitEnd::Withdrawn) => return Approval::Withdrawn,
            Some(
                WaitEnd::TimeReached | WaitEnd::Signalled { .. } | WaitEnd::Expired | WaitEnd::TasksEnded(_),
            )
            | None => {}
        }
        let Some(tool) = self.find_tool(call) else { return Approval::NotNeeded };
        let reason = tool.approval_reason(&call.arguments);
        let schema = tool.spec().schema;
        let asked = self.approvals.question_for_call(&call.tool, &call.arguments, reason, Some(&schema));
        asked.map_or(Approval::NotNeeded, |question| Approval::Open(Box::new(question)))
    }

    /// Returns what happens next with a call that has no result.
    fn next_action(
        &self,
        call: &ValidatedToolCall,
        index: usize,
        name: &str,
        approval: Approval,
        journal: &dyn Journal,
    ) -> CallAction {
        let result =
            |text: String, is_error| CallAction::Result(Box::new(build_call_record(call, text, is_error)));
        let changed = match approval {
            Approval::NotNeeded | Approval::Given(Answer::Approve) => None,
            Approval::Open(_) if !self.can_wait => {
                return result(
                    format!(
                        "{} needs a person's approval, which is not possible here; continue without it",
                        call.tool
                    ),
                    true,
                );
            }
            Approval::Open(question) => {
                let condition = WaitCondition::Answer(question);
                return CallAction::Wait(Wait::new(self.approval_key(index, call), condition));
            }
            Approval::Withdrawn => {
                let text =
                    describe_wait_end(&WaitEnd::Withdrawn) + " The call was not approved and did not run.";
                return result(text, true);
            }
            Approval::Given(Answer::Edit { arguments }) => {
                match self.read_changed_arguments(call, &arguments) {
                    Ok(changed) => Some(changed),
                    Err(mistake) => return result(mistake, true),
                }
            }
            Approval::Given(Answer::Reject { message }) => {
                let message = message.trim_end_matches(['.', ' ']);
                let reason = if message.is_empty() { String::new() } else { format!(": {message}") };
                return result(
                    format!("A person rejected this call{reason}. It did not run. Do not try it again."),
                    true,
                );
            }
            Approval::Given(Answer::Respond { content }) => return result(content, false),
            Approval::Given(Answer::Answer { .. } | Answer::Decline | Answer::Pass | Answer::Fail { .. }) => {
                return result(
                    "The call was answered with something other than a decision; it did not run.".into(),
                    true,
                );
            }
        };
        // The tool itself waited.
        match journal.ended_wait(name) {
            Some(end) => CallAction::End(changed, end),
            None => CallAction::Run(changed),
        }
    }

    /// Reads the arguments that a person gave in place of the proposed ones.
    fn read_changed_arguments(&self, call: &ValidatedToolCall, arguments: &str) -> Result<Value, String> {
        let misfit = |mistake: String| {
            format!(
                "A person changed the arguments of this call, and they do not fit: {mistake}. It did not run."
            )
        };
        let changed: Value = parse_foreign_json(arguments).map_err(|error| misfit(error.to_string()))?;
        if let Some(tool) = self.find_tool(call) {
            check_value_against_schema(&tool.spec().schema, &changed).map_err(misfit)?;
        }
        Ok(changed)
    }

    /// Records the calls that must not run twice and need no approval. Returns those that an earlier worker had begun.
    async fn record_begun_calls(
        &self,
        calls: &[ValidatedToolCall],
        names: &[String],
        approvals: &[Approval],
        journal: &mut dyn Journal,
    ) -> Result<Vec<usize>, DriveError> {
        let step = format!("begin.{}", self.number);
        let next = journal.peek_recorded_step().await?;
        if next.is_some_and(|(name, _)| name == step)
            && let Some((_, value)) = journal.read_recorded_step(std::slice::from_ref(&step)).await?
        {
            let begun: BegunCallsStep = decode_step(&step, value)?;
            return Ok((0..calls.len()).filter(|index| begun.calls.contains(&names[*index])).collect());
        }
        let begins = |index: &usize| {
            matches!(approvals[*index], Approval::NotNeeded) && self.has_effect(&calls[*index])
        };
        let effects: Vec<usize> = (0..calls.len()).filter(begins).collect();
        if effects.is_empty() {
            return Ok(effects);
        }
        // The next recorded step, if there is one, is none of a turn with these calls: the journal has diverged.
        drop(journal.read_recorded_step(std::slice::from_ref(&step)).await?);
        let begun = BegunCallsStep { calls: effects.iter().map(|index| names[*index].clone()).collect() };
        journal.append_step(&step, &encode_step(&begun)).await?;
        Ok(Vec::new())
    }

    /// Reads the recorded results, in whatever order they were recorded. Adds the approved calls that have begun to `begun`, and
    /// the changes of files to `pending`.
    async fn replay_results(
        &self,
        calls: &[ValidatedToolCall],
        names: &[String],
        approvals: &[Approval],
        (begun, pending): (&mut Vec<usize>, &mut PendingChanges),
        journal: &mut dyn Journal,
    ) -> Result<Vec<Option<ToolCallRecord>>, DriveError> {
        let mut results: Vec<Option<ToolCallRecord>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        while !open.is_empty() {
            let mut requested: Vec<String> = open.iter().map(|index| names[*index].clone()).collect();
            requested.extend(open.iter().map(|index| self.begin_step(*index)));
            requested.extend(open.iter().map(|index| self.changes_step(*index, &calls[*index])));
            let Some((at, value)) = journal.read_recorded_step(&requested).await? else { break };
            if at >= 2 * open.len() {
                let step = decode_step(&requested[at], value)?;
                pending.insert(open[at - 2 * open.len()], step);
                continue;
            }
            if at >= open.len() {
                begun.push(open[at - open.len()]);
                continue;
            }
            let index = open.remove(at);
            let result: ToolCallRecord = decode_step(&names[index], value)?;
            self.budget.lock().await.charge_usage(&result.usage);
            if let (Some(page), Some(pages)) = (&result.page, self.pages) {
                pages.restore_page(page).await.map_err(|error| DriveError::Tool {
                    tool: calls[index].tool.clone(),
                    reason: error.to_string(),
                })?;
            }
            if let Some(tool) = self.find_tool(&calls[index]) {
                let call = self.call_context(index, ResourceAmounts::default());
                let changed = match &approvals[index] {
                    Approval::Given(Answer::Edit { arguments }) => parse_foreign_json(arguments).ok(),
                    Approval::Given(_) | Approval::NotNeeded | Approval::Open(_) | Approval::Withdrawn => {
                        None
                    }
                };
                tool.on_replay(changed.as_ref().unwrap_or(&calls[index].arguments), &result.result, &call);
            }
            results[index] = Some(result);
        }
        Ok(results)
    }

    /// Keeps a web page, so that it can be cited and checked whatever becomes of it.
    async fn keep_page(
        &self,
        record: &mut ToolCallRecord,
        content: PageContent,
        journal: &mut dyn Journal,
    ) -> Result<(), DriveError> {
        let Some(pages) = self.pages else { return Ok(()) };
        let document = pages.name_page(content);
        journal.store_blob(document.text().as_bytes().to_vec()).await?;
        if let Some(page) = &document.page
            && page.name != page.url
        {
            let text = &mut record.result.text;
            text.push_str(&format!(
                "\nThe page has changed since you read it before; cite this version as {}.",
                page.name
            ));
        }
        record.page = document.page.clone().map(Box::new);
        pages.add_page(document);
        Ok(())
    }

    /// The share of a task that a call delegates: its attempt keeps as much as each of them.
    fn share_of_delegated_task(&self, calls: &[ValidatedToolCall]) -> ResourceAmounts {
        let tasks = calls.iter().filter_map(|call| self.find_tool(call)).map(Tool::delegated_tasks);
        let shares = u64::from(tasks.sum::<u32>()) + 1;
        let mut share = self.left_amounts;
        for (resource, amount) in self.left_amounts.iter() {
            share.set(resource, Some(amount / shares));
        }
        share
    }

    /// The result of a call whose wait has ended.
    async fn end_wait(
        &self,
        call: &ValidatedToolCall,
        index: usize,
        changed: Option<Value>,
        end: &WaitEnd,
    ) -> Result<ToolCallRecord, DriveError> {
        let context = self.call_context(index, ResourceAmounts::default());
        let ended = match self.find_tool(call) {
            None => Ok(describe_wait_end(end).into()),
            Some(tool) => {
                let arguments = changed.unwrap_or_else(|| call.arguments.clone());
                tool.end_wait(arguments, end, &context).await
            }
        };
        let record = match ended {
            Ok(Output { text, delegated, .. }) => {
                ToolCallRecord { delegated, ..build_call_record(call, text, false) }
            }
            Err(ToolError::Lost { text, delegated }) => {
                ToolCallRecord { delegated, ..build_call_record(call, text, true) }
            }
            Err(ToolError::Refused(text) | ToolError::Failed { message: text, .. }) => {
                build_call_record(call, text, true)
            }
            Err(ToolError::Unavailable(reason)) => {
                return Err(DriveError::Tool { tool: call.tool.clone(), reason });
            }
            Err(ToolError::Waits(_) | ToolError::Delegates(_)) => {
                build_call_record(call, "it waits again after its end; continue without it".into(), true)
            }
        };
        let is_progress = match end {
            WaitEnd::TimeReached | WaitEnd::Signalled { .. } | WaitEnd::Expired => true,
            // An agent that asks a person or another agent the same again and again goes round in circles.
            WaitEnd::Answered { .. } | WaitEnd::TasksEnded(_) | WaitEnd::Withdrawn => false,
        };
        let record = ToolCallRecord { has_effects: true, is_progress, ..record };
        Ok(self.limit_size(record, index, &context.key).await)
    }

    fn call_context(&self, index: usize, share: ResourceAmounts) -> Call {
        let key = self.attempt.call_key(self.number, index);
        let budget = self.budget.clone();
        let turn = self.number;
        Call { key, turn, index, share, budget, ..Call::default() }
    }

    /// Stores a result in a file that is too long for the conversation.
    async fn limit_size(&self, mut record: ToolCallRecord, index: usize, key: &str) -> ToolCallRecord {
        let path = || self.attempt.large_result_path(self.number, index).ok();
        let text = std::mem::take(&mut record.result.text);
        record.result.text = limit_result_size(text, path, key, self.files, self.toolbox).await;
        record
    }

    /// Runs one call. Failures that the model can handle become its result; only an unavailable tool is an error.
    async fn run_call(
        &self,
        call: &ValidatedToolCall,
        (index, share): (usize, ResourceAmounts),
        is_approved: bool,
        changed: Option<Value>,
    ) -> Result<CallEnd, DriveError> {
        let Some(tool) = self.find_tool(call) else {
            let text = format!("the tool {} is not available here", call.tool);
            return Ok(CallEnd::Result(Box::new(build_call_record(call, text, true))));
        };
        let began = Instant::now();
        let deadline = self.left.map(|left| (began + left).into_std());
        let fork = self.fork.as_ref().filter(|_| tool.delegated_tasks() > 0);
        let fork = fork.map(|fork| Arc::new(fork.at_call(&call.call_id)));
        let context = Call { deadline, is_approved, fork, ..self.call_context(index, share) };
        let (mut delegation, mut changed_files, mut page) = (None, None, None);
        let arguments = changed.clone().unwrap_or_else(|| call.arguments.clone());
        let work = AssertUnwindSafe(async { tool.call(arguments, &context).await }).catch_unwind();
        let outcome = match self.left {
            None => Some(work.await),
            Some(left) => tokio::time::timeout(left, work).await.ok(),
        };
        let mut result = match outcome {
            Some(Ok(Ok(Output {
                text,
                usage,
                models,
                delegated,
                delegation: children,
                artifacts,
                changes,
                page: read,
                images,
            }))) => {
                (delegation, changed_files, page) = (children, changes, read);
                let mut record = build_call_record(call, text, false);
                record.result.images = images;
                ToolCallRecord { usage, models, delegated, artifacts, ..record }
            }
            Some(Ok(Err(ToolError::Lost { text, delegated }))) => {
                ToolCallRecord { delegated, ..build_call_record(call, text, true) }
            }
            Some(Ok(Err(ToolError::Refused(text)))) => build_call_record(call, text, true),
            Some(Ok(Err(ToolError::Failed { message, detail }))) => {
                warn!(tool = call.tool, detail, "tool failed");
                build_call_record(call, message, true)
            }
            Some(Ok(Err(ToolError::Unavailable(reason)))) => {
                return Err(DriveError::Tool { tool: call.tool.clone(), reason });
            }
            Some(Ok(Err(ToolError::Waits(condition)))) => return Ok(CallEnd::Waits(condition, None)),
            Some(Ok(Err(ToolError::Delegates(child)))) => {
                let condition =
                    WaitCondition::Tasks { tasks: vec![child.id.clone()], any: false, until: None };
                return Ok(CallEnd::Waits(condition, Some(child)));
            }
            Some(Err(panic)) => {
                warn!(tool = call.tool, panic = panic_message(panic.as_ref()), "tool panicked");
                build_call_record(call, format!("{} crashed; continue without it", call.tool), true)
            }
            None => build_call_record(
                call,
                "it was stopped: the working time of this task is used up".into(),
                true,
            ),
        };
        if let Cow::Owned(redacted) = redact_text(&result.result.text) {
            result.result.text = redacted;
        }
        result.took_ms = to_millis(began.elapsed());
        result.has_effects =
            !result.result.is_error && tool.effect() != Effect::Pure && !tool.names_its_changes();
        result.is_progress = result.has_effects && tool.effect() == Effect::Effect;
        if let Some(changed) = changed {
            let text = &mut result.result.text;
            text.push_str(&format!("\n\n(A person changed the arguments of this call to {changed}; this is the result with these.)"));
        }
        if !tool.has_bounded_output() {
            result = self.limit_size(result, index, &context.key).await;
        }
        Ok(match (delegation, changed_files, page) {
            (Some(delegation), _, _) => CallEnd::Delegated(Box::new(result), *delegation),
            (None, Some(changes), _) => CallEnd::Changed(Box::new(result), changes),
            (None, None, Some(page)) => CallEnd::Page(Box::new(result), page),
            (None, None, None) => CallEnd::Result(Box::new(result)),
        })
    }

    fn find_tool(&self, call: &ValidatedToolCall) -> Option<&dyn Tool> {
        self.toolbox.get(&call.tool)
    }
}

/// Stores the images of a result, so that any machine can send them.
async fn store_images(record: &ToolCallRecord, journal: &mut dyn Journal) -> Result<(), DriveError> {
    for bytes in record.result.images.iter().filter_map(|image| image.bytes()) {
        journal.store_blob(bytes.to_vec()).await?;
    }
    Ok(())
}

/// Stores the conversations that forked tasks continue, so that any machine has them.
async fn store_forks(children: &mut [TaskSpec], journal: &mut dyn Journal) -> Result<(), DriveError> {
    for child in children {
        if let Some(InlineOrStoredBytes::Inline(bytes)) = child.fork.as_deref_mut() {
            let bytes = std::mem::take(bytes).into_vec();
            child.fork = Some(Box::new(journal.store_value(bytes).await?));
        }
    }
    Ok(())
}

fn build_call_record(call: &ValidatedToolCall, text: String, is_error: bool) -> ToolCallRecord {
    let result = ToolResult { call_id: call.call_id.clone(), text, is_error, images: Vec::new() };
    let (usage, models, delegated) = (Usage::default(), ModelUsage::new(), Usage::default());
    ToolCallRecord {
        result,
        usage,
        models,
        delegated,
        artifacts: Vec::new(),
        has_effects: false,
        is_progress: false,
        page: None,
        took_ms: 0,
    }
}

/// Extracts the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no panic message")
}
