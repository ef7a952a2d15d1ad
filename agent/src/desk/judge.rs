//! The critic's seat: from an order to review a result to a verdict. It owns what a critic is given and nothing of how a
//! verdict is weighed.

use millrace_protocol::ids::Capability;
use millrace_protocol::plan::Work;
use millrace_protocol::result::Verdict;
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::Order;

use super::{Desk, DeskError, Ready, Seat, invalid};
use crate::critic::{self, ReviewTask};
use crate::roles::DocumentList;
use crate::turn::AttemptName;

impl Desk {
    /// Judges the result that an order is about, by the order's criteria and these.
    ///
    /// # Errors
    /// As for [`Desk::plan`]; or the order is no review of a result.
    pub async fn judge(
        &self,
        order: &Order,
        criteria: &[String],
        seat: Seat<'_>,
    ) -> Result<Verdict, DeskError> {
        let (Work::Review { task, .. }, Some(input)) = (&order.work, order.inputs.first()) else {
            return Err(invalid("it is no review of a result").into());
        };
        let result = seat.sources.result(input).await?;
        // The one input is the result under review, which the critic is given as it is.
        let corpus = match &order.documents {
            None => None,
            Some(set) => Some(self.library.open(set, seat.sources.as_ref()).await?),
        };
        let mut asked = order.criteria.clone();
        asked.extend(criteria.iter().filter(|criterion| !order.criteria.contains(criterion)).cloned());
        let task = ReviewTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            capability: order.capability.to_string(),
            criteria: asked,
            documents: corpus.as_deref().map(DocumentList::of).unwrap_or_default(),
            result,
        };
        let toolbox = critic::tools(corpus.as_ref());
        let brief = critic::brief(&task, &toolbox);
        let role = Capability::new(CRITIC).expect("it is letters");
        let model = self.models.of(order, &role, None).map_err(|error| invalid(&error.to_string()))?;
        let ready = Ready { attempt: AttemptName::of(order), brief, toolbox, model, seat };
        let (verdict, usage) = ready.answer::<Verdict>(&|verdict| Ok(verdict)).await?;
        Ok(Verdict { usage, ..verdict })
    }
}
