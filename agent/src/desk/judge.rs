//! The critics' bench: from an order to review a result to a verdict. It seats one judge after another, as many as it
//! takes; what each says, and what they come to together, is the critic's.
//!
//! ```text
//! journal, one model:       model.0 …
//!          several models:  judge.0.model.0 … judge.1.lost judge.2.model.0 …
//! ```

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use millrace_protocol::ids::{Capability, TaskId};
use millrace_protocol::plan::{Amounts, Work};
use millrace_protocol::result::{ErrorKind, TaskError, Verdict};
use millrace_protocol::subject::CRITIC;
use millrace_protocol::work::{Input, Order, Panel};
use serde_json::Value;

use super::results::Inputs;
use super::{Desk, DeskError, Ready, Seat, Sources, invalid};
use crate::critic::{Asked, Bench, Evidence, Judged, Judgement, ReviewTask, brief};
use crate::files::Files;
use crate::model::{Choice, Model};
use crate::roles::DocumentList;
use crate::tool::Toolbox;
use crate::turn::{AttemptName, Brief, Journal, JournalError, Spent};

/// What all judges of one result are given.
struct Case<'a> {
    order: &'a Order,
    task: &'a TaskId,
    criteria: &'a [String],
    brief: Brief,
    toolbox: Toolbox,
}

/// What a judge came to.
enum Word {
    Verdict(Verdict, Spent),
    /// Nothing, in a way that says nothing of the others.
    Lost(TaskError),
}

impl Desk {
    /// Judges the result that an order is about, by the order's criteria and these: by the models of its panel, one
    /// after another until their quorum is decided.
    ///
    /// # Errors
    /// As for [`Desk::plan`]; the order is no review of a result; or too many judges came to nothing.
    pub async fn judge(
        &self,
        order: &Order,
        criteria: &[String],
        mut seat: Seat<'_>,
    ) -> Result<Verdict, DeskError> {
        let (Work::Review { task, .. }, Some(input)) = (&order.work, order.inputs.first()) else {
            return Err(invalid("it is no review of a result").into());
        };
        let asked = asked(order, criteria);
        let (sources, files) = (seat.sources.clone(), seat.files.clone());
        let (sheet, evidence) = self.sheet(task, input, order, &asked, sources, files).await?;
        let toolbox = evidence.tools();
        let case = Case { order, task, criteria: &asked, brief: brief(&sheet, &toolbox), toolbox };
        let one = Panel { models: Vec::new(), quorum: 1 };
        let panel = order.panel.as_ref().unwrap_or(&one);
        if panel.models.is_empty() {
            let role = Capability::new(CRITIC).expect("it is letters");
            let model = self.models.of(order, &role, None).map_err(|error| invalid(&error.to_string()))?;
            let (verdict, spent) = case.ask(model, seat).await?;
            return Ok(Verdict { usage: spent.usage, models: spent.models, ..verdict });
        }
        self.hear(&case, panel, &mut seat).await
    }

    /// What a judge is shown, and what it can look things up in.
    async fn sheet(
        &self,
        task: &TaskId,
        input: &Input,
        order: &Order,
        criteria: &[String],
        sources: Arc<dyn Sources>,
        files: Option<Arc<dyn Files>>,
    ) -> Result<(ReviewTask, Evidence), DeskError> {
        let result = sources.result(input).await?;
        let corpus = match &order.documents {
            None => None,
            Some(set) => Some(self.library.open(set, sources.as_ref()).await?),
        };
        let sheet = ReviewTask {
            task_id: task.clone(),
            objective: order.objective.clone(),
            run_objective: order.mission.clone(),
            capability: order.capability.to_string(),
            criteria: criteria.to_vec(),
            documents: corpus.as_deref().map(DocumentList::of).unwrap_or_default(),
            result,
            is_cut: false,
        };
        let readable = order.evidence.iter().chain([input]).cloned().collect();
        let results = Some(Inputs::over(readable, sources));
        Ok((sheet, Evidence { corpus, results, files }))
    }

    async fn hear(&self, case: &Case<'_>, panel: &Panel, seat: &mut Seat<'_>) -> Result<Verdict, DeskError> {
        let mut bench = Bench::of(panel.models.len(), panel.quorum);
        let (mut spent, mut lost) = (Spent::default(), Vec::new());
        for (number, name) in panel.models.iter().enumerate() {
            let allowance = left(seat.allowance, &spent);
            match self.word(case, number, name, allowance, seat).await.map_err(|error| with(error, &spent))? {
                Word::Verdict(verdict, used) => {
                    spent.add(&used);
                    bench.hear(Judged { model: name.clone(), verdict });
                }
                Word::Lost(error) => {
                    spent.add(&Spent { usage: error.usage, models: error.models.clone() });
                    lost.push((name, error));
                }
            }
            if bench.decision().is_some() {
                break;
            }
        }
        match bench.verdict() {
            Some(verdict) => Ok(Verdict { usage: spent.usage, models: spent.models, ..verdict }),
            None => Err(with(undecided(panel, &lost).into(), &spent)),
        }
    }

    /// What one judge of several says. That it came to nothing is written down, so that whoever goes on with the review
    /// does not ask it anew among the steps of the next.
    async fn word(
        &self,
        case: &Case<'_>,
        number: usize,
        name: &str,
        allowance: Amounts,
        seat: &mut Seat<'_>,
    ) -> Result<Word, DeskError> {
        let mut journal =
            OfJudge { journal: &mut *seat.journal, prefix: format!("judge.{number}."), lost: None };
        let opened = Choice::parse(name).map_err(|error| error.to_string());
        let opened = opened.and_then(|choice| self.models.open(&choice).map_err(|error| error.to_string()));
        let judged = match opened {
            Ok(model) => {
                let seat =
                    Seat { watch: seat.watch, allowance, ..Seat::new(seat.sources.clone(), &mut journal) };
                case.ask(model, seat).await
            }
            Err(why) => journal.recorded(&[]).await.map_err(unusable).and(Err(invalid(&why).into())),
        };
        match judged {
            Ok((verdict, spent)) => Ok(Word::Verdict(verdict, spent)),
            Err(error) => match (journal.lost.take(), error) {
                (Some(lost), _) => Ok(Word::Lost(lost)),
                (None, DeskError::Task(error)) if is_its_own(error.kind) => {
                    journal.lose(&error).await.map_err(unusable)?;
                    Ok(Word::Lost(error))
                }
                (None, error) => Err(error),
            },
        }
    }
}

impl Case<'_> {
    async fn ask(&self, model: Arc<dyn Model>, seat: Seat<'_>) -> Result<(Verdict, Spent), DeskError> {
        // What a judge reads is never put aside into the files of the run: it changes nothing.
        let seat = Seat { files: None, ..seat };
        let (brief, toolbox) = (self.brief.clone(), self.toolbox.clone());
        let ready = Ready { attempt: AttemptName::of(self.order), brief, toolbox, model, seat };
        let asked = Asked::new(self.task, self.criteria);
        let (judgement, spent) = ready.answer::<Judgement>(&|given| asked.check(given)).await?;
        Ok((judgement.verdict(), spent))
    }
}

/// The criteria of the order and those of its capability, each once.
fn asked(order: &Order, more: &[String]) -> Vec<String> {
    let mut asked: Vec<String> = Vec::new();
    for criterion in order.criteria.iter().chain(more) {
        if !criterion.trim().is_empty() && !asked.contains(criterion) {
            asked.push(criterion.clone());
        }
    }
    asked
}

/// Whether an error is of a judge, so that others may do better, rather than of what they all rest on.
fn is_its_own(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Model | ErrorKind::Limit | ErrorKind::InvalidTask | ErrorKind::WrongParameters => true,
        ErrorKind::Tool | ErrorKind::Panic | ErrorKind::Abandoned | ErrorKind::Unclear | ErrorKind::Other => {
            false
        }
    }
}

fn left(allowance: Amounts, spent: &Spent) -> Amounts {
    let mut left = allowance;
    for (dimension, amount) in allowance.iter() {
        left.set(dimension, Some(amount.saturating_sub(dimension.of(&spent.usage))));
    }
    left
}

/// An error that also says what those who spoke before had used.
fn with(error: DeskError, before: &Spent) -> DeskError {
    match error {
        DeskError::Source(error) => DeskError::Source(error),
        DeskError::Task(error) => {
            let mut spent = before.clone();
            spent.add(&Spent { usage: error.usage, models: error.models.clone() });
            DeskError::Task(TaskError { usage: spent.usage, models: spent.models, ..error })
        }
    }
}

fn undecided(panel: &Panel, lost: &[(&String, TaskError)]) -> TaskError {
    let told: Vec<String> = lost.iter().map(|(name, error)| format!("{name}: {}", error.message)).collect();
    let message = format!(
        "{} of {} models that judge came to no verdict, and the others leave open whether {} of them accept it; {}",
        lost.len(),
        panel.models.len(),
        panel.quorum,
        told.join("; ")
    );
    // Where one of them may do better at another time, so may all.
    let kind = lost.iter().map(|(_, error)| error.kind).find(|kind| kind.is_retryable());
    TaskError::new(kind.unwrap_or(ErrorKind::InvalidTask), message)
}

fn unusable(error: JournalError) -> DeskError {
    DeskError::Task(TaskError::new(ErrorKind::Other, error.to_string()))
}

/// The steps of one judge among those of all.
struct OfJudge<'a> {
    journal: &'a mut dyn Journal,
    prefix: String,
    /// What the journal says that it was lost by.
    lost: Option<TaskError>,
}

impl OfJudge<'_> {
    fn lost_step(&self) -> String {
        format!("{}lost", self.prefix)
    }

    async fn lose(&mut self, error: &TaskError) -> Result<(), JournalError> {
        let value = serde_json::to_value(error).expect("an error holds only texts and numbers");
        self.journal.append(&self.lost_step(), &value).await
    }
}

impl Journal for OfJudge<'_> {
    fn recorded<'a>(
        &'a mut self,
        names: &'a [String],
    ) -> BoxFuture<'a, Result<Option<(usize, Value)>, JournalError>> {
        async move {
            let own = names.iter().map(|name| format!("{}{name}", self.prefix));
            let steps: Vec<String> = own.chain([self.lost_step()]).collect();
            let Some((at, value)) = self.journal.recorded(&steps).await? else {
                return Ok(None);
            };
            if at < names.len() {
                return Ok(Some((at, value)));
            }
            let unreadable = |mistake: serde_json::Error| JournalError::Failed(mistake.to_string());
            self.lost = Some(serde_json::from_value(value).map_err(unreadable)?);
            Err(JournalError::Failed("this judge came to nothing before".into()))
        }
        .boxed()
    }

    fn append<'a>(&'a mut self, name: &'a str, value: &'a Value) -> BoxFuture<'a, Result<(), JournalError>> {
        async move { self.journal.append(&format!("{}{name}", self.prefix), value).await }.boxed()
    }

    fn note<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, Result<(), JournalError>> {
        self.journal.note(text)
    }

    fn pulse(&self) -> Duration {
        self.journal.pulse()
    }
}
