//! The description of a run as a whole, from its submitter and from a plan file.

use std::sync::Arc;

use millrace_agent::session::ModelPreferences;
use millrace_protocol::ids::SessionId;
use millrace_protocol::labels::{Labels, find_labels_problem};
use millrace_protocol::plan::{
    Budget, MAX_OBJECTIVE, PlannerConsultMode, PlanningMode, Submission, find_criteria_problem,
};
use millrace_protocol::result::VerificationPolicy;

use crate::PlanFile;

/// A mistake in the description of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunMistake {
    /// In mode `llm` there can be no plan.
    #[error(
        "in mode llm the planner makes the plan: omit the plan, or use mode hybrid to let the planner extend and change yours"
    )]
    LlmWithPlan,
    /// Mode `hybrid` needs a plan.
    #[error("mode hybrid needs a plan for the planner to extend and change")]
    HybridWithoutPlan,
    /// Mode `fixed` needs a plan.
    #[error("mode fixed needs a plan; use mode llm to let the planner make one")]
    FixedWithoutPlan,
    /// The mode needs a planner that is never called.
    #[error("modes llm and hybrid call the planner: `consult` can be `never` in mode fixed only")]
    NeverConsulted,
    /// There is no objective.
    #[error("the objective is missing")]
    ObjectiveMissing,
    /// The objective is blank.
    #[error("the objective is empty: describe what you want to know or to have done")]
    ObjectiveEmpty,
    /// The objective is longer than [`MAX_OBJECTIVE`].
    #[error("the objective has {bytes} bytes; at most {MAX_OBJECTIVE} are allowed")]
    ObjectiveTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The criteria for the deliverable are invalid.
    #[error("{0}")]
    Criteria(String),
    /// The labels are invalid.
    #[error("{0}")]
    Labels(String),
}

impl RunMistake {
    /// The field of the description that it concerns.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        match self {
            Self::LlmWithPlan | Self::HybridWithoutPlan | Self::FixedWithoutPlan => "mode",
            Self::NeverConsulted => "consult",
            Self::ObjectiveMissing | Self::ObjectiveEmpty | Self::ObjectiveTooLong { .. } => "objective",
            Self::Criteria(_) => "criteria",
            Self::Labels(_) => "labels",
        }
    }
}

/// A run as its submitter describes it; what is absent is as in the plan.
#[derive(Debug, Default)]
pub struct RunDescription {
    pub objective: Option<String>,
    pub mode: Option<PlanningMode>,
    pub consult: Option<PlannerConsultMode>,
    pub models: ModelPreferences,
    /// The budget in place of that of the plan.
    pub budget: Option<Budget>,
    pub fail_fast: bool,
    pub approve_plan: bool,
    pub verification: Option<VerificationPolicy>,
    /// Criteria in addition to those of the plan.
    pub criteria: Vec<String>,
    pub labels: Labels,
    pub session: Option<SessionId>,
}

impl RunDescription {
    /// Returns the run with the tasks of a plan, without documents and earlier runs.
    pub fn into_submission(self, plan: Option<PlanFile>) -> Result<Submission, RunMistake> {
        let objective = self.resolve_objective(plan.as_ref())?;
        let mode = self.resolve_mode(plan.as_ref())?;
        let plan = plan.unwrap_or_default();
        let consult = match (mode, self.consult.or(plan.consult)) {
            (PlanningMode::Llm | PlanningMode::Hybrid, Some(PlannerConsultMode::Never)) => {
                return Err(RunMistake::NeverConsulted);
            }
            (PlanningMode::Llm | PlanningMode::Hybrid | PlanningMode::Fixed, consult) => consult,
        };
        let criteria = [plan.criteria, self.criteria].concat();
        find_criteria_problem(&criteria).map_or(Ok(()), |problem| Err(RunMistake::Criteria(problem)))?;
        find_labels_problem(&self.labels).map_or(Ok(()), |problem| Err(RunMistake::Labels(problem)))?;
        let ModelPreferences { default, by_capability, .. } = self.models;
        Ok(Submission {
            tasks: plan.tasks.into_iter().map(Arc::new).collect(),
            model: default.map(|choice| choice.to_string()),
            models: by_capability.into_iter().map(|(name, choice)| (name, choice.to_string())).collect(),
            fail_fast: self.fail_fast || plan.fail_fast,
            approve_plan: self.approve_plan || plan.approve_plan,
            verification: self.verification.or(plan.verification),
            criteria,
            labels: self.labels,
            session: self.session,
            budget: self.budget.unwrap_or(plan.budget),
            consult,
            ..Submission::new(objective, mode)
        })
    }

    fn resolve_mode(&self, plan: Option<&PlanFile>) -> Result<PlanningMode, RunMistake> {
        match (self.mode, plan) {
            (None | Some(PlanningMode::Llm), None) => Ok(PlanningMode::Llm),
            (None, Some(plan)) => Ok(plan.mode.unwrap_or(PlanningMode::Fixed)),
            (Some(mode @ (PlanningMode::Hybrid | PlanningMode::Fixed)), Some(_)) => Ok(mode),
            (Some(PlanningMode::Llm), Some(_)) => Err(RunMistake::LlmWithPlan),
            (Some(PlanningMode::Hybrid), None) => Err(RunMistake::HybridWithoutPlan),
            (Some(PlanningMode::Fixed), None) => Err(RunMistake::FixedWithoutPlan),
        }
    }

    fn resolve_objective(&self, plan: Option<&PlanFile>) -> Result<String, RunMistake> {
        let from_plan = || plan.and_then(|plan| plan.objective.as_deref());
        let objective = self.objective.as_deref().or_else(from_plan).ok_or(RunMistake::ObjectiveMissing)?;
        if objective.trim().is_empty() {
            return Err(RunMistake::ObjectiveEmpty);
        }
        if objective.len() > MAX_OBJECTIVE {
            return Err(RunMistake::ObjectiveTooLong { bytes: objective.len() });
        }
        Ok(objective.trim().to_owned())
    }
}
