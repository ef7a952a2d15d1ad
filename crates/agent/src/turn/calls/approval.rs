//! The approvals that calls need, and what happens next with a call that has no result.

use millrace_protocol::foreign_json::parse_foreign_json;
use millrace_protocol::question::Answer;
use millrace_protocol::schema::check_value_against_schema;
use millrace_protocol::wait::{Wait, WaitCondition, WaitEnd};
use serde_json::Value;

use super::run::build_call_record;
use super::{Approval, CallAction, TurnCalls};
use crate::approval::digest_of_call;
use crate::tool::describe_wait_end;
use crate::turn::Host;

/// The length of the digest of a call in the key of its approval.
const DIGEST_LENGTH: usize = 16;

impl TurnCalls<'_> {
    /// Returns the approval of a call. An answer counts also if the rules have changed since.
    pub(super) fn approval_of_call(&self, index: usize, host: &dyn Host) -> Approval {
        match host.ended_wait(&self.approval_key(index)) {
            Some(WaitEnd::Answered { answer, .. }) => return Approval::Given(answer),
            Some(WaitEnd::Withdrawn) => return Approval::Withdrawn,
            Some(
                WaitEnd::TimeReached | WaitEnd::Signalled { .. } | WaitEnd::Expired | WaitEnd::TasksEnded(_),
            )
            | None => {}
        }
        let Some(tool) = self.find_tool(index) else { return Approval::NotNeeded };
        let call = &self.calls[index];
        let reason = tool.approval_reason(&call.arguments);
        let schema = tool.spec().schema;
        let asked =
            self.conversation.approvals.question_for_call(&call.tool, &call.arguments, reason, Some(&schema));
        asked.map_or(Approval::NotNeeded, |question| Approval::Open(Box::new(question)))
    }

    /// Returns what happens next with a call that has no result.
    pub(super) fn next_action(&self, index: usize, approval: Approval, host: &dyn Host) -> CallAction {
        let call = &self.calls[index];
        let result =
            |text: String, is_error| CallAction::Result(Box::new(build_call_record(call, text, is_error)));
        let changed = match approval {
            Approval::NotNeeded | Approval::Given(Answer::Approve) => None,
            Approval::Open(_) if !self.conversation.can_wait => {
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
                return CallAction::Wait(Wait::new(self.approval_key(index), condition));
            }
            Approval::Withdrawn => {
                let text =
                    describe_wait_end(&WaitEnd::Withdrawn) + " The call was not approved and did not run.";
                return result(text, true);
            }
            Approval::Given(Answer::Edit { arguments }) => {
                match self.read_changed_arguments(index, &arguments) {
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
        match host.ended_wait(&self.names[index]) {
            Some(end) => CallAction::End(changed, end),
            None => CallAction::Run(changed),
        }
    }

    /// The key under which a call waits for its approval.
    fn approval_key(&self, index: usize) -> String {
        let call = &self.calls[index];
        // With another set of tools a call may have another index: an answer is for these arguments only.
        let digest = digest_of_call(&call.tool, &call.arguments.to_string());
        format!("approve.{}.{index}.{}.{}", self.number, call.tool, &digest[..DIGEST_LENGTH])
    }

    /// Reads the arguments that a person gave in place of the proposed ones.
    fn read_changed_arguments(&self, index: usize, arguments: &str) -> Result<Value, String> {
        let misfit = |mistake: String| {
            format!(
                "A person changed the arguments of this call, and they do not fit: {mistake}. It did not run."
            )
        };
        let changed: Value = parse_foreign_json(arguments).map_err(|error| misfit(error.to_string()))?;
        if let Some(tool) = self.find_tool(index) {
            check_value_against_schema(&tool.spec().schema, &changed).map_err(misfit)?;
        }
        Ok(changed)
    }
}
