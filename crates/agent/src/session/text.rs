//! The verification of a given text as the work of a task: a conversation whose answer is given instead of requested, so that its
//! statements are verified, journaled and paid for as those of an agent's answer.

use std::sync::Arc;

use millrace_protocol::result::{ErrorKind, TaskError, TaskResult, VerifiedStatement};
use millrace_protocol::work::Order;
use millrace_verification::{Phrases, Verification, VerificationCounts, mark_statements};

use super::agent::complete_result;
use super::environment::{SessionEnvironment, SessionError};
use super::host::AgentHost;
use crate::builtin::Extractive;
use crate::corpus::Corpus;
use crate::model::{Model, ModelAbility};
use crate::tool::Toolbox;
use crate::turn::{AgentBrief, AnswerCheck, AttemptName, Conversation, Limits};
use crate::verification::{Verifier, begin_text_verification};

const NO_DOCUMENTS: &str =
    "the run has no documents with text to compare the statements with; submit the text with its documents";

/// The check of a given text: it has no author who could correct it, so it passes with any verdicts.
struct TextCheck<'a>(&'a Corpus);

impl AnswerCheck<TaskResult> for TextCheck<'_> {
    fn check(&self, text: TaskResult) -> Result<TaskResult, String> {
        Ok(text)
    }

    fn begin_verification(&self, text: &TaskResult) -> Option<Verification> {
        Some(begin_text_verification(&text.output, "", self.0))
    }

    fn conclude(&self, text: TaskResult, statements: Vec<VerifiedStatement>) -> Result<TaskResult, String> {
        Ok(TaskResult { statements, ..text })
    }
}

impl AgentHost {
    /// Verifies the statements of a text with the documents of an order. The result is the text with marks, and the verdicts.
    ///
    /// # Errors
    /// The order has no documents with text, they can't be read, or the verifier's model can't be opened.
    pub async fn verify_text(
        &self,
        order: &Order,
        text: String,
        env: SessionEnvironment<'_>,
    ) -> Result<TaskResult, SessionError> {
        let documents = match &order.documents {
            None => None,
            Some(set) => Some(self.open_documents(set, env.sources.as_ref()).await?),
        };
        let Some(corpus) = documents.filter(|corpus| corpus.has_sources()) else {
            return Err(TaskError::new(ErrorKind::InvalidTask, NO_DOCUMENTS).into());
        };
        let verifier = self.open_verifier(order)?;
        let model =
            verifier.as_ref().map_or_else(|| Arc::new(Extractive) as Arc<dyn Model>, Verifier::share_model);
        let toolbox = Toolbox::default();
        let brief = AgentBrief {
            system: String::new(),
            task: String::new(),
            tools: toolbox.specs(),
            answer: None,
            limits: Limits::default(),
            max_output_tokens: 0,
            ability: ModelAbility::default(),
        };
        let conversation = Conversation {
            is_verified: true,
            verifier,
            attempt: AttemptName::from_order(order),
            listener: env.observer.clone(),
            allowance: env.allowance,
            provider_timeout: env.provider_timeout,
            ..Conversation::new(brief, model, toolbox)
        };
        let given = TaskResult { output: text, ..TaskResult::default() };
        let check = TextCheck(&corpus);
        let mut work = conversation.drive_given_answer(given, env.host, &check).await?.into_result()?;
        let TaskResult { output, statements, .. } = std::mem::take(&mut work.answer);
        let summary = VerificationCounts::of(&statements).to_string();
        let (output, statements) = mark_statements(&output, statements, Phrases::choose("", &output));
        Ok(complete_result(TaskResult { summary, output, statements, ..TaskResult::default() }, work))
    }
}
