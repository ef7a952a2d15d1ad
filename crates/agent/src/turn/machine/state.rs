//! The agent's state in its machine: the tools over it, the tools that are available in it, and the end of a turn. Also the list of
//! the files that the agent made.

use millrace_protocol::file::FilePath;
use serde_json::Value;

use super::{Machine, MachineState, ValidatedToolCall};
use crate::model::{ToolResult, ToolSpec};
use crate::skills::SkillEntry;
use crate::state::{AgentState, StateRules};
use crate::turn::{Answer, ArtifactChange};

/// The tool with which an agent reads a skill.
const READ_FILE: &str = "read_file";

impl<A: Answer> Machine<A> {
    /// Gives the agent a state at its beginning, unless it continues a conversation with one. Call it before the first step.
    #[must_use]
    pub fn with_state(mut self, rules: Option<StateRules>) -> Self {
        if self.agent_state.is_none() {
            let rules = rules.filter(|rules| !rules.is_empty());
            self.agent_state = rules.map(|rules| Box::new(AgentState::new(rules)));
        }
        if self.agent_state.is_some()
            && let MachineState::Asking = self.state
        {
            self.show_state();
            self.request_reply();
        }
        self
    }

    /// Sets the skills that the agent can read, unless it continues a conversation with its own. Call it before the first step.
    #[must_use]
    pub(crate) fn with_skills(mut self, skills: Vec<SkillEntry>) -> Self {
        if self.skills.is_empty() {
            self.skills = skills;
        }
        self
    }

    /// The skills that the agent can read.
    pub(crate) fn skills(&self) -> &[SkillEntry] {
        &self.skills
    }

    /// Adds a skill to the state if the call has read its instructions.
    pub(super) fn note_skill_read(&mut self, call: &ValidatedToolCall, result: &ToolResult) {
        if call.tool != READ_FILE || result.is_error {
            return;
        }
        let path = call.arguments.get("file_path").and_then(Value::as_str);
        let Some(path) = path.and_then(|path| FilePath::new(path).ok()) else { return };
        let skill = self.skills.iter().find(|skill| skill.path() == path.as_str());
        if let (Some(skill), Some(state)) = (skill, &mut self.agent_state) {
            state.add_skill(skill);
        }
    }

    pub fn agent_state(&self) -> Option<&AgentState> {
        self.agent_state.as_deref()
    }

    /// `true` if the tool has no condition, or its condition holds.
    pub(super) fn is_available_in_state(&self, tool: &str) -> bool {
        self.agent_state.as_ref().is_none_or(|state| state.is_available(tool))
    }

    /// The spec of a tool with the values of the state that its schema refers to.
    pub(super) fn resolve_tool_spec(&self, spec: &ToolSpec) -> Result<ToolSpec, String> {
        match &self.agent_state {
            Some(state) => state.resolve_tool_spec(spec),
            None => Ok(spec.clone()),
        }
    }

    /// The refusal of a call of a tool that was not offered, since its condition did not hold.
    pub(super) fn refuse_unavailable_tool(&self, tool: &str) -> Option<String> {
        let state = self.agent_state.as_ref()?;
        let is_conditional = state.rules().conditions.contains_key(tool);
        let was_offered = self.request.tools.iter().any(|offered| offered.name == tool);
        if is_conditional && !was_offered {
            return Some(state.unavailable_tool_error(tool));
        }
        let spec = self.tools.iter().find(|spec| spec.name == tool)?;
        let why = self.resolve_tool_spec(spec).err()?;
        (!was_offered).then(|| format!("{tool} is not available now: {why}. It was not run."))
    }

    /// Executes a call of a tool over the state.
    pub(super) fn run_state_tool(&mut self, tool: &str, arguments: &Value) -> Result<String, String> {
        match &mut self.agent_state {
            Some(state) => state.run_tool(tool, arguments),
            None => Err("this agent has no state".into()),
        }
    }

    /// Changes the phase at the end of a turn, and shows the state in the next request.
    pub(super) fn end_turn_of_state(&mut self) {
        let Some(state) = &mut self.agent_state else { return };
        if let Some(notice) = state.end_turn() {
            self.push_user_message(notice);
        }
        self.show_state();
    }

    /// Counts a file that a call made, changed or deleted.
    pub(super) fn add_artifact(&mut self, change: &ArtifactChange) {
        match change {
            ArtifactChange::Written(artifact) => {
                self.artifacts.insert(artifact.path.clone(), artifact.clone());
            }
            ArtifactChange::Deleted(path) => {
                self.artifacts.remove(path);
            }
        }
    }

    /// Renders the prompt with the state, and offers the tools that are available in it.
    fn show_state(&mut self) {
        // A template that can't be rendered with the current values keeps the last prompt.
        if let Some(Some(Ok(system))) = self.agent_state.as_ref().map(|state| state.render_prompt()) {
            self.request.system = system;
        }
        self.request.tools = self.offered_tools();
    }
}
