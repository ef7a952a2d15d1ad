//! The constructors of a machine: a new conversation, or one that continues another.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::Usage;
use millrace_protocol::schema::CompiledSchema;

use super::repetition::RepetitionTracker;
use super::shorten::ContextState;
use super::{AgentBrief, Machine, MachineState};
use crate::model::{Message, Request};
use crate::turn::fork::ForkedConversation;
use crate::turn::scratch::Scratchpad;
use crate::turn::{Answer, UsageTotals};

impl<A: Answer> Machine<A> {
    /// A machine before its first step.
    #[must_use]
    pub fn new(brief: AgentBrief) -> Self {
        let mut machine = Self::before_first_request(brief);
        machine.request_reply();
        machine
    }

    /// A machine that continues a forked conversation with this task, before its first step.
    #[must_use]
    pub fn of_fork(brief: AgentBrief, fork: &ForkedConversation, task: &str) -> Self {
        let mut machine = Self::before_first_request(brief);
        machine.request.messages = fork.to_messages(task);
        let begin = fork.messages.len() - usize::from(!fork.has_ended());
        machine.context = ContextState::with_task(begin..machine.request.messages.len());
        let replies = fork.messages.iter().filter(|message| matches!(message, Message::Assistant { .. }));
        machine.inherited_turns = replies.count() as u64;
        machine.scratch = fork.scratch.clone();
        machine.agent_state = fork.agent_state.clone();
        machine.skills = fork.skills.clone();
        machine.request_reply();
        machine
    }

    /// The conversation while its calls are being made, to be forked by one of them.
    pub fn fork(&self) -> ForkedConversation {
        ForkedConversation {
            system: self.request.system.clone(),
            messages: self.request.messages.clone(),
            tools: self.tools.clone(),
            answer: self.request.answer.clone(),
            ability: self.ability,
            scratch: self.scratch.clone(),
            agent_state: self.agent_state.clone(),
            skills: self.skills.clone(),
            call_id: String::new(),
        }
    }

    /// Adds the usage of the attempt before the conversation.
    #[must_use]
    pub(in crate::turn) fn with_usage_before(mut self, spent: &UsageTotals, took: Duration) -> Self {
        self.count_side_usage(spent, took);
        self
    }

    /// Begins with a given answer instead of a request to its model. Call it before the first step.
    #[must_use]
    pub(in crate::turn) fn with_given_answer(mut self, answer: A) -> Self {
        self.state = MachineState::Checking(answer);
        self
    }

    fn before_first_request(brief: AgentBrief) -> Self {
        let AgentBrief { system, task, tools, answer, limits, max_output_tokens, ability } = brief;
        let request = Request {
            system,
            messages: vec![Message::User { text: task }],
            tools: tools.iter().cloned().collect(),
            answer,
            max_output_tokens,
            ..Request::default()
        };
        Self {
            ability,
            limits,
            reserved: ResourceAmounts::default(),
            model: String::new(),
            tools,
            max_output_tokens,
            request,
            scratch: Scratchpad::default(),
            agent_state: None,
            skills: Vec::new(),
            spent: UsageTotals::default(),
            delegated: Usage::default(),
            worked: Duration::ZERO,
            turns: 0,
            inherited_turns: 0,
            last_input: 0,
            calls_counted: 0,
            calls_allowed: limits.tool_calls,
            repairs: 0,
            is_correcting: false,
            repetition: RepetitionTracker::default(),
            cut_off: None,
            compactions: 0,
            artifacts: BTreeMap::new(),
            context: ContextState::with_task(0..1),
            out_of_calls: false,
            has_wrap_up_notice: false,
            state: MachineState::Asking,
            answer_form: CompiledSchema::default(),
        }
    }
}
