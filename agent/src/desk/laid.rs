//! What lies before one agent: the documents of the run and the results its task builds on, and how much of them it is
//! shown from the beginning. What is small is shown whole, so that a model that is slow with tools can do without them.

use std::fmt::Write;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use millrace_protocol::result::TaskResult;
use millrace_protocol::work::{Input, Order};

use super::library::Library;
use super::report::Numbered;
use super::results::Inputs;
use super::{DeskError, Sources};
use crate::corpus::Corpus;
use crate::files::{Composite, Documents, FilePath, Files};
use crate::material::{NOTICE, barred};
use crate::roles::DocumentList;
use crate::spec::{AnswerForm, Spec};
use crate::tool::{ResultEntry, Results, passages};

/// How many results are read at once.
const READS: usize = 16;
/// The most results that are read to be shown from the beginning.
const MAX_SHOWN: usize = 12;
/// The most characters of all results that are shown from the beginning.
const MAX_RESULTS: usize = 16_000;
/// The most characters of passages that are shown from the beginning.
const MAX_PASSAGES: usize = 6_000;
/// How many passages these are at most.
const PASSAGES: usize = 5;
/// Where the run's documents are among an agent's files.
const DOCUMENTS: &str = "/documents";

pub(super) struct Laid {
    pub corpus: Option<Arc<Corpus>>,
    /// The results under one numbering of their sources, for whoever reports on them.
    pub numbered: Option<Arc<Numbered>>,
    /// The results that are few enough to be shown.
    few: Vec<(ResultEntry, TaskResult)>,
}

impl Laid {
    pub async fn out(
        library: &Library,
        spec: &Spec,
        order: &Order,
        sources: &dyn Sources,
    ) -> Result<Self, DeskError> {
        let corpus = match &order.documents {
            None => None,
            Some(set) => Some(library.open(set, sources).await?),
        };
        let is_report = spec.answer == AnswerForm::Report;
        let read = if is_report || order.inputs.len() <= MAX_SHOWN {
            read(&order.inputs, sources).await?
        } else {
            Vec::new()
        };
        if !is_report {
            return Ok(Self { corpus, numbered: None, few: read });
        }
        let numbered = Numbered::of(read);
        let few = if order.inputs.len() <= MAX_SHOWN { numbered.results().to_vec() } else { Vec::new() };
        Ok(Self { corpus, numbered: Some(Arc::new(numbered)), few })
    }

    /// Which documents there are, as the agent is told.
    pub fn documents(&self) -> DocumentList {
        self.corpus.as_deref().map(DocumentList::of).unwrap_or_default()
    }

    /// The results for the agent's tools.
    pub fn results(&self, order: &Order, sources: &Arc<dyn Sources>) -> Option<Arc<dyn Results>> {
        match &self.numbered {
            Some(numbered) => Some(numbered.clone()),
            None => (!order.inputs.is_empty()).then(|| Inputs::of(order, sources.clone())),
        }
    }

    /// The run's files with its documents among them.
    pub fn mounted(&self, files: Arc<dyn Files>) -> Arc<dyn Files> {
        let Some(corpus) = &self.corpus else { return files };
        let place = FilePath::new(DOCUMENTS).expect("it is a path");
        Arc::new(Composite::new(files).mount(place, Arc::new(Documents::new(corpus.clone()))))
    }

    /// What the agent is shown besides its task.
    pub fn shown(&self, order: &Order, form: AnswerForm) -> String {
        let mut shown = String::new();
        let passages = self.passages(order).filter(|_| form == AnswerForm::Findings);
        if let Some(passages) = passages {
            write!(
                shown,
                "\nPassages that have words of the objective, as search_documents finds them; each line has its \
                 number. {NOTICE}\n\n{passages}"
            )
            .expect(TO_STRING);
        }
        let results = self.results_text();
        if !results.is_empty() {
            write!(shown, "\nThe results that your task builds on. {NOTICE}\n{results}").expect(TO_STRING);
        }
        shown
    }

    fn passages(&self, order: &Order) -> Option<String> {
        let corpus = self.corpus.as_ref().filter(|corpus| !corpus.documents().is_empty())?;
        passages(corpus, &order.objective, PASSAGES).map(|text| barred(&text, MAX_PASSAGES))
    }

    fn results_text(&self) -> String {
        let one = |(entry, result): &(ResultEntry, TaskResult)| {
            let notes = result.notes.as_ref().map(|notes| format!("\n\nNotes: {notes}")).unwrap_or_default();
            let text = format!("Objective: {}\n\n{}{notes}", entry.objective, result.output);
            format!("\nResult of the task {}:\n{}", entry.task_id, barred(&text, MAX_RESULTS))
        };
        let text: String = self.few.iter().map(one).collect();
        if text.chars().count() > MAX_RESULTS { String::new() } else { text }
    }
}

const TO_STRING: &str = "writing to a String can't fail";

async fn read(inputs: &[Input], sources: &dyn Sources) -> Result<Vec<(ResultEntry, TaskResult)>, DeskError> {
    // Boxed one by one: the compiler can't see that a stream of closures over borrowed inputs may be sent.
    let reads: Vec<_> = inputs.iter().map(|input| sources.result(input)).collect();
    let results: Vec<TaskResult> = futures::stream::iter(reads).buffered(READS).try_collect().await?;
    Ok(inputs.iter().map(super::results::entry).zip(results).collect())
}
