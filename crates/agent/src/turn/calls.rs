//! Executes the tool calls of one turn. It owns the order of recording: calls that must not run twice are recorded before
//! they begin, each result is recorded as soon as it is available, and a recorded call is not run again.
//!
//! A call that needs a person's approval waits for it under the key `approve.<turn>.<index>.<tool>.<digest>`; the other calls of the turn
//! run at once. When it is approved it runs like any other, and is recorded before it begins by a step of its own.
//!
//! The files that a program changed are recorded under `files.<turn>.<index>.<tool>` before they are written.

mod approval;
mod run;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millrace_protocol::child::Delegation;
use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::plan::{ResourceAmounts, TaskSpec};
use millrace_protocol::question::{Answer, Question};
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};
use millrace_protocol::wire::InlineOrStoredBytes;
use serde_json::Value;

use super::conversation::Conversation;
use super::fork::ForkedConversation;
use super::outcome::{decode_step, encode_step};

use super::record::{BegunCallsStep, FileChangesStep, ToolCallRecord};

use super::{
    DriveError, FileChangesError, Host, Machine, RecordedChanges, ValidatedToolCall, WrittenChanges,
};

use crate::corpus::pages::PageContent;
use crate::files::FileChanges;
use crate::tool::{CONTINUE_AT_FIRST, Effect, ModelCallBudget, Tool};

pub use run::MAX_RESULT;

/// The result for a call that had begun when its worker was lost.
const UNKNOWN: &str = "It is unknown whether this call took effect: its worker was lost after the call began and before \
the result was recorded. The call was not retried. Check what it was meant to change before you continue: if it took \
effect, do not repeat it; if not, make the call again.";

/// The changes of files that are recorded and perhaps not written yet, by the index of their call.
type PendingChanges = BTreeMap<usize, FileChangesStep>;

/// The calls of a turn, and what they run with.
pub(super) struct TurnCalls<'a> {
    conversation: &'a Conversation,
    calls: &'a [ValidatedToolCall],
    /// The name of the step of each call.
    names: Vec<String>,
    /// The number of the turn.
    number: u64,
    /// The remaining working time.
    left: Option<Duration>,
    /// The model usage that the calls may have together.
    budget: ModelCallBudget,
    /// The amounts of `budget` at the beginning of the turn.
    left_amounts: ResourceAmounts,
    /// The conversation, for calls that fork it; `None` if no call of the turn delegates.
    fork: Option<ForkedConversation>,
}

/// A call that runs now.
struct ReadyCall {
    index: usize,
    is_approved: bool,
    /// The arguments that a person put in place of its own.
    changed: Option<Value>,
}

/// The end of running a call.
enum CallEnd {
    Ended(Box<EndedCall>),
    /// It waits for something outside, perhaps for a task that it delegates.
    Waits(WaitCondition, Option<Box<TaskSpec>>),
}

/// The result of a call, and what belongs to it.
struct EndedCall {
    record: ToolCallRecord,
    /// The changes of children.
    delegation: Option<Box<Delegation>>,
    /// The files that a program changed.
    changes: Option<Box<FileChanges>>,
    /// A web page to keep.
    page: Option<Box<PageContent>>,
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

impl<'a> TurnCalls<'a> {
    pub fn new<A: super::Answer>(
        conversation: &'a Conversation,
        machine: &Machine<A>,
        calls: &'a [ValidatedToolCall],
    ) -> Self {
        // A call belongs to the turn of its reply.
        let number = machine.request_count().saturating_sub(1);
        let left_amounts = machine.amounts_left_for_calls();
        let names = calls.iter().enumerate();
        let names = names.map(|(index, call)| format!("tool.{number}.{index}.{}", call.tool)).collect();
        let mut tools = calls.iter().filter_map(|call| conversation.toolbox.get(&call.tool));
        let fork = tools.any(|tool| tool.delegated_tasks() > 0).then(|| machine.fork());
        let (left, budget) = (machine.time_left(), ModelCallBudget::new(left_amounts));
        Self { conversation, calls, names, number, left, budget, left_amounts, fork }
    }

    /// Runs the calls concurrently and returns their results in order. If a tool is unavailable, the other calls finish
    /// first, so that every effect is recorded.
    pub async fn run(&self, host: &mut dyn Host) -> Result<Vec<ToolCallRecord>, DriveError> {
        let approvals: Vec<Approval> =
            (0..self.calls.len()).map(|index| self.approval_of_call(index, host)).collect();
        let mut results = self.replay_and_complete(&approvals, host).await?;
        let (mut ready, mut waits, mut children) = (Vec::new(), Vec::new(), Vec::new());
        for (index, approval) in approvals.into_iter().enumerate() {
            if results[index].is_some() {
                continue;
            }
            let is_approved = matches!(approval, Approval::Given(_));
            let record = match self.next_action(index, approval, host) {
                CallAction::Run(changed) => {
                    ready.push(ReadyCall { index, is_approved, changed });
                    continue;
                }
                CallAction::Wait(wait) => {
                    waits.push((index, wait));
                    continue;
                }
                CallAction::Result(record) => *record,
                CallAction::End(changed, end) => self.end_wait(index, changed, &end).await?,
            };
            results[index] = Some(self.record_result(index, record, host).await?);
        }
        self.record_approved_effects(&ready, host).await?;
        let share = self.share_of_delegated_task();
        let run = |ready: ReadyCall| {
            let index = ready.index;
            self.run_call(ready, share).map(move |end| (index, end))
        };
        let mut running: FuturesUnordered<_> = ready.into_iter().map(run).collect();
        let mut fault = None;
        while let Some((index, end)) = running.next().await {
            match end {
                Ok(CallEnd::Ended(ended)) => {
                    results[index] = Some(self.record_end(index, *ended, host).await?);
                }
                Ok(CallEnd::Waits(condition, child)) => {
                    waits.push((index, Wait::new(self.names[index].clone(), condition)));
                    let mut delegated: Vec<TaskSpec> = child.map(|child| *child).into_iter().collect();
                    store_forks(&mut delegated, host).await?;
                    children.extend(delegated);
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        drop(running);
        match fault {
            Some(fault) => Err(fault),
            // The results of the other calls are in the journal.
            None if !waits.is_empty() => Err(self.park(waits, children)),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// Returns the recorded results, and those of the calls that earlier workers had begun: their files are written now, and for
    /// effects it is unknown if they happened.
    async fn replay_and_complete(
        &self,
        approvals: &[Approval],
        host: &mut dyn Host,
    ) -> Result<Vec<Option<ToolCallRecord>>, DriveError> {
        let mut begun = self.record_begun_calls(approvals, host).await?;
        let mut pending = PendingChanges::new();
        let mut results = self.replay_results(approvals, (&mut begun, &mut pending), host).await?;
        for (index, step) in pending {
            if results[index].is_none() {
                let record = self.write_changes(index, step, host).await?;
                results[index] = Some(self.record_result(index, record, host).await?);
            }
        }
        for index in begun {
            if results[index].is_none() {
                let unknown = run::build_call_record(&self.calls[index], UNKNOWN.to_owned(), true);
                let unknown = ToolCallRecord { has_effects: true, ..unknown };
                results[index] = Some(self.record_result(index, unknown, host).await?);
            }
        }
        Ok(results)
    }

    async fn record_result(
        &self,
        index: usize,
        record: ToolCallRecord,
        host: &mut dyn Host,
    ) -> Result<ToolCallRecord, DriveError> {
        host.record(&self.names[index], &encode_step(&record)).await?;
        Ok(record)
    }

    /// Records the approved calls that must not run twice, each by a step of its own.
    async fn record_approved_effects(
        &self,
        ready: &[ReadyCall],
        host: &mut dyn Host,
    ) -> Result<(), DriveError> {
        for ReadyCall { index, .. } in
            ready.iter().filter(|call| call.is_approved && self.has_effect(call.index))
        {
            let begun = BegunCallsStep { calls: vec![self.names[*index].clone()] };
            host.record(&self.begin_step(*index), &encode_step(&begun)).await?;
        }
        Ok(())
    }

    /// Records the result of a call after what belongs to it.
    async fn record_end(
        &self,
        index: usize,
        ended: EndedCall,
        host: &mut dyn Host,
    ) -> Result<ToolCallRecord, DriveError> {
        let EndedCall { mut record, delegation, changes, page } = ended;
        if let Some(page) = page {
            self.keep_page(&mut record, *page, host).await?;
        }
        // Any machine can send the images.
        for bytes in record.result.images.iter().filter_map(|image| image.bytes()) {
            host.store_blob(bytes.to_vec()).await?;
        }
        if let Some(mut delegation) = delegation {
            store_forks(&mut delegation.children, host).await?;
            host.delegate(*delegation).await?;
        }
        if let Some(changes) = changes {
            let changes = RecordedChanges::store_contents(&changes, host).await;
            let changes = changes.map_err(|error| self.file_changes_error(index, error))?;
            let step = FileChangesStep { call: record, changes };
            host.record(&self.changes_step(index), &encode_step(&step)).await?;
            record = self.write_changes(index, step, host).await?;
        }
        self.record_result(index, record, host).await
    }

    /// The waits of the turn, in the order of the calls, whichever came to wait first.
    fn park(&self, mut waits: Vec<(usize, Wait)>, mut children: Vec<TaskSpec>) -> DriveError {
        waits.sort_by_key(|(index, _)| *index);
        children.sort_by(|one, other| one.id.cmp(&other.id));
        let has_group = self.calls.iter().any(|call| call.tool == CONTINUE_AT_FIRST);
        let group = has_group.then(|| format!("turn.{}", self.number));
        let waits = waits.into_iter().map(|(_, wait)| Wait { group: group.clone(), ..wait });
        DriveError::Parked(waits.collect(), children)
    }

    /// The step that is recorded before an approved call begins.
    fn begin_step(&self, index: usize) -> String {
        format!("begin.{}.{index}", self.number)
    }

    /// The step that records the files that a call changed, before they are written.
    fn changes_step(&self, index: usize) -> String {
        format!("files.{}.{index}.{}", self.number, self.calls[index].tool)
    }

    fn has_effect(&self, index: usize) -> bool {
        self.find_tool(index).is_some_and(|tool| tool.effect() == Effect::Effect)
    }

    fn find_tool(&self, index: usize) -> Option<&'a dyn Tool> {
        self.conversation.toolbox.get(&self.calls[index].tool)
    }

    /// Records the calls that must not run twice and need no approval. Returns those that an earlier worker had begun.
    async fn record_begun_calls(
        &self,
        approvals: &[Approval],
        host: &mut dyn Host,
    ) -> Result<Vec<usize>, DriveError> {
        let step = format!("begin.{}", self.number);
        let next = host.peek().await?;
        if next.is_some_and(|(name, _)| name == step)
            && let Some((_, value)) = host.replay(std::slice::from_ref(&step)).await?
        {
            let begun: BegunCallsStep = decode_step(&step, value)?;
            return Ok((0..self.calls.len())
                .filter(|index| begun.calls.contains(&self.names[*index]))
                .collect());
        }
        let begins =
            |index: &usize| matches!(approvals[*index], Approval::NotNeeded) && self.has_effect(*index);
        let effects: Vec<usize> = (0..self.calls.len()).filter(begins).collect();
        if effects.is_empty() {
            return Ok(effects);
        }
        // The next recorded step, if there is one, is none of a turn with these calls: the journal has diverged.
        drop(host.replay(std::slice::from_ref(&step)).await?);
        let begun =
            BegunCallsStep { calls: effects.iter().map(|index| self.names[*index].clone()).collect() };
        host.record(&step, &encode_step(&begun)).await?;
        Ok(Vec::new())
    }

    /// Reads the recorded results, in whatever order they were recorded. Adds the approved calls that have begun to `begun`, and
    /// the changes of files to `pending`.
    async fn replay_results(
        &self,
        approvals: &[Approval],
        (begun, pending): (&mut Vec<usize>, &mut PendingChanges),
        host: &mut dyn Host,
    ) -> Result<Vec<Option<ToolCallRecord>>, DriveError> {
        let mut results: Vec<Option<ToolCallRecord>> = self.calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..self.calls.len()).collect();
        while !open.is_empty() {
            let mut requested: Vec<String> = open.iter().map(|index| self.names[*index].clone()).collect();
            requested.extend(open.iter().map(|index| self.begin_step(*index)));
            requested.extend(open.iter().map(|index| self.changes_step(*index)));
            let Some((at, value)) = host.replay(&requested).await? else { break };
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
            let result: ToolCallRecord = decode_step(&self.names[index], value)?;
            self.budget.lock().await.charge_usage(&result.usage);
            if let (Some(page), Some(pages)) = (&result.page, &self.conversation.pages) {
                pages.restore_page(page).await.map_err(|error| DriveError::Tool {
                    tool: self.calls[index].tool.clone(),
                    reason: error.to_string(),
                })?;
            }
            if let Some(tool) = self.find_tool(index) {
                let call = self.call_context(index, ResourceAmounts::default());
                let changed = match &approvals[index] {
                    Approval::Given(Answer::Edit { arguments }) => parse_foreign_json(arguments).ok(),
                    Approval::Given(_) | Approval::NotNeeded | Approval::Open(_) | Approval::Withdrawn => {
                        None
                    }
                };
                tool.on_replay(
                    changed.as_ref().unwrap_or(&self.calls[index].arguments),
                    &result.result,
                    &call,
                );
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
        host: &mut dyn Host,
    ) -> Result<(), DriveError> {
        let Some(pages) = &self.conversation.pages else { return Ok(()) };
        let document = pages.name_page(content);
        host.store_blob(document.text().as_bytes().to_vec()).await?;
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
    fn share_of_delegated_task(&self) -> ResourceAmounts {
        let tasks =
            (0..self.calls.len()).filter_map(|index| self.find_tool(index)).map(Tool::delegated_tasks);
        let shares = u64::from(tasks.sum::<u32>()) + 1;
        let mut share = self.left_amounts;
        for (resource, amount) in self.left_amounts.iter() {
            share.set(resource, Some(amount / shares));
        }
        share
    }

    /// Writes the files that a call changed, and adds what became of them to its result.
    async fn write_changes(
        &self,
        index: usize,
        step: FileChangesStep,
        host: &mut dyn Host,
    ) -> Result<ToolCallRecord, DriveError> {
        let FileChangesStep { call: mut record, changes } = step;
        let Some(files) = &self.conversation.agent_files else {
            record.result.text.push_str("\n[Not saved: there is no workspace here]");
            return Ok(record);
        };
        let key = self.conversation.attempt.call_key(self.number, index);
        let written = changes.write_back(files, &key, host).await;
        let WrittenChanges { text, artifacts, .. } =
            written.map_err(|error| self.file_changes_error(index, error))?;
        record.result.text.push_str(&format!("\n{text}"));
        Ok(ToolCallRecord { artifacts, ..record })
    }

    /// The error of a call whose files can't be written now: the attempt is released, and continues with writing them.
    fn file_changes_error(&self, index: usize, error: FileChangesError) -> DriveError {
        match error {
            FileChangesError::Host(error) => error.into(),
            FileChangesError::Files(error) => {
                DriveError::Tool { tool: self.calls[index].tool.clone(), reason: error.to_string() }
            }
        }
    }
}

/// Stores the conversations that forked tasks continue, so that any machine has them.
async fn store_forks(children: &mut [TaskSpec], host: &mut dyn Host) -> Result<(), DriveError> {
    for child in children {
        if let Some(InlineOrStoredBytes::Inline(bytes)) = child.fork.as_deref_mut() {
            let bytes = std::mem::take(bytes).into_vec();
            child.fork = Some(Box::new(host.store_value(bytes).await?));
        }
    }
    Ok(())
}
