//! The description of a run as a whole, from its submitter and from a plan file: objective, mode, and when the planner is
//! called.

use millrace_protocol::plan::{MAX_OBJECTIVE, PlannerConsultMode, PlanningMode};

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
}

/// Returns the mode that the submitter chooses, or else that of the plan file.
pub fn resolve_mode(
    chosen: Option<PlanningMode>,
    plan: Option<&PlanFile>,
) -> Result<PlanningMode, RunMistake> {
    match (chosen, plan) {
        (None | Some(PlanningMode::Llm), None) => Ok(PlanningMode::Llm),
        (None, Some(plan)) => Ok(plan.mode.unwrap_or(PlanningMode::Fixed)),
        (Some(mode @ (PlanningMode::Hybrid | PlanningMode::Fixed)), Some(_)) => Ok(mode),
        (Some(PlanningMode::Llm), Some(_)) => Err(RunMistake::LlmWithPlan),
        (Some(PlanningMode::Hybrid), None) => Err(RunMistake::HybridWithoutPlan),
        (Some(PlanningMode::Fixed), None) => Err(RunMistake::FixedWithoutPlan),
    }
}

/// Returns when the planner is called: as the submitter chooses, or else as in the plan file.
pub fn resolve_consult(
    mode: PlanningMode,
    chosen: Option<PlannerConsultMode>,
    plan: &PlanFile,
) -> Result<Option<PlannerConsultMode>, RunMistake> {
    match (mode, chosen.or(plan.consult)) {
        (PlanningMode::Llm | PlanningMode::Hybrid, Some(PlannerConsultMode::Never)) => {
            Err(RunMistake::NeverConsulted)
        }
        (PlanningMode::Llm | PlanningMode::Hybrid | PlanningMode::Fixed, consult) => Ok(consult),
    }
}

/// Returns the objective of the submitter, or else that of the plan file.
pub fn resolve_objective(chosen: Option<&str>, plan: Option<&PlanFile>) -> Result<String, RunMistake> {
    let from_plan = || plan.and_then(|plan| plan.objective.as_deref());
    let objective = chosen.or_else(from_plan).ok_or(RunMistake::ObjectiveMissing)?;
    if objective.trim().is_empty() {
        return Err(RunMistake::ObjectiveEmpty);
    }
    if objective.len() > MAX_OBJECTIVE {
        return Err(RunMistake::ObjectiveTooLong { bytes: objective.len() });
    }
    Ok(objective.trim().to_owned())
}
