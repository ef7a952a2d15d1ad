//! The shared budget for model calls by the tool calls of one turn. The calls run concurrently and charge this budget, so
//! that together they exceed an amount by at most one model request. The turn sets the amounts.

use std::sync::Arc;

use millrace_protocol::plan::ResourceAmounts;
use millrace_protocol::result::Usage;
use tokio::sync::{Mutex, MutexGuard};

/// The model usage that the calls of a turn may have together. The default is unlimited.
#[derive(Debug, Clone, Default)]
pub struct ModelCallBudget(Option<Arc<Mutex<ResourceAmounts>>>);

impl ModelCallBudget {
    /// A budget of these amounts; unlimited if there are none.
    #[must_use]
    pub fn new(left: ResourceAmounts) -> Self {
        Self((!left.is_empty()).then(|| Arc::new(Mutex::new(left))))
    }

    /// Locks it. While it is locked, no other call of the turn can call a model; an unlimited budget does not lock.
    pub async fn lock(&self) -> ModelCallBudgetGuard<'_> {
        match &self.0 {
            None => ModelCallBudgetGuard(None),
            Some(left) => ModelCallBudgetGuard(Some(left.lock().await)),
        }
    }
}

/// A locked budget.
pub struct ModelCallBudgetGuard<'a>(Option<MutexGuard<'a, ResourceAmounts>>);

impl ModelCallBudgetGuard<'_> {
    /// `true` if no model request is left.
    pub fn is_used_up(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.iter().any(|(_, amount)| amount == 0))
    }

    /// `true` if the cost is limited.
    pub fn limits_cost(&self) -> bool {
        self.0.as_ref().is_some_and(|left| left.cost_micros.is_some())
    }

    /// The maximum number of tokens of the next reply.
    pub fn max_reply_tokens(&self) -> u32 {
        let left =
            self.0.as_ref().and_then(|left| [left.tokens, left.output_tokens].into_iter().flatten().min());
        left.and_then(|left| u32::try_from(left).ok()).unwrap_or(u32::MAX)
    }

    /// Deducts usage.
    pub fn charge_usage(&mut self, used: &Usage) {
        let Some(left) = &mut self.0 else { return };
        let now = **left;
        for (dimension, amount) in now.iter() {
            left.set(dimension, Some(amount.saturating_sub(dimension.amount_used(used))));
        }
    }
}
